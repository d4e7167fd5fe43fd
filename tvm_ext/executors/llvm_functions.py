"""Functions that kernels bring along as LLVM's text, for what TVM has no expression for."""

from collections.abc import Iterable

from tvm import tirx
from tvm.ir import StringImm
from tvm.target import Target, codegen

__all__ = ["has_feature", "with_functions"]


def with_functions(function: tirx.PrimFunc, texts: Iterable[str]) -> tirx.PrimFunc:
    """``function`` with what ``texts`` define linked into its module, if there are any."""
    texts, body = list(texts), function.body
    for text in texts:
        body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", StringImm(text), body)
    return function.with_body(body) if texts else function


def has_feature(target: Target | None, feature: str) -> bool:
    """Whether the CPU of ``target`` has ``feature``, as LLVM calls it."""
    return target is not None and bool(codegen.target_has_features(feature, target))
