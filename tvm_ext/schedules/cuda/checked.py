"""A rule on trial: its kernel must compile and fit a GPU, or the next rule is asked."""

import logging
from contextvars import ContextVar
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule
from tvm.target import Target
from tvm.tirx.build import split_host_device_mods
from tvm.tirx.compilation_pipeline import get_tir_pipeline

from .blocks import SHARED_BYTES

__all__ = ["TIR_PIPELINE", "Checked", "flaw", "name_of", "text_is_all"]

_log = logging.getLogger("tvm_ext.schedules.cuda")

# By this name TVM knows the passes that lower kernels in builds (tvm_ext.executors.lowering).
TIR_PIPELINE = "tvm_ext"

# What a launch may use on every GPU since sm_50.
BLOCKS = {"blockIdx.x": (1 << 31) - 1, "blockIdx.y": (1 << 16) - 1, "blockIdx.z": (1 << 16) - 1}

# Where a GPU is, TVM compiles whatever text it generates.
_TEXT_IS_ALL = ContextVar("text_is_all", default=False)


def text_is_all() -> bool:
    """Whether CUDA C is generated on trial here, and need not be compiled."""
    return _TEXT_IS_ALL.get()


class Checked(GPUScheduleRule):
    """``rule``, declined where it raises or where :func:`flaw` finds its kernel wanting.

    dlight's rules are written for the kernels of language models; on others they raise errors of
    many classes, leave a block outside of all threads, or ask for too much shared memory.

    Kernels that reduce over one element are declined where the rule inlines blocks: without its
    loops TVM takes the reduction for element-wise work, and inlines a reader of the result into the
    initial value as well as into the sum.
    """

    def __init__(self, rule: GPUScheduleRule, *, inlines: bool = True):
        self.rule = rule
        self.inlines = inlines

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        """The schedule of the rule, or None."""
        if not self.is_target_available(target):
            return None
        kernel, rule = name_of(func), type(self.rule).__name__
        if self.inlines and _reduces_one(func):
            _log.debug("%s: %s does not serve: a reduction over one element", kernel, rule)
            return None
        try:
            schedule = self.rule.apply(func, target, tunable)
        except Exception as error:  # noqa: BLE001 - dlight's rules raise anything
            _log.debug("%s: %s failed: %s", kernel, rule, _summary(error))
            return None
        if schedule is None:
            return None
        reason = flaw(schedule.mod["main"], target)
        if reason:
            _log.debug("%s: %s does not serve: %s", kernel, rule, reason)
            return None
        _log.debug("%s: scheduled by %s", kernel, rule)
        return schedule


def _reduces_one(func: tirx.PrimFunc) -> bool:
    """Does a block reduce, along one axis or several, over a single element?"""
    found: list[bool] = []

    def visit(block: s_tir.SBlock) -> None:
        reduced = [axis for axis in block.iter_vars if axis.iter_type == tirx.IterVar.CommReduce]
        one = all(_int(axis.dom.extent) == 1 for axis in reduced)
        found.append(block.init is not None and bool(reduced) and one)

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, visit), order="pre")
    return any(found)


def name_of(func: tirx.PrimFunc) -> str:
    """``func`` in reports: its symbol, or the blocks it computes where it has none yet."""
    if func.attrs and "global_symbol" in func.attrs:
        return str(func.attrs["global_symbol"])
    names: list[str] = []
    tvm_ffi.structural_walk(
        func.body, (s_tir.SBlock, lambda block: names.append(block.name_hint)), order="pre"
    )
    return "+".join(name for name in names if name != "root")


def flaw(func: tirx.PrimFunc, target: Target) -> str | None:
    """Why the scheduled ``func`` cannot be a cuda kernel, or None: CUDA C is made of it."""
    token = _TEXT_IS_ALL.set(True)
    try:
        return _flaw(func, target)
    finally:
        _TEXT_IS_ALL.reset(token)


def _flaw(func: tirx.PrimFunc, target: Target) -> str | None:
    module = IRModule({"main": func.with_attr("global_symbol", "main")})
    lower, _, finalize_device = get_tir_pipeline(TIR_PIPELINE)
    try:
        with target:
            lowered = lower(tirx.transform.BindTarget(target)(module))
            host, devices = split_host_device_mods(lowered)
            if any(_computes(function) for function in host.functions.values()):
                return "a block runs outside of all threads"
            for kind, device in devices.items():
                device = finalize_device()(device)
                tvm.get_global_func("target.build.cuda")(device, kind)
                for kernel in device.functions.values():
                    reason = _over_limits(kernel, target)
                    if reason:
                        return reason
    except (InternalError, RuntimeError, ValueError) as error:
        return _summary(error)
    return None


def _computes(host: tirx.PrimFunc) -> bool:
    """Does host code write tensors? It may only launch; TVM's VerifyMemory misses some."""
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(host.body, (tirx.BufferStore, stores.append), order="post")
    return bool(stores)


def _over_limits(kernel: tirx.PrimFunc, target: Target) -> str | None:
    """What a launch of the lowered ``kernel`` would be refused for."""
    extents: dict[str, Any] = {}  # None where symbolic
    shared: list[Any] = []

    def thread(node: tirx.AttrStmt) -> None:
        if node.attr_key == "thread_extent":
            extents[node.node.thread_tag] = _int(node.value)

    def allocation(node: tirx.AllocBuffer) -> None:
        if node.buffer.ty.storage_scope.startswith("shared"):
            shape = [_int(extent) for extent in node.buffer.ty.shape]
            size = tvm.DataType(str(node.buffer.ty.dtype.dtype)).itemsize
            shared.append(None if None in shape else size * prod(shape))

    tvm_ffi.structural_walk(
        kernel.body, [(tirx.AttrStmt, thread), (tirx.AllocBuffer, allocation)], order="post"
    )
    threads = [extent for tag, extent in extents.items() if tag.startswith("threadIdx")]
    if None in threads or prod(threads) > int(target.attrs.get("max_num_threads", 1024)):
        return f"{threads} threads in a block"
    if None in shared or sum(shared) > SHARED_BYTES:
        return f"{shared} bytes of shared memory in a block"
    for tag, most in BLOCKS.items():
        if (extents.get(tag) or 0) > most:
            return f"{extents[tag]} blocks along {tag}"
    if 0 in extents.values():
        return "its grid is empty, which a launch refuses"
    return None


def _int(value: tirx.Expr) -> Any:
    return int(value) if isinstance(value, tirx.IntImm) else None


def _summary(error: Exception) -> str:
    """Class and last line of ``error``: TVM prints the whole kernel before it."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"
