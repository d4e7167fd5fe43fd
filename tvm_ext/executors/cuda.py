"""What only cuda executables have: their generated text, and the GPU that they need."""

import os

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx

from ..errors import TargetError

__all__ = [
    "constant_bits",
    "cuda_sources",
    "is_for_cpu",
    "named_in_c",
    "prepare",
    "skip_empty_launches",
]

# TVM hands its text to nvcc or nvrtc with --use_fast_math: denormals become zero, division,
# square root, exp and pow lose bits. These are its switches against that; a user's own win.
_PRECISE = {
    "TVM_CUDA_NVCC_NO_FAST_MATH": "1",
    "TVM_CUDA_NVRTC_EXTRA_OPTS": (
        "--use_fast_math=false --ftz=false --prec-div=true --prec-sqrt=true"
    ),
}


def named_in_c(module: IRModule) -> IRModule:
    """``module`` with a letter before each name in its kernels that starts with a digit.

    Exporters number their values, kernels name their buffers after them, and TVM writes those
    names into CUDA C as they are.
    """
    kernels = {
        symbol: _named_in_c(function) if isinstance(function, tirx.PrimFunc) else function
        for symbol, function in module.functions_items()
    }
    return IRModule(kernels, attrs=module.attrs)


def _named_in_c(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    renamed: dict[tirx.Var, tirx.Var] = {}

    def rename(var: tirx.Var) -> tirx.Var:
        if not var.name[:1].isdigit():
            return var
        return renamed.setdefault(var, tirx.Var(f"v{var.name}", var.ty))

    return tvm_ffi.structural_map(kernel, (tirx.Var, rename))


@tvm.transform.module_pass(opt_level=0, name="ConstantBits")
def constant_bits(module: IRModule, _context: object) -> IRModule:
    """The module pass that takes the bits of reinterpreted constants.

    In CUDA C reinterpretation takes the address of its operand, which a constant does not have.
    """
    functions = {
        symbol: tvm_ffi.structural_map(function, (tvm.ir.Call, _constant_bits))
        for symbol, function in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


def _constant_bits(call: tvm.ir.Call) -> tirx.Expr:
    if getattr(call.op, "name", "") != "tirx.reinterpret":
        return call
    (operand,) = call.args
    kinds = str(operand.ty.dtype), str(call.ty.dtype)
    constant = isinstance(operand, tirx.FloatImm | tirx.IntImm)
    if not constant or not all(hasattr(np, kind) for kind in kinds):
        return call
    source, result = kinds
    bits = np.array(operand.value).astype(source).view(result)
    return tirx.const(bits.item(), result)


def is_for_cpu(function: tvm.ir.BaseFunc) -> bool:
    """Whether ``function`` is a kernel that no GPU runs."""
    return isinstance(function, tirx.PrimFunc) and function.attrs["target"].kind.name != "cuda"


@tvm.transform.module_pass(opt_level=0, name="SkipEmptyLaunches")
def skip_empty_launches(module: IRModule, _context: object) -> IRModule:
    """The module pass that guards launches whose symbolic extents may leave no thread.

    A launch of no block is an error of the driver, not an empty loop.
    """
    kernels = {
        symbol: function.with_body(_guarded(function.body))
        if isinstance(function, tirx.PrimFunc)
        else function
        for symbol, function in module.functions_items()
    }
    return IRModule(kernels, attrs=module.attrs)


def _guarded(stmt: tirx.Stmt) -> tirx.Stmt:
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_guarded(child) for child in stmt.seq])
    if not isinstance(stmt, tirx.AttrStmt):
        return stmt
    if stmt.attr_key != "thread_extent":
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, _guarded(stmt.body))
    extents = _symbolic_extents(stmt)
    return tirx.IfThenElse(tirx.all(*(e > 0 for e in extents)), stmt, None) if extents else stmt


def _symbolic_extents(stmt: tirx.Stmt) -> list[tirx.Expr]:
    """The extents, not constant, of the launch that begins with ``stmt``."""
    if not isinstance(stmt, tirx.AttrStmt) or stmt.attr_key != "thread_extent":
        return []
    own = [] if isinstance(stmt.value, tirx.IntImm) else [stmt.value]
    return own + _symbolic_extents(stmt.body)


def cuda_sources(executable: relax.VMExecutable) -> str:
    """The CUDA C of all kernels of ``executable``; empty where it has none."""
    texts, pending = [], [executable.mod]
    while pending:
        module = pending.pop()
        pending.extend(module.imports)
        if module.kind == "cuda":
            texts.append(module.inspect_source())
    return "\n".join(texts)


def prepare(device: tvm.runtime.Device) -> None:
    """Make ready to run on ``device``: called before the first kernel is loaded.

    Raises:
        TargetError: this machine has no such device.
    """
    if not device.exist:
        raise TargetError(
            f"this machine has no CUDA device {device.index}; the model is built, but it runs "
            "only where TVM finds a GPU: use target='llvm' here, or save() it and load it there"
        )
    for name, value in _PRECISE.items():
        os.environ.setdefault(name, value)
