"""Converters for matrix products: MatMul and Gemm as relax.matmul, Einsum."""

from itertools import combinations
from math import prod

import numpy as np
from tvm import relax

from tvm_ext.ops import arithmetic
from tvm_ext.ops.einsum import einsum, extents, result_labels

from ..broadcasting import MISFIT, demanded_dims, emit_broadcast
from ..precision import accumulator, cast, constant
from ..table import converter
from .shape import reshaped


@converter("MatMul", 1, 9, 13)
def matmul(bb, a, b):
    dtype = bb.dtype(a)
    return cast(bb, product(bb, a, b), dtype)


def product(bb, a, b):
    """``a @ b`` with numpy's rules, in the type its sums run in."""
    dtype = accumulator(bb.dtype(a))
    a, b = _of_one_depth(bb, a, b)
    result = relax.op.matmul(a, b, None if dtype == bb.dtype(a) else dtype)
    result = bb.bb.normalize(result)
    if result.ty.shape is not None:
        return bb.emit(result)
    # Which dims are stretched is known only at run time.
    return _einsum(bb, _equation(bb.rank(a), bb.rank(b)), cast(bb, a, dtype), cast(bb, b, dtype))


def _of_one_depth(bb, a, b):
    """The factors, whose inner dims agree; at run time, where that is when they are known.

    Not where masks have chosen one of them: fusion recognises attention by the keys themselves.
    """
    left, right = bb.shape(a), bb.shape(b)
    inner = max(len(right) - 2, 0)
    if not left or not right or bb.is_measured(left[-1]) or bb.is_measured(right[inner]):
        return a, b
    if isinstance(right[inner], int):
        return bb.of_shape(a, [*left[:-1], right[inner]]), b
    return a, bb.of_shape(b, [*right[:inner], left[-1], *right[inner + 1 :]])


def _equation(left, right):
    """The product of tensors of these ranks as an einsum."""
    rows, columns = "i" if left > 1 else "", "j" if right > 1 else ""
    a = f"...{rows}k" if left > 2 else f"{rows}k"
    b = f"...k{columns}" if right > 2 else f"k{columns}"
    batch = "..." if left > 2 or right > 2 else ""
    return f"{a},{b}->{batch}{rows}{columns}"


