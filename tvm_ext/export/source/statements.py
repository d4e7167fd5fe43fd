"""Lowered kernels as C functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import ForKind

from .c_types import Unprintable, c_type, value_type
from .expressions import Expressions
from .helpers import Helpers
from .layout import wrapped
from .naming import free_name

__all__ = ["Function", "Local", "print_kernel"]

# A local array that takes more than this is part of the workspace.
STACK_BYTES = 4 << 10

_LETTERS = "ijklmnopqrs"
_IGNORED = "pragma_", "storage_alignment", "realize_scope"


@dataclass(frozen=True)
class Local:
    """An array of a kernel that the caller places in the workspace."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return max(prod(self.shape), 1) * _itemsize(self.dtype)


@dataclass(frozen=True)
class Function:
    """A kernel as C text; ``locals`` are the arrays that it takes behind its own operands."""

    text: str
    locals: tuple[Local, ...]


@dataclass
class _Buffer:
    name: str
    dtype: str
    kept: tuple[int, ...]  # the dims that the C array has
    shape: tuple[int, ...]
    is_scalar: bool = False
    used: bool = False


@dataclass
class _Lines:
    """Text that grows, indented."""

    depth: int = 1
    lines: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        self.lines += wrapped(text, 2 * self.depth)


def print_kernel(
    kernel: tirx.PrimFunc,
    name: str,
    operands: Sequence[str],
    results: int,
    helpers: Helpers,
    parallel: str,
) -> Function:
    """``kernel`` as a C function.

    Args:
        kernel: lowered to loops over buffers of static shape.
        name: of the function.
        operands: names of the parameters; the last ``results`` are written.
        helpers: collects what the text calls.
        parallel: what stands in front of a loop whose trips may run at the same time; may be "".

    Raises:
        Unprintable: it has no form in C.
    """
    return _Printer(kernel, operands, helpers, parallel).function(name, results)


