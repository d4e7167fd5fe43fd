"""Positions of extreme elements, and the largest elements themselves."""

from tvm import relax, tirx

from tvm_ext.ops.search import arg_extremum

from ..axes import placed
from ..run_time import demand_range
from ..table import converter
from .selection import comparable, compared, leading
from .shape import merged, reshaped, scalar, te_sizes


def _register_arg(op_type, largest):
    @converter(op_type, 12, 13)
    def arg(bb, data, *, axis=0, keepdims=1, select_last_index=0):
        axis, shape = placed(axis, bb.rank(data)), bb.shape(data)
        before, after = shape[:axis], shape[axis + 1 :]
        flat, labels = merged(bb, data, [*(0 for _ in before), 1, *(2 for _ in after)])
        along = labels.index(1), bool(keepdims), largest, bool(select_last_index)
        y = bb.emit_te(arg_extremum, flat, *along)
        kept = [1] if keepdims else []
        return y if flat is data else reshaped(bb, y, [*before, *kept, *after])

    @converter(op_type, 1, 11)
    def arg_1(bb, data, *, axis=0, keepdims=1):
        return arg(bb, data, axis=axis, keepdims=keepdims)


_register_arg("ArgMax", largest=True)
_register_arg("ArgMin", largest=False)


@converter("TopK", 11, 24)
def top_k(bb, x, k, *, axis=-1, largest=1, sorted=1):
    # A sorted result serves sorted=0 too: its order is then undefined.
    return largest_of(bb, x, scalar(bb, k, "k"), axis, bool(largest))


@converter("TopK", 10)
def top_k_10(bb, x, k, *, axis=-1):
    return largest_of(bb, x, scalar(bb, k, "k"), axis)


@converter("TopK", 1)
def top_k_1(bb, x, *, axis=-1, k):
    return largest_of(bb, x, k, axis)


def largest_of(bb, x, k, axis, largest=True):
    """Values and places of the ``k`` largest, or smallest, in order; ``k`` is an int or a dim."""
    axis = placed(axis, bb.rank(x))
    along = bb.shape(x)[axis]
    if isinstance(k, int) and not 0 <= k <= (along if isinstance(along, int) else k):
        raise ValueError(f"the {k} largest of {along} elements")
    demand_range(bb, k, "k", most=along)
    static, keys = isinstance(k, int) and k > 0, comparable(bb, x)
    both = bb.emit(relax.op.topk(keys, k if static else -1, axis, "both", largest, "int64"))
    values, places = (bb.emit(relax.TupleGetItem(both, which)) for which in range(2))
    values = compared(bb, values, bb.dtype(x))
    if static:
        return values, places
    count = bb.simplify(tirx.min(*te_sizes([k, along])))
    return leading(bb, values, count, axis), leading(bb, places, count, axis)
