"""Products of 8-bit integers whose weights are 8 bits wide, but not those of an int8.

``w - zero`` of uint8 weights spans 256 numbers around another centre than that of int8.

Before: ``y = R.matmul(x, w)``                      int32, w constant
After:  ``y = R.matmul(x, w - c) + R.sum(x) * c``   with the sum of each row

Before: ``y = R.nn.conv2d(x, w)``
After:  ``y = R.nn.conv2d(x, w - c) - R.nn.conv2d(R.nn.conv2d(x, -c), 1)``, pixels, then windows

The first is a product with weights of 8 signed bits. Of one channel per group the sums would be as
much work: :mod:`.integer_products` takes such weights as they are.
"""

import numpy as np
import tvm
from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from .facts import dtype_of
from .graph import visited

__all__ = ["signed_weights"]

_LOW, _HIGH = -128, 127


@tvm.transform.module_pass(opt_level=0, name="SignedWeights")
def signed_weights(module, _context):
    """The module pass."""
    return visited(module, _SignedWeights(module))


@mutator
class _SignedWeights(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not _is_product(call):
            return call
        weight = call.args[1].value.numpy()
        centre = _centre(weight)
        if centre is None:
            return call
        whole = self._again(call, call.args[0], weight - centre)
        return (self._plus_rows if weight.ndim == 2 else self._plus_windows)(call, whole, centre)

    def _plus_rows(self, call: relax.Call, whole: relax.Var, centre: int) -> relax.Expr:
        rows = self.builder_.emit(relax.op.sum(call.args[0], -1, keepdims=True))
        moved = self.builder_.emit(relax.op.multiply(rows, _const(np.array([centre]))))
        return relax.op.add(whole, moved)

    def _plus_windows(self, call: relax.Call, whole: relax.Var, centre: int) -> relax.Expr:
        _, channels, *window = call.args[1].value.numpy().shape
        pixel = np.full((1, channels, 1, 1), -centre)
        moved = self.builder_.emit(relax.op.nn.conv2d(call.args[0], _const(pixel)))
        if _reaches(call, window):
            moved = self._again(call, moved, np.ones((1, 1, *window)))
        return relax.op.subtract(whole, moved)

    def _again(self, call: relax.Call, x: relax.Expr, weight: np.ndarray) -> relax.Var:
        """``call`` of other operands."""
        again = relax.Call(call.op, [x, _const(weight)], call.attrs, call.ty_args)
        return self.builder_.emit(again)


def _reaches(call: relax.Call, window: list[int]) -> bool:
    """Whether a convolution reads other pixels than the one that it gives."""
    steps = [*map(int, call.attrs.strides)]
    return any(d != 1 for d in (*window, *steps)) or any(map(int, call.attrs.padding))


def _is_product(call: relax.Call) -> bool:
    """Whether ``call`` is an int32 product with constant weights that all outputs share."""
    name = getattr(call.op, "name", "")
    if name not in ("relax.matmul", "relax.nn.conv2d") or dtype_of(call) != "int32":
        return False
    if not isinstance(call.args[1], GenericConst):
        return False
    if name == "relax.matmul":
        return call.args[1].ty.ndim == 2 and call.args[0].ty.ndim > 1
    layouts = call.attrs.data_layout, call.attrs.kernel_layout
    return layouts == ("NCHW", "OIHW") and int(call.attrs.groups) == 1


def _centre(weight: np.ndarray) -> int | None:
    """What to subtract for the weights to fit int8; None where they do, or never will."""
    if weight.size == 0:
        return None
    low, high = int(weight.min()), int(weight.max())
    if high - low > _HIGH - _LOW or (_LOW <= low and high <= _HIGH):
        return None
    return high - _HIGH if high > _HIGH else low - _LOW


def _const(array: np.ndarray) -> relax.Expr:
    return relax.const(array.astype("int32"), "int32")
