"""Einstein summation: ellipses, repeated labels within an operand, any number of operands."""

from tvm import te

from .elementwise import broadcast_dim, broadcast_index

__all__ = ["einsum", "extents", "result_labels"]


def result_labels(equation, ranks):
    """The labels of the operands and of the result, one per axis.

    An ellipsis stands for axes numbered from the right: (0,) is the last of them.

    Raises:
        NotImplementedError: the equation does not fit the ranks.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise NotImplementedError(f"equation {equation!r} has {len(terms)} terms, not {len(ranks)}")
    hidden = [
        rank - len(term.replace("...", "")) if "..." in term else 0
        for term, rank in zip(terms, ranks, strict=True)
    ]
    labels = [_expanded(term, count) for term, count in zip(terms, hidden, strict=True)]
    if [len(own) for own in labels] != list(ranks):
        raise NotImplementedError(f"equation {equation!r} does not fit ranks {list(ranks)}")
    widest = max(hidden)
    if arrow:
        output = _expanded(right, widest)
    else:
        seen = [label for own in labels for label in own if isinstance(label, str)]
        output = _expanded("...", widest) + sorted(s for s in set(seen) if seen.count(s) == 1)
    if any(label not in {o for own in labels for o in own} for label in output):
        raise NotImplementedError(f"equation {equation!r}: unknown label in the result")
    return labels, output


def _expanded(term, count):
    """``"a...b"`` with 2 hidden axes -> ``["a", (1,), (0,), "b"]``."""
    before, dots, after = term.partition("...")
    hidden = [(k,) for k in reversed(range(count))] if dots else []
    return [*before, *hidden, *after]


def einsum(labels, output, *operands):
    """Multiply the operands and sum over every label that ``output`` lacks.

    ``labels[k]`` names the axes of ``operands[k]``; dims of one label are equal or 1, perhaps
    known only at run time.
    Sums run in float32 for narrow floats; the result has the type of the operands.
    """
    dtype = operands[0].dtype
    wide = "float32" if str(dtype) in ("float16", "bfloat16") else dtype
    extent = extents(labels, [operand.shape for operand in operands])
    summed = [label for label in extent if label not in output]
    axes = [te.reduce_axis((0, extent[label]), f"r{k}") for k, label in enumerate(summed)]

    def term(*position):
        at = dict(zip([*output, *summed], [*position, *axes], strict=True))
        value = None
        for own, operand in zip(labels, operands, strict=True):
            index = [
                broadcast_index(dim, at[label], extent[label])
                for label, dim in zip(own, operand.shape, strict=True)
            ]
            factor = operand(*index).astype(wide)
            value = factor if value is None else value * factor
        return te.sum(value, axis=axes) if axes else value.astype(dtype)

    shape = [extent[label] for label in output]
    total = te.compute(shape, term, "einsum")
    if wide == dtype or not axes:
        return total
    return te.compute(shape, lambda *i: total(*i).astype(dtype), "einsum_narrow")


def extents(labels, shapes):
    """How many values each label takes: the broadcast of the dims that it names."""
    result = {}
    for own, shape in zip(labels, shapes, strict=True):
        for label, dim in zip(own, shape, strict=True):
            result[label] = broadcast_dim(result.get(label, 1), dim)
    return result
