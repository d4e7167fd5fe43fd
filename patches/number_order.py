"""Kernels take the sizes that no operand has as a dim in the order in which they use them.

Where a shape is a formula, as ``(h + 1) // 2``, TVM makes parameters of its variables, in the order
of a set: of addresses in memory. Builds of one model then differ, and so do kernels that are the
same but for that, which are compiled each by itself. Within ::

    with numbers_in_order():
        builder.emit_te(resize, x)

each has one order, which depends on nothing but what it computes.

Upstream: ``_get_unbound_tir_vars`` in ``tvm/relax/utils.py`` (0.27).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

from tvm import relax, tirx
from tvm.relax import block_builder
from tvm.relax.transform.legalize_ops import manipulate

from tvm_ext.passes.facts import ordered_numbers

from .replacement import of_attribute

__all__ = ["numbers_in_order"]

Made = tuple[tirx.PrimFunc, list[relax.Expr], object]


@contextmanager
def numbers_in_order() -> Iterator[None]:
    """A context, for the whole process, in which kernels made of tensor expressions are so."""
    built, legalised = _MAKERS
    with built.open(), legalised.open():
        yield


def _ordered(make: Callable[..., Made]) -> Callable[..., Made]:
    @wraps(make)
    def made(*args: object, **options: object) -> Made:
        kernel, operands, result = make(*args, **options)
        places = [k for k, param in enumerate(kernel.params) if not tirx.is_buffer_var(param)]
        if len(places) > 1:
            kernel, order = ordered_numbers(kernel)
            operands = [*operands]  # the numbers are last
            operands[places[0] :] = [operands[places[k]] for k in order]
        return kernel, operands, result

    return made


# Where TVM calls it by a name of its own.
_MAKERS = tuple(
    of_attribute(module, "gen_call_tir_inputs", _ordered) for module in (block_builder, manipulate)
)
