"""What only cuda executables have: passes over launches, generated text, the GPU they need."""

from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.target import Target
from tvm.tirx.analysis import undefined_vars

from ..errors import TargetError

__all__ = [
    "constant_bits",
    "cuda_sources",
    "demand",
    "is_for_cpu",
    "launches",
    "locals_of_threads",
    "named_in_c",
    "skip_empty_launches",
    "without_float8",
]


def named_in_c(module: IRModule) -> IRModule:
    """``module`` with a letter before each name in its kernels that starts with a digit.

    Exporters number their values, kernels name their buffers after them, and TVM writes those
    names into CUDA C as they are.
    """
    return _each_kernel(module, _named_in_c)


def _each_kernel(module: IRModule, change: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> IRModule:
    functions = {
        symbol: change(function) if isinstance(function, tirx.PrimFunc) else function
        for symbol, function in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


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


def launches(host: tirx.PrimFunc) -> bool:
    """Whether ``host`` runs on the CPU what works on memory of another device."""
    found: list[bool] = []

    def visit(attr: tirx.AttrStmt) -> None:
        if attr.attr_key == "device_type":
            found.append(int(attr.value) != tvm.cpu().dlpack_device_type())

    tvm_ffi.structural_walk(host.body, (tirx.AttrStmt, visit))
    return any(found)


@tvm.transform.module_pass(opt_level=0, name="LocalsOfThreads")
def locals_of_threads(module: IRModule, _context: object) -> IRModule:
    """The module pass that gives each thread the arrays in registers that stand before its launch.

    TVM's scans declare them there; all threads would share one in memory.

    Before: ``first = alloc_local(1); launch(threadIdx.x, 1024): first[0] = ...``
    After:  ``launch(threadIdx.x, 1024): first = alloc_local(1); first[0] = ...``
    """
    return _each_kernel(module, _with_own_locals)


def _with_own_locals(function: tirx.PrimFunc) -> tirx.PrimFunc:
    launched: list[tirx.Stmt] = []

    def note_launch(stmt: tirx.AttrStmt) -> None:
        if _is_launch(stmt):
            launched.append(stmt.body)

    tvm_ffi.structural_walk(function.body, (tirx.AttrStmt, note_launch))
    owned = [array for body in launched for array in _locals_in(body)]
    shared = [array for array in _locals_in(function.body) if array not in owned]
    if not launched or not shared:
        return function

    def moved(stmt: tirx.AttrStmt) -> tirx.Stmt:
        used = undefined_vars(stmt.body) if _is_launch(stmt) else ()
        own = {array: tirx.Var(array.name, array.ty) for array in shared if array in used}
        if not own:
            return stmt
        body = tvm_ffi.structural_map(stmt.body, (tirx.Var, lambda var: own.get(var, var)))
        arrays = [tirx.AllocBuffer(array) for array in own.values()]
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, tirx.SeqStmt([*arrays, body]))

    def without_shared(stmt: tirx.SeqStmt) -> tirx.SeqStmt:
        kept = [s for s in stmt.seq if not (_is_local(s) and s.buffer in shared)]
        return stmt if len(kept) == len(stmt.seq) else tirx.SeqStmt(kept)

    body = tvm_ffi.structural_map(function.body, (tirx.AttrStmt, moved))
    return function.with_body(tvm_ffi.structural_map(body, (tirx.SeqStmt, without_shared)))


def _locals_in(stmt: tirx.Stmt) -> list[tirx.Var]:
    found: list[tirx.Var] = []

    def note(made: tirx.AllocBuffer) -> None:
        if _is_local(made):
            found.append(made.buffer)

    tvm_ffi.structural_walk(stmt, (tirx.AllocBuffer, note))
    return found


def _is_local(stmt: tirx.Stmt) -> bool:
    return isinstance(stmt, tirx.AllocBuffer) and stmt.buffer.ty.storage_scope == "local"


# TVM takes this architecture for one without float8.
_NO_FLOAT8 = "sm_80"


def without_float8(legalize: tvm.transform.Pass) -> tvm.transform.Pass:
    """``legalize``, which makes float8 what a target without it has, for every GPU.

    CUDA C has two of its types, and our operators compute on the bits.
    """

    @tvm.transform.module_pass(opt_level=0, name="WithoutFloat8")
    def legalized(module: IRModule, _context: object) -> IRModule:
        targets = {gv: f.attrs["target"] for gv, f in module.functions_items() if _on_gpu(f)}
        for gv, target in targets.items():
            older = Target({"kind": "cuda", "arch": _NO_FLOAT8}, target.host)
            module.update_func(gv, module[gv].with_attr("target", older))
        module = tvm.transform.Sequential([legalize])(module)  # unless the context disables it
        for gv, target in targets.items():
            module.update_func(gv, module[gv].with_attr("target", target))
        return module

    return legalized


def _on_gpu(function: tvm.ir.BaseFunc) -> bool:
    return isinstance(function, tirx.PrimFunc) and not is_for_cpu(function)


@tvm.transform.module_pass(opt_level=0, name="SkipEmptyLaunches")
def skip_empty_launches(module: IRModule, _context: object) -> IRModule:
    """The module pass that guards launches whose symbolic extents may leave no thread.

    A launch of no block is an error of the driver, not an empty loop.
    """
    return _each_kernel(module, _with_guards)


def _with_guards(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    return kernel.with_body(tvm_ffi.structural_map(kernel.body, (tirx.AttrStmt, _guarded_launch)))


def _guarded_launch(stmt: tirx.AttrStmt) -> tirx.Stmt:
    """``stmt``, a launch along one axis, behind the guards of it and of the launch inside."""
    if not _is_launch(stmt):
        return stmt
    condition, body = _unguarded(stmt.body)
    conditions = [] if condition is None else [condition]
    if not isinstance(stmt.value, tirx.IntImm):
        conditions.append(stmt.value > 0)
    launch = tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body)
    return tirx.IfThenElse(tirx.all(*conditions), launch, None) if conditions else launch


def _unguarded(stmt: tirx.Stmt) -> tuple[tirx.Expr | None, tirx.Stmt]:
    """The guard of a launch, and what is left without it; names may stand before the launch."""
    if isinstance(stmt, tirx.IfThenElse) and _is_launch(stmt.then_case):
        return stmt.condition, stmt.then_case
    if not isinstance(stmt, tirx.SeqStmt):
        return None, stmt
    *names, last = stmt.seq
    condition, launch = _unguarded(last)
    if condition is None or not all(isinstance(name, tirx.Bind) for name in names):
        return None, stmt
    for name in reversed(names):
        condition = _with_value(condition, name)
    return condition, tirx.SeqStmt([*names, launch])


def _with_value(condition: tirx.Expr, name: tirx.Bind) -> tirx.Expr:
    return tvm_ffi.structural_map(
        condition, (tirx.Var, lambda var: name.value if var.same_as(name.var) else var)
    )


def _is_launch(stmt: tirx.Stmt) -> bool:
    return isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == "thread_extent"


def cuda_sources(executable: relax.VMExecutable) -> str:
    """The CUDA C of all kernels of ``executable``; empty where it has none."""
    texts, pending = [], [executable.mod]
    while pending:
        module = pending.pop()
        pending.extend(module.imports)
        if module.kind == "cuda":
            texts.append(module.inspect_source())
    return "\n".join(texts)


def demand(device: tvm.runtime.Device) -> None:
    """Refuse a ``device`` that is not here: called before the first kernel is loaded.

    Raises:
        TargetError: this machine has no such device.
    """
    if not device.exist:
        raise TargetError(
            f"this machine has no CUDA device {device.index}; the model is built, but it runs "
            "only where TVM finds a GPU: use target='llvm' here, or save() it and load it there"
        )
