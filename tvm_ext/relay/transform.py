"""``relay.transform`` and ``tvm.transform``: passes before ``relay.build``, and its context.

Relay's passes that keep what a model computes return it as it is: ``relay.build`` runs passes of
its own to that end, in an order of its own (``tvm-ext inspect --passes``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm

from tvm_ext.errors import OptionError, RemovedError

from .frontend import Module
from .removed import removed

__all__ = ["PassContext", "Sequential", "ToMixedPrecision"]

_PRESERVING = """
    AlterOpLayout AnnotateSpans BackwardFoldScaleAxis CanonicalizeCast CanonicalizeOps
    CombineParallelBatchMatmul CombineParallelConv2D CombineParallelDense ConvertLayout
    DeadCodeElimination Defunctionalization DynamicToStatic EliminateCommonSubexpr EtaExpand
    FakeQuantizationToInteger FastMath FoldConstant FoldExplicitPadding FoldScaleAxis
    ForwardFoldScaleAxis FuseOps InferType Inline RemoveUnusedFunctions SimplifyExpr
    SimplifyInference ToANormalForm ToBasicBlockNormalForm ToGraphNormalForm
""".split()

_RENAMED = {"relay.FuseOps.max_depth": "relax.FuseOps.max_depth"}


class Sequential:
    """Passes, or any functions of a module, one after another."""

    def __init__(self, passes: Sequence[Callable], *_options: object, **_more: object):
        self.passes = list(passes)

    def __call__(self, module: Any) -> Any:
        for step in self.passes:
            module = step(module)
        return module


class PassContext:
    """``tvm.transform.PassContext``: TVM's own context, with the config names of today.

    Raises:
        OptionError: TVM has no such config any more.
    """

    current = staticmethod(tvm.ir.transform.PassContext.current)

    def __new__(
        cls,
        opt_level: int = 2,
        required_pass: Sequence[str] | None = None,
        disabled_pass: Sequence[str] | None = None,
        instruments: Sequence[object] | None = None,
        config: Mapping[str, object] | None = None,
    ) -> tvm.ir.transform.PassContext:
        return tvm.ir.transform.PassContext(
            opt_level=opt_level,
            required_pass=list(required_pass or ()),
            disabled_pass=list(disabled_pass or ()),
            instruments=instruments,
            config={_config_name(name): value for name, value in (config or {}).items()},
        )


def _config_name(name: str) -> str:
    known = set(tvm.ir.transform.PassContext.list_configs())
    bare = name.removeprefix("tir.")
    for candidate in (_RENAMED.get(name, name), f"tirx.{bare}", f"s_tir.{bare}"):
        if candidate in known:
            return candidate
    raise OptionError(f"config {name!r}: TVM has no such option any more; leave it out")


def ToMixedPrecision(*_arguments: object) -> None:
    """Relay's pass to float16: not offered.

    Raises:
        RemovedError: always.
    """
    raise RemovedError(
        "relay.transform.ToMixedPrecision is not offered: convert the ONNX model to float16, "
        "for example by onnxconverter-common"
    )


def _unchanged(*_options: object, **_more: object) -> Callable[[Module], Module]:
    return lambda module: module


def __getattr__(name: str) -> object:
    if name in _PRESERVING:
        return _unchanged
    if name.startswith("__"):
        raise AttributeError(name)
    raise removed(f"relay.transform.{name}")
