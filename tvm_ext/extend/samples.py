"""Inputs on which an operator is tried: families of shapes, or arrays that a plugin makes."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401  numpy learns bfloat16 and the float8 types by their names
import numpy as np

from ..errors import PluginError

if TYPE_CHECKING:
    from .operator import Operator

__all__ = ["Family", "Sample", "array_of"]

_INPUT = re.compile(r"\s*(\w+)\s*(?::\s*(\w+)\s*)?\[([^\]]*)\]\s*(?:,|$)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ARITHMETIC = (
    ast.Expression, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.Name, ast.Load,
    ast.Constant,
)  # fmt: skip

# Extents by the position of a dim's name: each family is tried with each row, cut or repeated.
# Odd and prime sizes meet vector tails; 1 meets unit loops; the last has something to share out.
EXTENTS = ((2, 3, 5, 7, 4), (1, 1, 1, 1, 1), (3, 17, 1, 31, 2), (2, 33, 12, 20, 3))


@dataclass(frozen=True)
class Sample:
    """One call of an operator.

    Attributes:
        inputs: arrays in the order of the schema; None where absent.
        attributes: by name, those that differ from the defaults.
        symbolic: the shapes to declare where dims are symbolic; None: each size becomes a name.
    """

    inputs: tuple[np.ndarray | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    symbolic: tuple[tuple[str | int, ...], ...] | None = None

    def __str__(self) -> str:
        shapes = (
            "-" if array is None else f"{array.dtype}{list(array.shape)}" for array in self.inputs
        )
        attributes = (f"{name}={value}" for name, value in self.attributes.items())
        return " ".join([*shapes, *attributes])


@dataclass(frozen=True)
class Family:
    """Samples of shapes that share named dims: ``"x[n, c], index: int64[n]"``."""

    inputs: tuple[tuple[str, str | None, tuple[str, ...]], ...]
    dtypes: tuple[str, ...]
    attributes: Mapping[str, Sequence[object]]

    @classmethod
    def parse(
        cls,
        operator: Operator,
        text: str,
        dtypes: tuple[str, ...],
        attributes: Mapping[str, Sequence[object]],
    ) -> Family:
        """Read the text of :meth:`Operator.shapes`.

        Raises:
            PluginError: it cannot be read, or names what the operator has not.
        """
        matches = list(_INPUT.finditer(text))
        if "".join(match[0] for match in matches) != text or not matches:
            raise PluginError(f'shapes of {operator}: {text!r} is not "name[dim, ...], ..."')
        parameters = list(signature(operator.function).parameters.values())[1:]
        names = [p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
        variadic = any(p.kind is Parameter.VAR_POSITIONAL for p in parameters)
        given = [match[1] for match in matches]
        if not variadic and given != names[: len(given)]:
            raise PluginError(f"shapes of {operator} name inputs {given}; it has {names}")
        unknown = sorted(attributes.keys() - operator.schema.attributes.keys())
        if unknown:
            raise PluginError(f"shapes of {operator} name attributes {unknown} that it has not")
        for name, values in attributes.items():
            if not isinstance(values, list | tuple) or not values:
                raise PluginError(f"shapes of {operator}: {name}={values!r} is no list of values")
        for dtype in (*dtypes, *(m[2] for m in matches if m[2])):
            _check_dtype(dtype, operator)
        rows = (
            (m[1], m[2], tuple(d.strip() for d in m[3].split(",") if d.strip())) for m in matches
        )
        family = cls(tuple(rows), dtypes, dict(attributes))
        try:
            for extents in EXTENTS:
                family._shapes(extents)
        except ValueError as error:
            raise PluginError(f"shapes of {operator}, {text!r}: {error}") from error
        return family

    def samples(self, random: np.random.Generator) -> Iterator[Sample]:
        """Every row of sizes in the first dtype, then the other dtypes; attributes take turns."""
        combinations = [
            dict(zip(self.attributes, values, strict=True))
            for values in itertools.product(*self.attributes.values())
        ]
        sized = [(extents, self.dtypes[0]) for extents in EXTENTS]
        sized += [(EXTENTS[0], dtype) for dtype in self.dtypes[1:]]
        for k in range(max(len(sized), len(combinations))):
            extents, dtype = sized[k % len(sized)]
            yield self._sample(random, extents, dtype, combinations[k % len(combinations)])

    def _sample(
        self,
        random: np.random.Generator,
        extents: Sequence[int],
        dtype: str,
        attributes: Mapping[str, object],
    ) -> Sample:
        arrays, symbolic = [], []
        for (_, own, dims), shape in zip(self.inputs, self._shapes(extents), strict=True):
            arrays.append(array_of(random, shape, own or dtype))
            symbolic.append(tuple(int(d) if d.isdigit() else d for d in dims))
        return Sample(tuple(arrays), attributes, tuple(symbolic))

    def _shapes(self, extents: Sequence[int]) -> list[list[int]]:
        """The sizes of the inputs; a name has one size, the next of ``extents``."""
        names: dict[str, int] = {}
        turn = itertools.cycle(extents)
        for dim in (dim for _, _, dims in self.inputs for dim in dims):
            for name in _NAME.findall(dim):
                if name not in names:
                    names[name] = next(turn)
        return [[_size(dim, names) for dim in dims] for _, _, dims in self.inputs]


def _size(dim: str, names: Mapping[str, int]) -> int:
    """The value of integer arithmetic.

    Raises:
        ValueError: the text is something else, or its value no size.
    """
    try:
        tree = ast.parse(dim, mode="eval")
        if not all(isinstance(node, _ARITHMETIC) for node in ast.walk(tree)):
            raise ValueError(f"{dim!r} is more than arithmetic on names")
        # Only arithmetic is left: nothing else is in reach.
        size = eval(compile(tree, dim, "eval"), {"__builtins__": {}}, dict(names))
    except SyntaxError as error:
        raise ValueError(f"{dim!r} is no number, name or arithmetic") from error
    except ArithmeticError as error:
        raise ValueError(f"{dim!r}: {error}") from error
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"{dim!r} is {size}, with {names}")
    return size


def _check_dtype(dtype: str, operator: Operator) -> None:
    try:
        np.dtype(dtype)
    except TypeError as error:
        raise PluginError(f"shapes of {operator}: {error}") from error


def array_of(random: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Floats standard normal; integers and bools 0 or 1, so that they may be indices."""
    if np.dtype(dtype).kind in "biu":
        return random.integers(0, 2, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)
