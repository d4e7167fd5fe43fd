"""The TIR pipeline of our builds: TVM's own, with register tiles and named values on the stack."""

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.pipeline import finalize_device_passes, finalize_host_passes
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from ..schedules.cuda.checked import TIR_PIPELINE
from .bfloat16 import legalize_bfloat16
from .bool_vectors import bool_vectors
from .byte_tables import lower_byte_tables
from .common_subexpressions import common_subexpressions
from .compact_buffers import compact_buffers
from .cuda import (
    constant_bits,
    launches,
    locals_of_threads,
    skip_empty_launches,
    without_float8,
)
from .divisions import divide_sizes_safely
from .dots import lower_dots
from .empty_loops import drop_empty_loops
from .exact_floats import exact_floats
from .exact_indices import flatten_buffers
from .loop_cuts import partition_loops
from .masked_tails import define_masks, mask_tails
from .named_sizes import name_conditions, name_quotients, tell_conditions, tell_quotients
from .named_values import rewrite_stores
from .near_lanes import load_near_lanes
from .packed_checks import join_checks
from .round_trips import keep_round_trips
from .safe_vectors import keep_vectors_inside
from .scratch_of_parts import scratch_of_parts
from .short_loops import shorten_loops
from .small_loops import told_where_small
from .tiles import lower_tiles

__all__ = ["TIR_PIPELINE", "bytes_off_stack", "finalize_host", "lower"]

blocks, loops = s_tir.transform, tirx.transform

# TVM moves locals over 1 KiB to a heap workspace; LLVM then keeps an accumulator in registers
# only by store promotion, which any extra statement in the reduction loop breaks (up to 2x).
STACK_BYTES = 16 << 10
_TVM_STACK_BYTES = 1 << 10
LINE_BYTES = 64


def _with_locals(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """``function`` with named values as locals and every small local allocation marked."""
    named = False  # since the last store

    def name(let: tirx.Let) -> tirx.Let:
        nonlocal named
        named = True
        return let

    def store(stmt: tirx.BufferStore) -> tirx.Stmt:
        nonlocal named
        if not named:
            return stmt
        named = False
        return _with_marks(rewrite_stores(stmt))

    callbacks = [(tirx.Let, name), (tirx.BufferStore, store), (tirx.AllocBuffer, _marked)]
    body = tvm_ffi.structural_map(function.body, callbacks)
    return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs)


def _with_marks(stmt: tirx.Stmt) -> tirx.Stmt:
    """A store behind its locals, if it has any, with these marked."""
    if not isinstance(stmt, tirx.SeqStmt):
        return stmt
    seq = [_marked(each) if isinstance(each, tirx.AllocBuffer) else each for each in stmt.seq]
    return tirx.SeqStmt(seq)


