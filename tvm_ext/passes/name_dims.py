"""Kernels call dims of their operands that are quotients by names of their own.

Index arithmetic is about names then, not about what each pool or stride before has left of a size,
and kernels that differ only in that are one. What follows from the dims of former operands stays a
formula of them.

Before: ``conv(x: [n, (h - 1) // 8 + 1], h: int64, y: [n, (h - 1) // 16 + 1])``
After:  ``conv(x: [n, d0], h: int64, y: [n, (d0 + 1) // 2])``, which uses ``h`` no more
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr

from .facts import allocated

__all__ = ["name_dims"]


@tvm.transform.module_pass(opt_level=0, name="NameDims")
def name_dims(module, _context):
    """The module pass, between FuseTIR and OrderNumbers."""
    for symbol, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc):
            module.update_func(symbol, _named(func))
    return module


def _named(func: tirx.PrimFunc) -> tirx.PrimFunc:
    names = _Names()
    buffers = [param for param in func.params if tirx.is_buffer_var(param)]
    for buffer in buffers:
        for dim in buffer.ty.shape:
            names.add(dim)
    if not names.fresh:
        return func
    own = {buffer: names.retyped(buffer) for buffer in [*buffers, *allocated(func.body)]}
    steps = [(tirx.Var, lambda var: own.get(var, var)), (_FORMULAS, names.told)]
    body = tvm_ffi.structural_map(func.body, steps)
    params = [own.get(param, param) for param in func.params]
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


_FORMULAS = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod),
    *(tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max, tirx.Select),
)


class _Names:
    """What is known of dims: formulas that have names, or are told by those that have."""

    def __init__(self) -> None:
        self.fresh: set[tirx.Var] = set()
        self._dims: set[tirx.Var] = set()  # that an operand has as they are
        self._terms: dict[Any, Expr] = {}
        self._quotients: dict[Any, list[tuple[int, int, Expr]]] = {}

    def add(self, dim: Expr) -> None:
        """Name a dim that is a quotient and does not follow from dims that were added before.

        Of a multiple of a size it is the size that others are simplified to: that has no name.
        """
        if isinstance(dim, tirx.Var):
            self._dims.add(dim)
        told = self.tell(dim)
        if set(tirx.analysis.undefined_vars(told, [])) <= self._dims | self.fresh:
            return
        term, apart = _parts(told)
        if not isinstance(term, tirx.FloorDiv) or not isinstance(term.b, tirx.IntImm):
            return
        name = tirx.Var(f"d{len(self.fresh)}", dim.ty)
        self.fresh.add(name)
        self._terms[_key(told)] = name
        self._terms[_key(term)] = rest = _plus(name, -apart)
        whole, offset = _parts(term.a)
        known = self._quotients.setdefault(_key(whole), [])
        known.append((offset, int(term.b), rest))

    def tell(self, formula: Any) -> Any:
        """``formula`` by the names that there are."""
        return tvm_ffi.structural_map(formula, (_FORMULAS, self.told))

    def told(self, node: Expr) -> Expr:
        """A formula of parts that are told already."""
        known = self._terms.get(_key(node))
        if known is not None:
            return known
        if isinstance(node, tirx.FloorDiv) and isinstance(node.b, tirx.IntImm):
            whole, offset = _parts(node.a)
            for own, divisor, quotient in self._quotients.get(_key(whole), ()):
                apart = offset - own
                # (x + a * c) // (a * b) == (x // a + c) // b
                if int(node.b) % divisor == 0 and apart % divisor == 0:
                    whole, offset = _parts(quotient)
                    shifted = _plus(whole, offset + apart // divisor)
                    return tirx.floordiv(shifted, int(node.b) // divisor)
        return self._summed(node)

    def _summed(self, node: Expr) -> Expr:
        """``name - 1 + 1`` as ``name``; ``(name - 1) // 4 + 1`` as ``(name + 3) // 4``, and
        multiples of that likewise: TVM then simplifies both alike."""
        term, apart = _parts(node)
        if term in self.fresh:
            return _plus(term, apart)
        quotient, times = _factors(term)
        if apart % times == 0 and isinstance(quotient, tirx.FloorDiv):
            name, offset = _parts(quotient.a)
            if name in self.fresh and isinstance(quotient.b, tirx.IntImm):
                shifted = _plus(name, offset + apart // times * int(quotient.b))
                return _times(tirx.floordiv(shifted, quotient.b), times)
        return node

    def retyped(self, buffer: tirx.Var) -> tirx.Var:
        """``buffer`` with its shape told."""
        shape = [self.tell(dim) for dim in buffer.ty.shape]
        if all(new.same_as(old) for new, old in zip(shape, buffer.ty.shape, strict=True)):
            return buffer
        dtype, scope = str(buffer.ty.dtype.dtype), buffer.scope()
        return tirx.decl_buffer(shape, dtype, buffer.name, scope=scope)


def _key(formula: Expr) -> Any:
    return tvm_ffi.StructuralKey(formula)  # type: ignore[call-arg]


def _parts(formula: Expr) -> tuple[Expr, int]:
    """A formula as a term and the number that is added to it."""
    apart = 0
    while isinstance(formula, tirx.Add | tirx.Sub):
        sign = 1 if isinstance(formula, tirx.Add) else -1
        if isinstance(formula.b, tirx.IntImm):
            apart += sign * int(formula.b)
            formula = formula.a
        elif sign == 1 and isinstance(formula.a, tirx.IntImm):
            apart += int(formula.a)
            formula = formula.b
        else:
            break
    return formula, apart


def _plus(term: Expr, number: int) -> Expr:
    apart = tirx.const(abs(number), str(term.ty.dtype))
    return term if number == 0 else term + apart if number > 0 else term - apart


def _factors(term: Expr) -> tuple[Expr, int]:
    """A term as another and the number that this is multiplied by, 1 where there is none."""
    if isinstance(term, tirx.Mul):
        for factor, other in ((term.a, term.b), (term.b, term.a)):
            if isinstance(other, tirx.IntImm) and int(other) > 0:
                return factor, int(other)
    return term, 1


def _times(term: Expr, number: int) -> Expr:
    return term if number == 1 else term * tirx.const(number, str(term.ty.dtype))
