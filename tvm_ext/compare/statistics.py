"""What is said about two arrays, and about many durations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ComparisonError
from ..interface import STRING, TensorType

__all__ = ["Accuracy", "Block", "Latency", "accuracies", "accuracy", "latency"]


@dataclass(frozen=True)
class Accuracy:
    """How far one output is from the expected one.

    Attributes:
        max_abs: largest ``|got - expected|``.
        max_rel: largest ``|got - expected| / |expected|`` where expected is not zero.
        tolerance: the smallest t for which ``|got - expected| <= t + t * |expected|`` holds
            everywhere; infinite where NaN or infinity stand in different places.
        non_finite: how many expected elements are NaN or infinite; they must agree exactly.

    Of strings the three are 0 where all are equal, and else infinite.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    max_abs: float
    max_rel: float
    tolerance: float
    non_finite: int


def accuracies(name: str, got: Any, expected: Any) -> list[Accuracy]:
    """Compare one output: of a sequence all elements, of maps what they have for their keys.

    Raises:
        ComparisonError: another type, length, shape or dtype, other keys, or as :func:`accuracy`.
    """
    if isinstance(expected, np.ndarray) and isinstance(got, np.ndarray):
        return [accuracy(name, got, expected)]
    if got is None and expected is None:
        return []
    if not (isinstance(got, list) and isinstance(expected, list) and len(got) == len(expected)):
        raise ComparisonError(f"output {name!r} is {_described(got)}, not {_described(expected)}")
    if expected and all(isinstance(item, Mapping) for item in (*got, *expected)):
        return [_of_maps(name, got, expected)]
    pairs = enumerate(zip(got, expected, strict=True))
    return [each for k, pair in pairs for each in accuracies(f"{name}[{k}]", *pair)]


def _of_maps(name: str, got: Sequence[Mapping], expected: Sequence[Mapping]) -> Accuracy:
    rows = list(zip(got, expected, strict=True))
    if any(ours.keys() != theirs.keys() for ours, theirs in rows):
        raise ComparisonError(f"output {name!r} has maps of other keys than expected")
    sides = ([row[side][key] for row in rows for key in row[1]] for side in range(2))
    return accuracy(name, *map(np.asarray, sides))


def _described(value: Any) -> str:
    return f"a list of {len(value)}" if isinstance(value, list) else type(value).__name__


def accuracy(name: str, got: np.ndarray, expected: np.ndarray) -> Accuracy:
    """Compare one output.

    Raises:
        ComparisonError: another shape or dtype, not numbers, or no finite element to compare.
    """
    texts = got.dtype.kind in "OU" and expected.dtype.kind in "OU"
    if got.shape != expected.shape or (got.dtype != expected.dtype and not texts):
        kinds = TensorType.of(got), TensorType.of(expected)
        raise ComparisonError("output {!r} is {}, expected {}".format(name, *kinds))
    if texts:
        error = 0.0 if np.array_equal(got, expected) else np.inf
        return Accuracy(name, got.shape, STRING, error, error, error, non_finite=0)
    # Long double holds every 64-bit integer, where the platform has one longer than double.
    wide = np.longdouble if got.dtype.kind in "iub" else np.float64
    try:
        a, b = got.astype(wide), expected.astype(wide)
    except (TypeError, ValueError) as error:
        raise ComparisonError(f"output {name!r} has dtype {got.dtype}: not numbers") from error
    finite = np.isfinite(b)
    if not finite.any():
        raise ComparisonError(f"output {name!r} has no finite element: nothing to compare")
    same_elsewhere = np.array_equal(a[~finite], b[~finite], equal_nan=True)
    a, b = a[finite], b[finite]
    agreed = same_elsewhere and bool(np.isfinite(a).all())
    distance, size = np.abs(a - b), np.abs(b)
    nonzero = size > 0
    return Accuracy(
        name,
        got.shape,
        str(got.dtype),
        max_abs=float(distance.max()) if agreed else np.inf,
        max_rel=float((distance[nonzero] / size[nonzero]).max(initial=0)) if agreed else np.inf,
        tolerance=float((distance / (1 + size)).max()) if agreed else np.inf,
        non_finite=int((~finite).sum()),
    )


@dataclass(frozen=True)
class Block:
    """Consecutive runs of one engine.

    Attributes:
        seconds: of each run.
        foreign: CPUs that other processes kept busy meanwhile, on average.
    """

    seconds: tuple[float, ...]
    foreign: float


@dataclass(frozen=True)
class Latency:
    """Seconds per run over the quiet blocks; over all of them if none was quiet."""

    median: float
    p10: float
    p90: float
    minimum: float
    runs: int
    quiet: bool


# Above this many foreign CPUs a block does not count as quiet.
QUIET = 0.12


def latency(blocks: Sequence[Block]) -> Latency:
    """Summarise the blocks of one engine.

    Raises:
        ComparisonError: there is no run.
    """
    quiet = [block for block in blocks if block.foreign < QUIET]
    seconds = [second for block in quiet or blocks for second in block.seconds]
    if not seconds:
        raise ComparisonError("no run was timed")
    p10, median, p90 = np.quantile(seconds, (0.1, 0.5, 0.9))
    return Latency(
        float(median), float(p10), float(p90), min(seconds), len(seconds), quiet=bool(quiet)
    )
