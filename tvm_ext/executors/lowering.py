"""The TIR pipeline of our builds: TVM's own, with register tiles and named values on the stack."""

import tvm
from tvm import tirx
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from .named_values import rewrite_stores

__all__ = ["TIR_PIPELINE", "lowering_passes"]

TIR_PIPELINE = "tvm_ext"

# TVM moves locals over 1 KiB to a heap workspace; LLVM then keeps an accumulator in registers
# only by store promotion, which any extra statement in the reduction loop breaks (up to 2x).
STACK_BYTES = 16 << 10


def _rewrite(stmt: tirx.Stmt) -> tirx.Stmt:
    """``stmt`` with named values as locals and every small local allocation marked."""
    if isinstance(stmt, tirx.BufferStore):
        named = rewrite_stores(stmt)
        return stmt if named is stmt else _rewrite(named)
    if isinstance(stmt, tirx.AllocBuffer):
        small = _bytes(stmt.buffer) <= STACK_BYTES and _scope(stmt.buffer) == "local"
        marks = {"disable_lower_builtin": tirx.const(1, "bool")}
        return tirx.AllocBuffer(stmt.buffer, marks) if small else stmt
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_rewrite(child) for child in stmt.seq])
    if isinstance(stmt, tirx.AttrStmt):
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, _rewrite(stmt.body))
    if isinstance(stmt, tirx.For):
        return tirx.For(
            stmt.loop_var,
            stmt.min,
            stmt.extent,
            stmt.kind,
            _rewrite(stmt.body),
            stmt.thread_binding,
            stmt.annotations,
        )
    if isinstance(stmt, tirx.IfThenElse):
        other = None if stmt.else_case is None else _rewrite(stmt.else_case)
        return tirx.IfThenElse(stmt.condition, _rewrite(stmt.then_case), other)
    return stmt


def _scope(buffer: tirx.Var) -> str:
    return buffer.ty.storage_scope


def _bytes(buffer: tirx.Var) -> int:
    size = tvm.DataType(str(buffer.ty.dtype.dtype)).itemsize
    for extent in buffer.ty.shape:
        if not isinstance(extent, tirx.IntImm):
            return STACK_BYTES + 1
        size *= int(extent)
    return size


@tvm.transform.module_pass(opt_level=0, name="StackLocals")
def _stack_locals(module, _context):
    functions = {
        gv: tirx.PrimFunc(f.params, _rewrite(f.body), f.ret_type, f.attrs)
        if isinstance(f, tirx.PrimFunc)
        else f
        for gv, f in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs)


def _keeping_single_trips(lower: tvm.ir.transform.Pass) -> tvm.ir.transform.Pass:
    """``lower`` with LoopPartition told to leave loops of one trip to the simplifier.

    By itself it puts an int32 zero in the place of their variable, also where that is int64.
    """

    @tvm.transform.module_pass(opt_level=0, name="LowerKernels")
    def lower_kernels(module, context):
        config = dict(context.config) | {
            "s_tir.LoopPartition": {"no_unroll_loop_with_extent_one": True}
        }
        with tvm.ir.transform.PassContext(
            opt_level=context.opt_level,
            required_pass=context.required_pass,
            disabled_pass=context.disabled_pass,
            config=config,
        ):
            return lower(module)

    return lower_kernels


def lowering_passes() -> tuple[tvm.ir.transform.Pass, tvm.ir.transform.Pass]:
    """From scheduled kernels to loops and a calling convention, and from there to intrinsics."""
    lower, finalize_host, _ = default_s_tir_pipeline()
    finalize = tvm.ir.transform.Sequential([_stack_locals, finalize_host()])
    return _keeping_single_trips(lower), finalize


def _pipeline():
    lower, finalize_host = lowering_passes()
    return lower, lambda: finalize_host, default_s_tir_pipeline()[2]


register_tir_pipeline(TIR_PIPELINE, _pipeline)
