"""Kernels as plain C functions: ``int32_t name(T0 *a, T1 *b, ...)``, no TVM at run time.

TVM gives a kernel its packed calling convention, which unwraps and checks tensors on each call.
A memory plan knows all shapes already, so here a kernel takes the addresses alone, and behind them
the numbers that it has for parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import IRModule, tirx
from tvm.ir import Call
from tvm.ir.transform import PassContext, Sequential
from tvm.target import Target

from ..schedules.statements import map_children
from .lowering import bytes_off_stack, finalize_host, lower
from .machine_code import MachineCode, compiled, parted
from .plan import aligned
from .scratch_of_parts import scratch_of_parts
from .small_loops import alone_where_small, told_where_small

__all__ = ["Scratch", "build_c_abi", "calls_tvm"]


_PACKED_CALLS = {"tirx.tvm_call_packed", "tirx.tvm_call_cpacked"}


def calls_tvm(kernel: tirx.PrimFunc) -> bool:
    """Whether ``kernel`` calls functions of TVM's runtime (sorting), which a C library lacks."""
    found = False

    def visit(call: Call) -> None:
        nonlocal found
        found |= getattr(call.op, "name", None) in _PACKED_CALLS

    tvm_ffi.structural_walk(kernel.body, (Call, visit))
    return found


@dataclass(frozen=True)
class Scratch:
    """Memory that kernels need for themselves.

    Attributes:
        arrays: by the name of a kernel, the bytes of each array that it has outside of parallel
            loops; their addresses are its last parameters.
        thread_bytes: what each thread may take at a time within parallel loops.
    """

    arrays: dict[str, tuple[int, ...]]
    thread_bytes: int


def build_c_abi(kernels: IRModule, target: Target) -> tuple[MachineCode, Scratch]:
    """Compile scheduled PrimFuncs to native code; each is called by its ``global_symbol``.

    Returns too what scratch memory they need.

    What ``T.parallel`` and large locals need is called through the variables
    ``__TVMBackendParallelLaunch``, ``__TVMBackendAllocWorkspace`` and
    ``__TVMBackendFreeWorkspace``, which the runtime defines.
    """
    arrays: dict[str, tuple[int, ...]] = {}
    thread_bytes = [0]

    def lowered(part: IRModule) -> IRModule:
        module, taken = _lowered(part, target)
        arrays.update(taken)
        thread_bytes.extend(map(_thread_bytes, module.functions.values()))
        return module

    code = compiled(parted(kernels), lowered, target)
    return code, Scratch(arrays, max(thread_bytes))


def _lowered(kernels: IRModule, target: Target) -> tuple[IRModule, dict[str, tuple[int, ...]]]:
    """What LLVM is given, and the bytes of the arrays that kernels take, by their names."""
    hosted = target.with_host(target)
    with target:
        with _without(*(other.info.name for other in _OTHERWISE)):
            lowered = Sequential([tirx.transform.BindTarget(hosted), lower])(kernels)
        linked = [alone_where_small, scratch_of_parts, _addresses_alone, *_STORAGE]
        lowered = Sequential(linked)(lowered)
        taken = {gv: _with_arrays(f) for gv, f in lowered.functions_items()}
        lowered = IRModule({gv: f for gv, (f, _) in taken.items()}, attrs=lowered.attrs)
        lowered = finalize_host()(lowered)
    return lowered, {gv.name_hint: sizes for gv, (_, sizes) in taken.items()}


def _with_arrays(kernel: tirx.PrimFunc) -> tuple[tirx.PrimFunc, tuple[int, ...]]:
    """``kernel`` with the arrays that it has outside of parallel loops as parameters, and their
    bytes: the plan then finds them a place among what is alive."""
    parameters, sizes = [], []

    def visit(stmt: tirx.Stmt) -> tirx.Stmt:
        if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.PARALLEL:
            return stmt
        if isinstance(stmt, tirx.AllocBuffer):
            size = bytes_off_stack(stmt.buffer)
            if size > 0:
                pointer = tirx.Var(stmt.buffer.name, tirx.buffer_data_pointer_type(stmt.buffer))
                parameters.append(pointer)
                sizes.append(size)
                return tirx.DeclBuffer(stmt.buffer, data=pointer)
        return map_children(stmt, visit)

    body = visit(kernel.body)
    params = [*kernel.params, *parameters]
    return tirx.PrimFunc(params, body, kernel.ret_type, kernel.attrs), tuple(sizes)


def _thread_bytes(kernel: tirx.PrimFunc) -> int:
    """All that ``kernel`` allocates: more than what is alive at one time, if anything."""
    total = 0

    def visit(call: Call) -> None:
        nonlocal total
        if getattr(call.op, "name", None) == "tirx.TVMBackendAllocWorkspace":
            size = call.args[2]  # what has no known size is allocated, and kept, as it is needed
            total += aligned(int(size)) if isinstance(size, tirx.IntImm) else 0

    tvm_ffi.structural_walk(kernel.body, (Call, visit))
    return total


# They want pointers for parameters, so they run behind the pass that makes them.
_STORAGE = (tirx.transform.FP8StorageLegalize(), tirx.transform.BF16StorageLegalize())
# What kernels are lowered by for TVM, and here otherwise.
_OTHERWISE = (told_where_small, scratch_of_parts, tirx.transform.MakePackedAPI(), *_STORAGE)


def _without(*names: str) -> PassContext:
    context = PassContext.current()
    return PassContext(
        opt_level=context.opt_level,
        required_pass=context.required_pass,
        disabled_pass=[*context.disabled_pass, *names],
        config=dict(context.config),
    )


@tvm.transform.module_pass(opt_level=0, name="AddressesAlone")
def _addresses_alone(module: IRModule, _context: PassContext) -> IRModule:
    """Parameters are pointers, the result is a code: 0, or what a parallel region returned."""
    functions = {gv: _with_addresses(f) for gv, f in module.functions_items()}
    return IRModule(functions, attrs=module.attrs)


def _with_addresses(function: tirx.PrimFunc) -> tirx.PrimFunc:
    buffers = [param for param in function.params if tirx.is_buffer_var(param)]
    numbers = [param for param in function.params if not tirx.is_buffer_var(param)]
    pointers = [tirx.Var(p.name, tirx.buffer_data_pointer_type(p)) for p in buffers]
    declared = [
        tirx.DeclBuffer(buffer, data=pointer)
        for buffer, pointer in zip(buffers, pointers, strict=True)
    ]
    zero, cpu = tirx.const(0, "int32"), tirx.const(1, "int32")
    # Allocations that leave the stack ask for the device.
    body = tirx.AttrStmt(zero, "device_type", cpu, function.body)
    body = tirx.AttrStmt(zero, "device_id", zero, body)
    statements = tirx.SeqStmt([*_starts(buffers), *declared, body, tirx.Return(zero)])
    params = [*pointers, *numbers]
    return tirx.PrimFunc(params, statements, tvm.ir.PrimType("int32"), function.attrs)


def _starts(buffers: Sequence[tirx.Var]) -> list[tirx.Stmt]:
    """Offsets that a tensor could have are zero: an address points at the first element."""
    offsets = [buffer.ty.elem_offset for buffer in buffers]
    return [tirx.Bind(v, tirx.const(0, v.ty)) for v in offsets if isinstance(v, tirx.Var)]
