"""Elements of small tensors as formulas: lengths that a model is given as numbers.

A cache says by an input how many keys count; kernels make of that the size of the next cache. What
such a kernel stores is read from its body, down to elements of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import IRModule, ir, relax, tirx
from tvm.ir import GlobalVar, Op
from tvm.ir.expr import GenericConst
from tvm.sym import Analyzer

from .formulas import NotStatic
from .walk import arguments

__all__ = ["Elements"]


class Elements:
    """Elements of what the bindings of ``main`` define, as formulas of sizes and of ``held``.

    Attributes:
        inputs: the number of each input.
        values: what each variable so far is bound to.
        held: the variable for an element of an input, by the input and the place in it.
    """

    def __init__(self, module: IRModule, resolved: Callable[[tirx.Expr], Any]):
        self._module = module
        self._resolved = resolved
        self.inputs: dict[relax.Var, int] = {}
        self.values: dict[relax.Var, relax.Expr] = {}
        self.held: dict[tuple[int, int], tirx.Var] = {}

    def vector(self, tensor: relax.Expr) -> list[tirx.Expr]:
        """All elements of a vector of integers.

        Raises:
            NotStatic: they follow from more than a few integers of the inputs.
        """
        shape = tensor.ty.shape.values if tensor.ty.shape is not None else [None]
        if len(shape) != 1 or not isinstance(shape[0], tirx.IntImm):
            raise NotStatic("a shape of unknown rank")
        return [self._element(tensor, place) for place in range(int(shape[0]))]

    def scalar(self, tensor: relax.Expr) -> tirx.Expr:
        """The element of a tensor that has one.

        Raises:
            NotStatic: it follows from more than a few integers of the inputs.
        """
        return self._element(tensor, 0)

    def _element(self, tensor: relax.Expr, place: int) -> tirx.Expr:
        """One element, by its place in memory."""
        if not str(tensor.ty.dtype.dtype).startswith("int"):
            raise NotStatic("a shape that is no integers")
        if isinstance(tensor, GenericConst):
            if not 0 <= place < tensor.value.numpy().size:
                raise NotStatic("a shape that follows from an element that is not there")
            return tirx.const(int(tensor.value.numpy().flat[place]), "int64")
        if tensor in self.inputs:
            at = self.inputs[tensor], place
            return self.held.setdefault(at, tirx.Var(f"h{len(self.held)}", "int64"))
        value = self.values.get(tensor)
        if isinstance(value, relax.Var):
            return self._element(value, place)
        if isinstance(value, relax.Call) and value.op == _RESHAPE:
            return self._element(value.args[0], place)
        if isinstance(value, relax.Call) and isinstance(value.args[0], GlobalVar):
            return self._stored(value, place)
        raise NotStatic("a shape that no kernel computes")

    def _stored(self, call: relax.Call, place: int) -> tirx.Expr:
        """What a kernel with one result stores there."""
        func = self._module[call.args[0]]
        tensors, numbers = arguments(call)
        buffers = [param for param in func.params if tirx.is_buffer_var(param)]
        scalars = [param for param in func.params if not tirx.is_buffer_var(param)]
        stores: list[tirx.BufferStore] = []
        choices: list[tirx.IfThenElse] = []
        tvm_ffi.structural_walk(
            func.body, [(tirx.BufferStore, stores.append), (tirx.IfThenElse, choices.append)]
        )
        one = len(stores) == 1 and len(buffers) == len(tensors) + 1
        if choices or not one or len(scalars) != len(numbers):
            raise NotStatic("a shape that a kernel computes in steps")
        known = dict(zip(scalars, map(self._number, numbers), strict=True))
        known |= self._dims(buffers[:-1], tensors)
        known |= _place(stores[0].indices, place)

        def load(node: ir.TensorLoad) -> tirx.Expr:
            source = next((k for k, b in enumerate(buffers[:-1]) if b.same_as(node.source)), None)
            if source is None:
                raise NotStatic("a shape that a kernel computes from its own result")
            at = _flat(node.indices, buffers[source].ty.shape)
            return self._element(tensors[source], at).astype(str(node.ty.dtype))

        value = tvm_ffi.structural_map(stores[0].value, (tirx.Var, lambda v: known.get(v, v)))
        value = tvm_ffi.structural_map(value, (ir.TensorLoad, load))
        value = tvm_ffi.structural_map(value, (ir.Call, _shown))
        return _short(_ANALYZER.simplify(value.astype("int64")))

    def _number(self, number: relax.Expr) -> tirx.Expr:
        if isinstance(number, relax.ShapeExpr):
            raise NotStatic("a shape that follows from shapes")
        return _formula(self._resolved(number))

    def _dims(
        self, buffers: Sequence[tirx.Var], tensors: Sequence[relax.Expr]
    ) -> dict[tirx.Var, tirx.Expr]:
        """The dims that a kernel knows by the shapes of its operands."""
        return {
            dim: _formula(self._resolved(size))
            for buffer, tensor in zip(buffers, tensors, strict=True)
            for dim, size in zip(buffer.ty.shape, tensor.ty.shape.values, strict=True)
            if isinstance(dim, tirx.Var)
        }


def _formula(size: tirx.Expr | int) -> tirx.Expr:
    """``size`` in the type of all sizes, in which a kernel compares it with others."""
    return tirx.const(size, "int64") if isinstance(size, int) else size


def _place(indices: Sequence[tirx.Expr], place: int) -> dict[tirx.Var, tirx.Expr]:
    """The variable of the index of a vector, or of a single element."""
    if all(isinstance(index, tirx.IntImm) for index in indices) and place == 0:
        return {}
    if len(indices) != 1 or not isinstance(indices[0], tirx.Var):
        raise NotStatic("a shape that a kernel computes in parts")
    return {indices[0]: tirx.const(place, indices[0].ty)}


def _shown(call: ir.Call) -> tirx.Expr:
    """What a kernel computes behind the back of TVM's simplifier: integers that may wrap."""
    hidden = isinstance(call.op, Op) and call.op.name == "tirx.tvm_ext.value"
    return call.args[0] if hidden else call


def _short(formula: tirx.Expr) -> tirx.Expr:
    """``formula``, which others are made of: sizes of broadcasts would double at each step."""
    parts: list[tirx.Expr] = []
    tvm_ffi.structural_walk(formula, (tirx.Expr, parts.append))
    if len(parts) > _LONGEST:
        raise NotStatic("a shape of a long formula")
    return formula


def _flat(indices: Sequence[tirx.Expr], shape: Sequence[tirx.Expr]) -> int:
    """The place of an element whose index is known."""
    place = tirx.const(0, "int64")
    for index, extent in zip(indices, shape, strict=True):
        place = place * extent + index
    place = _ANALYZER.simplify(place)
    if not isinstance(place, tirx.IntImm):
        raise NotStatic("a shape that follows from an element found at run time")
    return int(place)


_LONGEST = 100  # parts of a formula
tvm_ffi.register_error("NotStatic", NotStatic)  # raised in the walks of TVM, too
_ANALYZER = Analyzer()
_RESHAPE = Op.get("relax.reshape")