@converter("Gemm", 7, 9, 11, 13)
@converter("Gemm", 1, domain="tvm_ext")
def gemm(bb, a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
    dtype = bb.dtype(a)
    if "int" in dtype and not (float(alpha).is_integer() and float(beta).is_integer()):
        raise NotImplementedError(f"alpha {alpha}, beta {beta} with {dtype}")
    a = transposed(bb, a) if transA else a
    b = transposed(bb, b) if transB else b
    if constant(bb, b) is not None:  # the scale moves into the weights
        y = product(bb, a, _scaled(bb, b, alpha))
    else:
        y = _scaled(bb, product(bb, a, b), alpha)
    if c is not None and beta != 0:
        bias = _scaled(bb, cast(bb, c, bb.dtype(y)), beta)
        y = emit_broadcast(bb, relax.op.add, arithmetic.add, y, bias)
    return cast(bb, y, dtype)


@converter("Gemm", 1, 6)
def gemm_1(bb, a, b, c, *, alpha=1.0, beta=1.0, broadcast=0, transA=0, transB=0):
    """``broadcast`` only permits what later versions always do."""
    return gemm(bb, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)


def transposed(bb, matrix):
    """``matrix.T``; a constant is transposed now."""
    array = constant(bb, matrix)
    if array is not None:
        return bb.const(np.ascontiguousarray(array.T))
    return bb.emit(relax.op.permute_dims(matrix, [1, 0]))


def _scaled(bb, x, factor):
    """``factor * x``; a constant is scaled now, in float64."""
    if factor == 1:
        return x
    array, dtype = constant(bb, x), bb.dtype(x)
    if array is None:
        return bb.emit(relax.op.multiply(x, bb.const(np.asarray(factor).astype(dtype))))
    wide = array.astype("int64" if array.dtype.kind in "iu" else "float64")
    return bb.const((wide * wide.dtype.type(factor)).astype(array.dtype))


@converter("Einsum", 12, 28)
def einsum_(bb, *inputs, equation):
    labels, output = result_labels(equation, [bb.rank(x) for x in inputs])
    terms = [_Term(bb, x, own) for x, own in zip(inputs, labels, strict=True)]
    if not _are_products(bb, terms, output):
        return _einsum(bb, equation, *inputs)
    dtype = bb.dtype(inputs[0])
    terms = [_Term(bb, cast(bb, term.x, accumulator(dtype)), term.labels) for term in terms]
    while len(terms) > 1:
        a, b = _cheapest(terms, output)
        rest = [term for term in terms if term is not a and term is not b]
        wanted = {*output, *(label for term in rest for label in term.labels)}
        terms = [*rest, _contracted(bb, a, b, wanted, output)]
    return cast(bb, terms[0].in_order(bb, output), dtype)


# So many multiply-adds are worth kernels that bring the operands of a product into order.
_WORK = 1 << 16


class _Term:
    """An operand of an einsum; ``sizes`` maps its labels to their dims."""

    def __init__(self, bb, x, labels):
        self.x, self.labels = x, list(labels)
        self.sizes = dict(zip(labels, bb.shape(x), strict=True))

    def in_order(self, bb, labels):
        """Its tensor with the axes of ``labels``, which are its own."""
        order = [self.labels.index(label) for label in labels]
        in_place = order == list(range(len(order)))
        return self.x if in_place else bb.emit(relax.op.permute_dims(self.x, order))

    def without(self, bb, kept):
        """The sum over all labels but those ``kept``."""
        axes = [k for k, label in enumerate(self.labels) if label not in kept]
        if not axes:
            return self
        left = [label for label in self.labels if label in kept]
        return _Term(bb, bb.emit(relax.op.sum(self.x, axes)), left)

    def grouped(self, bb, *groups):
        """Its tensor with one axis for each group of labels."""
        x = self.in_order(bb, [label for group in groups for label in group])
        return reshaped(bb, x, [_size(bb, self.sizes, group) for group in groups])


def _size(bb, sizes, labels):
    return bb.simplify(prod(sizes[label] for label in labels))


def _are_products(bb, terms, output):
    """Is each a tensor of floats without a label twice, with dims that are known to agree?

    Small ones are left in one kernel, and so are those that sum nothing.
    """
    sizes = {}
    for term in terms:
        if len(set(term.labels)) < len(term.labels) or "float" not in bb.dtype(term.x):
            return False
        for label, dim in term.sizes.items():
            if not bb.equal(sizes.setdefault(label, dim), dim):
                return False
    work = prod(sizes.values())
    is_large = not isinstance(work, int) or work >= _WORK
    return len(terms) > 1 and is_large and set(output) < set(sizes)


def _cheapest(terms, output):
    """The two terms whose product is least; the first ones, where sizes are symbolic."""
    pairs = list(combinations(terms, 2))

    def elements(pair):
        a, b = pair
        others = {label for term in terms if term not in pair for label in term.labels}
        sizes = {k: n for k, n in (a.sizes | b.sizes).items() if k in others or k in output}
        total = prod(sizes.values())
        return total if isinstance(total, int) else 0

    return min(pairs, key=elements)


def _contracted(bb, a, b, wanted, output):
    """The product of two terms, summed over the labels that nothing else has, as a matmul."""
    a = a.without(bb, {*wanted, *b.labels})
    b = b.without(bb, {*wanted, *a.labels})
    order = {label: k for k, label in enumerate(output)}

    def among(term, *conditions):
        found = [label for label in term.labels if all(c(label) for c in conditions)]
        return sorted(found, key=lambda label: order.get(label, len(order)))

    def shared(label):
        return label in a.labels and label in b.labels

    batch = among(a, shared, wanted.__contains__)
    summed = [label for label in b.labels if shared(label) and label not in wanted]
    rows, columns = (among(term, lambda label: not shared(label)) for term in (a, b))
    if rows and columns and order.get(rows[0], 0) > order.get(columns[0], 0):
        (a, rows), (b, columns) = (b, columns), (a, rows)
    left = a.grouped(bb, batch, rows, summed)
    y = bb.emit(relax.op.matmul(left, b.grouped(bb, batch, summed, columns)))
    labels = [*batch, *rows, *columns]
    sizes = a.sizes | b.sizes
    return _Term(bb, reshaped(bb, y, [sizes[label] for label in labels]), labels)


def _einsum(bb, equation, *inputs):
    """One kernel, behind run-time checks where the dims of a label are not known to agree."""
    labels, output = result_labels(equation, [bb.rank(x) for x in inputs])
    sizes = extents(labels, [bb.shape(x) for x in inputs])
    for x, own in zip(inputs, labels, strict=True):
        wanted = demanded_dims(bb, bb.shape(x), [sizes[label] for label in own])
        if wanted is not None:
            bb.demand(x, wanted, MISFIT)
    return bb.emit_te(einsum, labels, output, *inputs)