class _Printer:
    def __init__(
        self, kernel: tirx.PrimFunc, operands: Sequence[str], helpers: Helpers, parallel: str
    ):
        self._kernel = kernel
        self._parallel = parallel
        self._out = _Lines()
        self._taken: list[str] = []
        self._loops = 0
        self._in_parallel = False
        self._fresh: list[tirx.Var] = []  # variables whose first store declares them
        self._buffers: dict[tirx.Var, _Buffer] = {}
        self._moved: list[tirx.Var] = []  # to the workspace
        self._expressions = Expressions(helpers, self, self._element)
        for param, wanted in zip(kernel.params, operands, strict=True):
            self._declared(param, wanted, keep_units=True)

    def function(self, name: str, results: int) -> Function:
        """The whole function."""
        self._statement(self._kernel.body)
        params = list(self._kernel.params)
        written = {p for k, p in enumerate(params) if k >= len(params) - results}
        rows = [self._parameter(p, p in written) for p in [*params, *self._moved]]
        unused = [self._buffers[p].name for p in params if not self._buffers[p].used]
        head = [f"static void {name}(", *(f"    {row}," for row in rows)]
        head[-1] = head[-1].rstrip(",") + ") {" if rows else f"static void {name}(void) {{"
        lines = [*head, *(f"  (void){name};" for name in unused), *self._out.lines, "}"]
        moved = tuple(Local(b.dtype, b.kept) for b in map(self._buffers.__getitem__, self._moved))
        return Function("\n".join(lines), moved)

    def _parameter(self, param: tirx.Var, is_written: bool) -> str:
        buffer = self._buffers[param]
        # No result shares bytes with an operand; operands may be one and the same.
        own = is_written or param in self._moved
        const, restrict = ("", "restrict ") if own else ("const ", "")
        first, *rest = buffer.kept or (1,)
        dims = f"[{restrict}{max(first, 1)}]" + "".join(f"[{max(d, 1)}]" for d in rest)
        return f"{const}{c_type(buffer.dtype)} {buffer.name}{dims}"

    # What Expressions need.

    def declare(self, name: str, dtype: str, value: str | None) -> str:
        unique = self._name(name)
        c = value_type(dtype)
        self._out.add(f"{c} {unique};" if value is None else f"const {c} {unique} = {value};")
        return unique

    def choose(self, condition: str, results: Sequence[Callable[[], str]], target: str) -> None:
        for head, result in zip((f"if ({condition})", "else"), results, strict=True):
            with self._block(head, join=head == "else"):
                value = result()
                self._out.add(f"{target} = {value};")

    def _element(self, buffer: tirx.Var, indices: Sequence[str]) -> str:
        if buffer not in self._buffers:
            raise Unprintable(f"the buffer {buffer.name}, which nothing allocates")
        known = self._buffers[buffer]
        known.used = True
        if known.is_scalar:
            return known.name
        if len(known.kept) < len(known.shape):
            indices = [i for i, dim in zip(indices, known.shape, strict=True) if dim != 1]
        return known.name + "".join(f"[{index}]" for index in indices or ["0"])

    # Statements.

    def _statement(self, stmt: tirx.Stmt) -> None:
        if isinstance(stmt, tirx.SeqStmt):
            for number, child in enumerate(stmt.seq):
                if isinstance(child, tirx.AllocBuffer):
                    self._allocate(child.buffer, stmt.seq[number + 1 :])
                else:
                    self._statement(child)
        elif isinstance(stmt, tirx.For):
            self._for(stmt)
        elif isinstance(stmt, tirx.BufferStore):
            self._store(stmt)
        elif isinstance(stmt, tirx.AllocBuffer):
            self._allocate(stmt.buffer, ())
        elif isinstance(stmt, tirx.IfThenElse):
            self._if(stmt)
        elif isinstance(stmt, tirx.While):
            with self._block(f"while ({self._condition(stmt.condition)})"):
                self._statement(stmt.body)
        elif isinstance(stmt, tirx.Bind):
            value = self._expressions.value(stmt.value)
            dtype = str(stmt.value.ty.dtype)
            self._expressions.names[stmt.var] = self.declare(stmt.var.name, dtype, value)
        elif isinstance(stmt, tirx.AttrStmt) and stmt.attr_key.startswith(_IGNORED):
            self._statement(stmt.body)
        elif isinstance(stmt, tirx.Break | tirx.Continue):
            self._out.add("break;" if isinstance(stmt, tirx.Break) else "continue;")
        elif not (isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, tirx.IntImm)):
            raise Unprintable(_described(stmt))

    def _for(self, loop: tirx.For) -> None:
        if loop.kind == ForKind.THREAD_BINDING:
            raise Unprintable("loops bound to threads of a GPU")
        if loop.step is not None and not (isinstance(loop.step, tirx.IntImm) and loop.step == 1):
            raise Unprintable("loops with a step")
        text, taken = self._expressions.text, list(self._taken)
        least = text(loop.min)
        end = text(self._expressions.simplified(loop.min + loop.extent))
        name = self._name(_LETTERS[self._loops % len(_LETTERS)])
        self._expressions.bind(loop.loop_var, name, loop.min, loop.extent)
        shared = loop.kind == ForKind.PARALLEL and not self._in_parallel
        shared = shared and bool(self._parallel) and not _large_locals(loop.body)
        if shared:
            self._out.add(self._parallel)
        self._loops += 1
        self._in_parallel |= shared
        c = value_type(str(loop.loop_var.ty.dtype))
        with self._block(f"for ({c} {name} = {least}; {name} < {end}; {name}++)"):
            self._statement(loop.body)
        self._in_parallel &= not shared
        self._loops -= 1
        self._taken = taken

    def _store(self, store: tirx.BufferStore) -> None:
        old = tirx.BufferLoad(store.buffer, list(store.indices))
        indices = [self._expressions.text(index) for index in store.indices]
        value, dtype = store.value, str(store.value.ty.dtype)
        for sign, kind in (("+", tirx.Add), ("*", tirx.Mul)):
            adds = isinstance(value, kind) and dtype in ("float32", "float64")
            if adds and tvm_ffi.structural_equal(value.a, old):
                rest = self._expressions.value(value.b)
                self._out.add(f"{self._element(store.buffer, indices)} {sign}= {rest};")
                return
        text, place = self._expressions.stored(value), self._element(store.buffer, indices)
        if store.buffer in self._fresh:
            place = f"{c_type(dtype)} {place}"
            self._fresh.remove(store.buffer)
        self._out.add(f"{place} = {text};")

    def _allocate(self, param: tirx.Var, following: Sequence[tirx.Stmt]) -> None:
        """Declare a local array, if one of the statements ``following`` uses it; a variable where
        its first value is stored."""
        first = next((stmt for stmt in following if _touches(stmt, param)), None)
        if first is None:
            return
        buffer = self._declared(param, param.name, keep_units=False)
        buffer.is_scalar = not buffer.kept
        stores = isinstance(first, tirx.BufferStore) and not _touches(first.value, param)
        if Local(buffer.dtype, buffer.kept).bytes > STACK_BYTES:
            self._moved.append(param)
        elif buffer.is_scalar and stores:
            self._fresh.append(param)
        else:
            dims = "".join(f"[{max(dim, 1)}]" for dim in buffer.kept)
            self._out.add(f"{c_type(buffer.dtype)} {buffer.name}{dims};")

    def _if(self, stmt: tirx.IfThenElse) -> None:
        with self._block(f"if ({self._condition(stmt.condition)})"):
            self._statement(stmt.then_case)
        if stmt.else_case is not None:
            with self._block("else", join=True):
                self._statement(stmt.else_case)

    def _condition(self, condition: tirx.Expr) -> str:
        before = len(self._out.lines)
        text = self._expressions.text(condition)
        if len(self._out.lines) != before:
            raise Unprintable("a condition with named values")
        return text

    @contextmanager
    def _block(self, head: str, join: bool = False) -> Iterator[None]:
        taken = list(self._taken)
        if join and self._out.lines and self._out.lines[-1].strip() == "}":
            self._out.lines[-1] += f" {head} {{"
        else:
            self._out.add(f"{head} {{")
        self._out.depth += 1
        yield
        self._out.depth -= 1
        self._out.add("}")
        self._taken = taken

    # Names.

    def _declared(self, param: tirx.Var, wanted: str, keep_units: bool) -> _Buffer:
        ty = param.ty
        if not all(isinstance(dim, tirx.IntImm) for dim in ty.shape) or list(ty.strides or ()):
            raise Unprintable(f"the buffer {param.name} of no fixed shape")
        shape = tuple(int(dim) for dim in ty.shape)
        kept = shape if keep_units else tuple(dim for dim in shape if dim != 1)
        name = self._name(re.sub(r"(_intermediate|_local)+(_\d+)?$", r"\2", wanted) or "values")
        buffer = _Buffer(name, str(ty.dtype.dtype), kept, shape)
        c_type(buffer.dtype)
        self._buffers[param] = buffer
        return buffer

    def _name(self, wanted: str) -> str:
        name = free_name(wanted, self._taken)
        self._taken.append(name)
        return name


