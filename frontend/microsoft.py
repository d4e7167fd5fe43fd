"""The domain of onnxruntime's own operators, which its optimiser writes into models.

onnx has no schema of them: a converter's signature is that of onnxruntime's.
"""

from collections.abc import Callable

from tvm import relax

from tvm_ext.ops import activation
from tvm_ext.ops.math import tanh

from .builder import Builder
from .table import Converter, converter

__all__ = ["DOMAIN", "activated", "microsoft"]

DOMAIN = "com.microsoft"


def microsoft(op_type: str) -> Callable[[Converter], Converter]:
    """Register the converter of an operator of the domain."""
    return converter(op_type, 1, domain=DOMAIN)


def activated(
    bb: Builder, y: relax.Expr, function: str | None, params: tuple[float | None, ...]
) -> relax.Expr:
    """The activation that a fused operator ends in; ``params`` are its alpha and beta.

    Raises:
        NotImplementedError: it is unknown.
    """
    given = [value for value in params if value is not None]
    names = dict(zip(("alpha", "beta"), given, strict=False))
    match function or "":
        case "":
            return y
        case "Relu":
            return bb.emit_te(activation.relu, y)
        case "Sigmoid":
            return bb.emit_te(activation.sigmoid, y)
        case "Tanh":
            return bb.emit_te(tanh, y)
        case "LeakyRelu":
            return bb.emit_te(activation.leaky_relu, y, **({"alpha": 0.01} | names))
        case "HardSigmoid":
            return bb.emit_te(activation.hard_sigmoid, y, **({"alpha": 0.2, "beta": 0.5} | names))
        case "Clip" if len(given) == 2:
            return bb.emit(relax.op.clip(y, *given))
    raise NotImplementedError(f"activation {function} of {given}")