def _marked(stmt: tirx.AllocBuffer) -> tirx.Stmt:
    """The allocation of an array, on the stack and at a whole line of the cache if it is small.

    TVM aligns arrays to 16 bytes, LLVM those of vectors to these: a store across lines takes
    twice as long, and a load waits for all of it.
    """
    size = _bytes(stmt.buffer)
    if not 0 < size <= _most_on_stack(stmt.buffer):
        return stmt
    marks = {"disable_lower_builtin": tirx.const(1, "bool")}
    if size < LINE_BYTES:
        return tirx.AllocBuffer(stmt.buffer, marks)
    lines = tirx.decl_buffer([-(-size // LINE_BYTES)], f"uint8x{LINE_BYTES}", stmt.buffer.name)
    array = tirx.DeclBuffer(stmt.buffer, data=lines.data)
    return tirx.SeqStmt([tirx.AllocBuffer(lines, marks), array])


def bytes_off_stack(buffer: tirx.Var) -> int:
    """The bytes of an array of fixed size that leaves the stack; 0 of any other."""
    size = _bytes(buffer)
    fixed = all(isinstance(extent, tirx.IntImm) for extent in buffer.ty.shape)
    return size if fixed and size > _most_on_stack(buffer) else 0


def _most_on_stack(buffer: tirx.Var) -> int:
    return STACK_BYTES if _scope(buffer) == "local" else _TVM_STACK_BYTES


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
        gv: _with_locals(f) if isinstance(f, tirx.PrimFunc) and not launches(f) else f
        for gv, f in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs)


def _passes() -> list[tvm.ir.transform.Pass]:
    """TVM's passes, but loops are cut at their hints before index types are narrowed.

    Narrowing gives int64 loops new variables, and the hints do not follow: none would be cut.
    """
    return [
        name_conditions,
        name_quotients,
        exact_floats,
        blocks.CanonicalizeLoop(),
        blocks.LowerCrossThreadReduction(),
        blocks.LowerInitBlock(),
        drop_empty_loops,
        blocks.PlanAndUpdateBufferAllocationLocation(),
        blocks.ConvertBlocksToOpaque(),
        blocks.LiftThreadBinding(),
        blocks.ManifestSharedMemoryLocalStage(),
        compact_buffers,
        blocks.LowerAutoCopy(),
        blocks.UnifyThreadBinding(),
        blocks.LowerMatchBuffer(),
        blocks.StmtSimplify(),
        blocks.InjectPermutedLayout(),
        blocks.AnnotateIrregularLoop(),
        blocks.InjectSoftwarePipeline(),
        blocks.TransformMmaBufferLayout(),
        blocks.LowerOpaqueBlock(),
        flatten_buffers,
        tell_quotients,  # how loops are cut depends on what sizes are
        keep_round_trips,
        legalize_bfloat16,
        partition_loops,
        loops.NarrowDataType(32),
        loops.StmtSimplify(),
        keep_vectors_inside,
        mask_tails,
        loops.VectorizeLoop(),
        load_near_lanes,
        shorten_loops,
        blocks.InjectVirtualThread(),
        blocks.InjectDoubleBuffer(),
        loops.StorageRewrite(),
        bool_vectors,
        blocks.HoistIfThenElse(),
        loops.UnrollLoop(),
        blocks.RenormalizeSplitPattern(),
        loops.StmtSimplify(),
        loops.RemoveNoOp(),
        blocks.RewriteUnsafeSelect(),
        common_subexpressions,
        tell_conditions,
        without_float8(loops.FP8ComputeLegalize()),
        blocks.VerifyVTCMLimit(),
        blocks.LowerVtcmAlloc(),
        loops.VerifyMemory(),
        loops.AnnotateEntryFunc(),
        blocks.ThreadSync("shared"),
        blocks.ThreadSync("shared.dyn"),
        blocks.ThreadSync("warp"),
        blocks.InferFragment(),
        blocks.LowerThreadAllreduce(),
        blocks.MergeSharedMemoryAllocations(),
        locals_of_threads,
        skip_empty_launches,
        divide_sizes_safely,
        told_where_small,
        scratch_of_parts,
        loops.SplitHostDevice(),
        loops.MakePackedAPI(),
        join_checks,
        without_float8(loops.FP8StorageLegalize()),
        loops.BF16StorageLegalize(),
    ]


@tvm.transform.module_pass(opt_level=0, name="LowerKernels")
def lower(module, context):
    config = {
        # By itself LoopPartition puts an int32 zero in the place of the variable of a loop of one
        # trip, also where that is int64.
        "s_tir.LoopPartition": {"no_unroll_loop_with_extent_one": True},
        # Where vectors are scalable, TVM would put masks on tails, which later passes refuse.
        "tirx.enable_buffer_level_predication": False,
    }
    with tvm.ir.transform.PassContext(
        opt_level=context.opt_level,
        required_pass=context.required_pass,
        disabled_pass=context.disabled_pass,
        config=dict(context.config) | config,
    ):
        return tvm.ir.transform.Sequential(_passes())(module)


def finalize_host() -> tvm.ir.transform.Pass:
    """What stands between lowered host functions and code generation."""
    return tvm.ir.transform.Sequential(
        [
            _stack_locals,
            lower_dots,
            lower_byte_tables,
            lower_tiles,
            define_masks,
            finalize_host_passes(),
        ]
    )


def _pipeline():
    def finalize_device():
        return tvm.ir.transform.Sequential([finalize_device_passes(), constant_bits])

    return lower, finalize_host, finalize_device


register_tir_pipeline(TIR_PIPELINE, _pipeline)