def _large_locals(body: tirx.Stmt) -> bool:
    """Whether threads that run ``body`` would need workspace of their own."""
    found: list[int] = []

    def visit(stmt: tirx.AllocBuffer) -> None:
        ty = stmt.buffer.ty
        found.append(prod(int(dim) for dim in ty.shape) * _itemsize(str(ty.dtype.dtype)))

    tvm_ffi.structural_walk(body, (tirx.AllocBuffer, visit))
    return any(size > STACK_BYTES for size in found)


def _touches(node: tirx.Stmt | tirx.Expr, buffer: tirx.Var) -> bool:
    """Whether ``node`` reads or writes ``buffer``."""
    found: list[tirx.Var] = []
    tvm_ffi.structural_walk(
        node,
        [
            (ir.TensorLoad, lambda load: found.append(load.source)),
            (tirx.BufferStore, lambda store: found.append(store.buffer)),
        ],
    )
    return any(buffer.same_as(other) for other in found)


def _itemsize(dtype: str) -> int:
    return 1 if dtype == "bool" else int(re.sub(r"\D", "", dtype)) // 8


def _described(stmt: tirx.Stmt) -> str:
    if isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, ir.Call):
        args = stmt.value.args
        called = f" {args[0].value}" if args and isinstance(args[0], ir.StringImm) else ""
        return f"a call of {getattr(stmt.value.op, 'name', stmt.value.op)}{called}"
    return f"a statement of kind {type(stmt).__name__}"
