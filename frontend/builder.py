"""What a converter emits into: a Relax block, plus what is known at compile time."""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

import numpy as np
import onnx_ir as ir
import tvm_ffi
from tvm import relax, te, tirx
from tvm.ir.expr import GenericConst
from tvm.sym import Analyzer, ConstIntBound

from tvm_ext.checks import quoted
from tvm_ext.interface import ValueType
from tvm_ext.ops.narrow import STORAGE, STRING, stored
from tvm_ext.strings import StringTable

from .kernel_reads import lengths_read
from .known import Known, as_expr, simplified
from .limits import Limits
from .refusal import UnknownRank, refusal
from .table import lookup

__all__ = ["Builder", "Dim"]

Dim = int | tirx.Expr

# Operators whose result has the shape of their first input.
_MAPS = frozenset({"Abs", "Cast", "CastLike", "Exp", "Identity", "Log", "Neg", "Relu", "Sigmoid",
                   "Sqrt", "Tanh"})  # fmt: skip

_DIFFERS = "is {given}, not {wanted}"  # told of an axis

_LARGEST_DIM = 1 << 40  # more than memory holds; products of two still fit int64


class Builder:
    """Emits Relax for one ONNX graph.

    ``node`` is the ONNX node being converted. ``static`` answers what is known about a value at
    compile time: constants, and integer tensors computed from shapes, whose elements may be
    symbolic dims.
    """

    def __init__(self, opsets: dict[str, int], limits: Limits | None = None):
        self.bb = relax.BlockBuilder()
        self.opsets = opsets
        self.limits = limits or Limits()
        self.node: ir.Node | None = None
        self.walk: object = None  # the graph walk, which converts subgraphs
        self.origin: dict[str, ir.Node] = {}  # variable name -> the node that emitted it
        self.scope = ""  # in front of those names: the function, outside of main, and a dot
        self.kernel_attrs: dict[str, object] = {}  # of the kernels that emit_te makes
        self.kinds: dict[relax.Expr, ValueType] = {}  # of values that are no tensors to Relax
        self.labels: dict[relax.Expr, tuple] = {}  # of columns: a row [C] stands for a map
        self.contradictions: dict[ir.Value, list] = {}  # declared wrongly: the dims that they have
        self.not_one: list[tirx.Var] = []  # dims that are taken to be other than 1
        self.checks: list[list[str]] = []  # what they tell: see ``tvm_ext.checks``
        self.strings = StringTable()
        self.holds_strings = False
        self._known: dict[relax.Var, Known] = {}
        self._elements: dict[relax.Expr, str] = {}  # where it is not the Relax type
        self._dim_names: Counter[str] = Counter()
        self._fresh: set[tirx.Var] = set()  # dims that nothing defines so far
        self._chosen: dict[str, tirx.Expr] = {}  # formula -> the dim that is its value
        self._sizes: set[str] = set()  # formulas that are asserted to be no less than 0
        self._late: list[tuple[ir.Node | None, Callable[[], None]]] = []  # see ``later``
        self.seen: dict[Hashable, relax.Var] = {}  # verdicts, by what they are of
        self._analyzer = Analyzer()

    # --- emission -------------------------------------------------------------------------

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind ``expr`` to a variable named after the ONNX output it serves."""
        expr = self.bb.normalize(expr)
        self._check_sizes(expr.ty)
        var = self.bb.emit(expr, self._hint())
        return self._trace(var)

    def _check_sizes(self, ty: relax.Type) -> None:
        """Assert at run time that no dim is less than 0, as that of images is that are smaller
        than a window: nothing holds such a tensor."""
        if isinstance(ty, relax.TupleType):
            for field in ty.fields:
                self._check_sizes(field)
        if not isinstance(ty, relax.TensorType) or ty.shape is None:
            return
        zero = tirx.const(0, "int64")
        for axis, dim in enumerate(getattr(ty.shape, "values", ())):
            size = self.simplify(dim)
            if isinstance(size, int | tirx.Var) or (formula := str(size)) in self._sizes:
                continue
            self._sizes.add(formula)
            if not self.proves(size >= zero):
                reason = f"axis {axis} of the result is {{given}}, less than {{wanted}}"
                self.check((size, tirx.max(size, zero), reason))

    def reshape(self, x: relax.Expr, dims: Sequence[Dim]) -> relax.Var:
        """``x``, of as many elements, in the shape ``dims``."""
        if 0 in dims and self.equal(prod(self.shape(x)), 0):
            # Nothing to move; relax.op.reshape would read the 0 as "copy the dim of x".
            return self.emit(relax.op.zeros(relax.ShapeExpr(dims), self.dtype(x)))
        return self.emit(relax.op.reshape(x, relax.ShapeExpr(dims)))

    def emit_te(self, compute: Callable[..., object], *args: object, **kwargs: object) -> relax.Var:
        """Emit one kernel computed by a TE function; Relax arguments become TE tensors.

        Symbolic dims used inside must appear in an argument's shape or be arguments themselves.
        """
        if "primfunc_name_hint" not in kwargs:
            kwargs["primfunc_name_hint"] = compute.__name__.strip("_<>")
        if self.kernel_attrs:
            kwargs["primfunc_attrs"] = {**self.kernel_attrs, **kwargs.get("primfunc_attrs", {})}
        call = self.bb.call_te(compute, *args, **kwargs)
        self._check_lengths(call)
        return self.emit(call)

    def _check_lengths(self, call: relax.Call) -> None:
        """Assert at run time that the operands of a kernel are as long as it takes them to be."""
        symbol, given, *more = call.args
        fields = list(given.fields) if isinstance(given, relax.Tuple) else [given]
        tensors = [x for x in fields if isinstance(x.ty, relax.TensorType)]
        numbers = [*fields[len(tensors) :], *(dim for shape in more for dim in shape.values)]
        shapes = [self.shape(x) for x in tensors]
        if len(fields) + len(more) < 2 or all(isinstance(d, int) for dims in shapes for d in dims):
            return
        rows = []
        for k, axis, extent in lengths_read(self.bb.get()[symbol], shapes, numbers):
            length = as_expr(shapes[k][axis])
            if not self.proves(length >= extent):
                of = f" of {name}" if (name := self.name(tensors[k])) else ""
                reason = f"axis {axis}{of} is {{given}}, less than {{wanted}}"
                rows.append((length, tirx.max(length, extent), reason))
        self.check(*rows)

    def match(
        self,
        value: relax.Expr,
        shape: Sequence[Dim],
        dtype: str | None = None,
        reason: str = _DIFFERS,
    ) -> relax.Var:
        """Assert at run time that ``value`` has ``shape``; fresh dims are bound by it.

        ``reason`` is told of an axis: see :meth:`demand`.
        """
        ty = relax.TensorType(list(shape), dtype or self.dtype(value))
        if value.ty.shape is not None:
            self.demand(value, shape, reason)
        given = value
        if self._redefines(shape):
            unknown = relax.TensorType(ndim=len(shape), dtype=self.dtype(value))
            given = self.bb.match_cast(value, unknown, self._hint())
        matched = self._trace(self.bb.match_cast(given, ty, self._hint()))
        return self.copy_knowledge(value, matched)

    def _redefines(self, shape: Sequence[Dim]) -> bool:
        """Whether a match_cast to ``shape`` says what a dim is that is defined already.

        CanonicalizeBindings, which many passes of TVM end with, puts the dim that is given in the
        place of such a dim, and does not end where the one is a part of the other. It does not
        where what is given has forgotten its dims.
        """
        variables = {dim for dim in shape if isinstance(dim, tirx.Var)}
        fresh = variables & self._fresh
        self._fresh.difference_update(variables)
        return fresh != variables

    def demand(self, value: relax.Expr, shape: Sequence[Dim], reason: str = _DIFFERS) -> None:
        """Assert at run time that ``value`` has ``shape``, which binds no dims.

        It is its shape that this reads: a kernel that is fused with others need not store it.
        """
        of = f" of {name}" if (name := self.name(value)) else ""
        reasons = [f"axis {axis}{of} {reason}" for axis in range(len(shape))]
        self.demand_dims(self.shape(value), shape, *reasons)

    def demand_dims(self, given: Sequence[Dim], wanted: Sequence[Dim], *reasons: str) -> None:
        """Assert at run time that the dims ``given`` are those ``wanted``, which binds none.

        ``reasons``, one for each, are told where they are not: see ``tvm_ext.checks``.
        """
        rows = zip(given, wanted, reasons, strict=True)
        self.check(*(r for r in rows if r[1] not in self._fresh and not self.equal(*r[:2])))

    def check(self, *rows: tuple[Dim, Dim, str]) -> None:
        """Assert at run time that two numbers are equal, or else tell what stands behind them.

        It is a match_cast of a shape, the last dim of which is the number of what it tells. Dims
        read at run time are taken to be no less than 0 by all that simplifies: they are left as
        they are.

        Raises:
            ValueError: two are known not to be.
        """
        unknown = []
        for given, wanted, reason in rows:
            if not all(isinstance(number, int | tirx.IntImm) for number in (given, wanted)):
                unknown.append((given, wanted, reason))
            elif int(given) != int(wanted):
                raise ValueError(reason.format(given=int(given), wanted=int(wanted)))
        if not unknown:
            return
        number, node = len(self.checks), quoted(self.told(""))
        self.checks.append([node + reason for *_, reason in unknown])
        given, wanted = ([row[k] for row in unknown] for k in range(2))
        dims = self.bb.emit(relax.ShapeExpr([*given, number]), self._hint())
        if self._redefines(wanted):
            dims = self.bb.match_cast(dims, relax.ShapeType(ndim=len(wanted) + 1), self._hint())
        self._trace(self.bb.match_cast(dims, relax.ShapeType([*wanted, number]), self._hint()))

    def later(self, demand: Callable[[], None]) -> None:
        """Have ``demand`` emit checks of this node where the block or the function ends.

        For values that no kernel is in danger of: between kernels a check would keep them from
        being fused.
        """
        self._late.append((self.node, demand))

    @contextmanager
    def checked(self, seen: Mapping[Hashable, relax.Var]) -> Iterator[None]:
        """A block or a function, at whose end are the checks that were left for it.

        Verdicts that are ``seen`` around it are in reach.
        """
        outside = self._late, self.seen, self.node
        self._late, self.seen = [], dict(seen)
        try:
            yield
            for node, demand in self._late:
                self.node = node
                demand()
        finally:
            self._late, self.seen, self.node = outside

    def told(self, reason: str) -> str:
        """``reason`` with the node, its operator and its opset in front."""
        if self.node is None:
            return reason
        opset = self.opsets.get(self.node.domain, 1)
        since, _ = lookup(self.node.domain, self.node.op_type, opset)
        return str(refusal(self.node, opset, since, reason))

    def name(self, value: relax.Expr) -> str:
        """What the model calls an operand of the node, quoted; nothing where it is none."""
        inputs = [] if self.node is None else self.node.inputs
        found = (x.name for x in inputs if x is not None and value.same_as(self.walk.values.get(x)))
        name = next(found, None)
        return "" if name is None else quoted(repr(name))

    def of_shape(self, value: relax.Expr, shape: Sequence[Dim]) -> relax.Expr:
        """``value``, which has ``shape``: provably, or asserted at run time.

        Raises:
            ValueError: it has another.
        """
        dims = self.shape(value)
        if len(dims) == len(shape) and all(map(self.equal, dims, shape)):
            return value
        known = [(a, b) for a, b in zip(dims, shape, strict=False) if type(a) is type(b) is int]
        if len(dims) != len(shape) or any(a != b for a, b in known):
            raise ValueError(f"the shape {dims} must be {list(shape)}")
        binds = any(isinstance(dim, tirx.Var) and dim in self._fresh for dim in shape)
        if isinstance(value, GenericConst) and not binds:  # the VM would free what is matched
            self.demand(value, shape)
            return value
        return self.match(value, shape)

    def measured(self, dims: Sequence[Dim]) -> list[Dim]:
        """``dims`` with each that chooses between sizes computed at run time, as a dim of its own.

        As formulas they would be part of all that follow, and double with each.
        """
        return [self._measured(dim) if _chooses(dim) else dim for dim in dims]

    def _measured(self, dim: tirx.Expr) -> tirx.Expr:
        formula = str(dim)  # names of dims are unique
        if formula not in self._chosen:
            size = self.materialise(Known(np.array([dim], object), "int64"))
            del self._known[size]
            (self._chosen[formula],) = self.dims(size)
        return self._chosen[formula]

    def is_measured(self, dim: Dim) -> bool:
        """Whether ``dim`` stands for a choice between sizes: see :meth:`measured`."""
        return isinstance(dim, tirx.Var) and any(map(dim.same_as, self._chosen.values()))

    def const(self, array: object, dtype: str | None = None) -> relax.Expr:
        """A constant of exactly the array's dtype (``relax.const`` alone narrows int64).

        Strings come as an object array of str or, as ONNX has them, of bytes.
        """
        array = np.asarray(array, dtype)
        if array.dtype.kind in "OSU":
            return self.of_element(relax.const(self.numbers(array), "int64"), STRING)
        held = stored(array)
        return self.of_element(relax.const(held, held.dtype.name), array.dtype.name)

    def numbers(self, texts: object) -> np.ndarray:
        """The numbers (int64) that stand for strings, which come as ``const`` takes them."""
        array = np.asarray(texts, object)
        decoded = [t.decode() if isinstance(t, bytes) else str(t) for t in array.flat]
        return self.strings.numbers(decoded).reshape(array.shape)

    def of_element(self, value: relax.Expr, element: str) -> relax.Expr:
        """``value``, which holds elements of an ONNX type that TVM may lack."""
        if element in STORAGE:
            self._elements[value] = element
            self.holds_strings |= element == STRING
        return value

    def copy_knowledge(self, source: relax.Expr, copy: relax.Var) -> relax.Var:
        """``copy``, whose elements, kind and labels are those of ``source``."""
        for facts in (self._elements, self.kinds, self.labels):
            if source in facts:
                facts[copy] = facts[source]
        return copy

    def fresh_dim(self, hint: str = "d") -> tirx.Var:
        """A new symbolic dim (int64, known to be no less than 0)."""
        name = re.sub(r"\W", "_", hint) or "d"
        self._dim_names[name] += 1
        count = self._dim_names[name]
        dim = tirx.Var(name if count == 1 else f"{name}_{count}", "int64")
        self._analyzer.update(dim, ConstIntBound(0, _LARGEST_DIM))
        self._fresh.add(dim)
        return dim

    def parameter_dim(self, hint: str) -> tirx.Var:
        """The same for a dim that the type of a parameter defines."""
        dim = self.fresh_dim(hint)
        self._fresh.remove(dim)
        return dim

    def branch(self, emit: Callable[[], list[relax.Expr]]) -> relax.SeqExpr:
        """What ``emit`` emits, in a block of its own, ending in the tuple of its results."""
        chosen, self._chosen = self._chosen, dict(self._chosen)
        sizes, self._sizes = self._sizes, set(self._sizes)
        self.bb.begin_scope()
        self.bb._begin_binding_block()
        try:
            with self.checked(self.seen):
                results = emit()
        finally:
            self._chosen, self._sizes = chosen, sizes
            block = self.bb._end_block()
            self.bb.end_scope()
        return relax.SeqExpr([block], relax.Tuple(results))

    # --- questions ------------------------------------------------------------------------

    def shape(self, value: relax.Expr) -> list[Dim]:
        """The dims of ``value``: int where static, else a symbolic expression."""
        return [simplified(dim, self._analyzer) for dim in value.ty.shape.values]

    def static_shape(self, value: relax.Expr) -> list[int] | None:
        """The dims of ``value`` if all are static."""
        dims = self.shape(value)
        return dims if all(isinstance(d, int) for d in dims) else None

    @staticmethod
    def rank(value: relax.Expr) -> int:
        return int(value.ty.ndim)

    @staticmethod
    def dtype(value: relax.Expr) -> str:
        """The element type, as numpy and ml_dtypes name it."""
        return str(value.ty.dtype.dtype)

    def element(self, value: relax.Expr) -> str:
        """The ONNX element type; :meth:`dtype` is what holds it (see ``tvm_ext.ops.narrow``)."""
        return self._elements.get(value, self.dtype(value))

    def static(self, value: relax.Expr) -> np.ndarray | None:
        """The value if known at compile time, else None.

        Constants come in their own dtype. Values computed from symbolic dims come as an object
        array of ints and Relax dims.
        """
        if isinstance(value, GenericConst):
            return value.value.numpy()
        known = self._known.get(value)
        return None if known is None else known.array

    def ints(self, value: relax.Expr, what: str) -> list[int]:
        """``value`` flattened to Python ints.

        Raises:
            NotImplementedError: it is known at run time only, or symbolic.
        """
        array = self.static(value)
        if array is None or any(isinstance(item, tirx.Expr) for item in array.flat):
            raise NotImplementedError(f"{what} is known only at run time")
        return [int(item) for item in array.flat]

    @property
    def declared_rank(self) -> int | None:
        """The rank that the model declares for the first result of ``node``; None: it does not.

        From it follow numbers that are otherwise known only at run time, see :meth:`counted`.
        """
        value = self.node.outputs[0]
        while value.shape is None:  # it is that of what is made of it element by element
            value = next(
                (use.outputs[0] for use, k in value.uses() if k == 0 and use.op_type in _MAPS), None
            )
            if value is None:
                return None
        return len(value.shape)

    def counted(self, values: relax.Expr, count: int | None = None) -> relax.Expr:
        """1-D ``values`` whose number is static; where it is not, asserted to be ``count``.

        Raises:
            UnknownRank: the number is known only at run time, and no ``count`` given.
        """
        if self.rank(values) != 1:
            raise ValueError(f"a list of numbers has rank {self.rank(values)}")
        if self.static_shape(values) is not None:
            return values
        if count is None:
            raise UnknownRank
        return self.match(values, [count])

    def dims(
        self, value: relax.Expr, count: int | None = None, what: str = "", least: int | None = 0
    ) -> list[Dim]:
        """A 1-D integer tensor as dims: static ints, symbolic dims, or read at run time.

        Where the number of elements is known only at run time, it has to be ``count``. What is
        read is asserted to be a shape, no less than ``least`` (None: a kernel of ours sees to
        it); ``what`` names an element in errors.

        Raises:
            UnknownRank: the number is not known, and no ``count`` given.
        """
        array = self.static(value)
        if array is not None:
            return [d if isinstance(d, tirx.Expr) else int(d) for d in array.flat]
        what = what or f"an element of {self.name(value) or 'a shape'}"
        value = self.counted(value, count)
        fresh = [self.fresh_dim() for _ in range(self.shape(value)[0])]
        self.bind(value, fresh)
        if least is not None:
            self.check(*_sizes(fresh, what, least))
        return fresh

    def bind(self, value: relax.Expr, dims: Sequence[Dim], *reasons: str) -> None:
        """Let fresh dims be the elements of a 1-D integer tensor; others are asserted to be.

        ``reasons`` are what is told of the latter, one for each.
        """
        if self.dtype(value) != "int64":
            value = self.emit(relax.op.astype(value, "int64"))
        # Named, as passes take the names that TVM gives for variables of their own.
        held = self.bb.emit(relax.op.tensor_to_shape(value), self._hint())
        own = [dim if dim in self._fresh else self.fresh_dim() for dim in dims]
        self.bb.match_cast(held, relax.ShapeType(own), self._hint())
        self._fresh.difference_update(own)
        pairs = [(a, b) for a, b in zip(own, dims, strict=True) if a is not b]
        self.check(*((*pair, reason) for pair, reason in zip(pairs, reasons, strict=True)))

    def simplify(self, dim: Dim) -> Dim:
        """Fold a dim expression; an int where its value is known."""
        return simplified(dim, self._analyzer)

    def proves(self, condition: tirx.Expr) -> bool:
        """Whether a condition on dims holds provably."""
        return bool(self._analyzer.can_prove(condition))

    def equal(self, a: Dim, b: Dim) -> bool:
        """Whether two dims are provably equal."""
        return bool(self._analyzer.can_prove_equal(a, b)) if a is not b else True

    # --- knowledge ------------------------------------------------------------------------

    def materialise(self, known: Known) -> relax.Expr:
        """A tensor for a value known at compile time."""
        array = known.array
        if not known.symbolic:
            return self.const(array.astype(known.dtype))

        flat = list(array.flat)

        def shape_arithmetic(*elements):
            def element(*index):
                position, chosen = _flat_index(index, array.shape), elements[-1]
                for k in range(len(elements) - 2, -1, -1):
                    chosen = tirx.Select(position == k, elements[k], chosen)
                return chosen.astype(known.dtype)

            return te.compute(array.shape, element, "shape_arithmetic")

        operands = [tirx.const(e, "int64") if not isinstance(e, tirx.Expr) else e for e in flat]
        var = self.emit_te(shape_arithmetic, *operands)
        self._known[var] = known
        return var

    def _hint(self) -> str:
        if self.node is None or not self.node.outputs:
            return ""
        return re.sub(r"\W", "_", self.node.outputs[0].name or "") or ""

    def _trace(self, var: relax.Var) -> relax.Var:
        if self.node is not None:
            self.origin[f"{self.scope}{var.name}"] = self.node
        return var


def _sizes(dims: Sequence[Dim], what: str, least: int) -> Iterator[tuple[Dim, Dim, str]]:
    """Checks that ``dims`` are sizes of one tensor that memory may hold."""
    for dim in dims:
        nearest = tirx.max(dim, tirx.const(least, "int64"))
        yield dim, nearest, f"{what} is {{given}}, less than {{wanted}}"
    first, *others = dims or [tirx.const(0, "int64")]
    most = tirx.const(_LARGEST_DIM, "int64")
    for dim in others:
        most = tirx.floordiv(most, tirx.max(dim, tirx.const(1, "int64")))
    yield first, tirx.min(first, most), f"{what} is {{given}}, of more elements than memory holds"


def _flat_index(index: Sequence[tirx.Expr], shape: Sequence[int]) -> tirx.Expr:
    flat = tirx.const(0, "int64")
    for i, extent in zip(index, shape, strict=True):
        flat = flat * extent + i
    return flat


def _chooses(dim: Dim) -> bool:
    choices: list[tirx.Expr] = []
    if isinstance(dim, tirx.Expr):
        tvm_ffi.structural_walk(dim, (tirx.Select, choices.append))
    return bool(choices)
