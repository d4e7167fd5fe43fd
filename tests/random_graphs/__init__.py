"""Random graphs of many operators, at random opsets, with static and with symbolic sizes.

A graph grows node by node, each of which onnxruntime evaluates at once, for two sets of sizes: what
it refuses is not used, and so are results that are not finite. Patterns put what networks consist
of between single operators, with slips in it, so that rewrites meet what they look for and what
only looks like that. The finished model is compared with onnxruntime without optimisations; what
differs, with them.

Where inputs that are moved by 3e-7 give other integers or shapes, nothing is compared; where they
give other floats, a hundred times as much is allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tvm_ext import convert_and_build

from .attention import attention
from .classical import CLASSICAL
from .control_flow import branch, loop, scan
from .convolutions import conv_block, squeeze_excite
from .elementwise import ELEMENTWISE
from .graph import Graph, Rejected, session
from .layers import LAYERS
from .microsoft import FUSED
from .movement import MOVEMENT
from .patterns import PATTERNS as PLAIN
from .qoperator import QOPERATOR
from .quantized import quantized
from .sampling import SAMPLING
from .selection import SELECTION
from .sequences import SEQUENCES
from .signals import SIGNALS
from .training import TRAINING
from .transformer import TRANSFORMER

__all__ = ["Failure", "check", "random_graph"]

_OPERATORS = [*ELEMENTWISE, *MOVEMENT, *LAYERS, *CLASSICAL, *FUSED, *QOPERATOR, *SAMPLING,
              *SELECTION, *SEQUENCES, *SIGNALS, *TRAINING, *TRANSFORMER]  # fmt: skip
_PATTERNS = [*PLAIN, *[attention] * 3, *[conv_block] * 3, squeeze_excite, *[quantized] * 2, branch,
             loop, scan]  # fmt: skip
_OPSETS = [7, 8, 9, 10, 11, 12, 13, 13, 14, 15, 16, 17, 17, 18, 18, 19, 20, 21, 21, 22, 23, 24, 25,
           26]  # fmt: skip
_DIMS = {"n": (2, 3), "s": (7, 4), "t": (5, 6), "h": (9, 12), "w": (8, 5)}
_ATTEMPTS = 200


@dataclass(frozen=True)
class Failure:
    """A model that does not give what it should, and why."""

    name: str
    reason: str
    model: object = field(repr=False)
    feeds: list[dict[str, np.ndarray]] = field(repr=False)


def random_graph(seed: int) -> Graph:
    """The graph of 4 to 25 nodes that follows from ``seed``."""
    rng = np.random.default_rng(seed)
    g = Graph(rng, int(rng.choice(_OPSETS)))
    _add_inputs(g)
    weights = np.array([weight for _, weight in _OPERATORS], "float64")
    target = int(rng.integers(4, 26))
    for _ in range(_ATTEMPTS):
        if len(g.nodes) >= target:
            break
        try:
            if g.chance(0.4):
                g.pick(*_PATTERNS)(g)
            else:
                _OPERATORS[rng.choice(len(_OPERATORS), p=weights / weights.sum())][0](g)
        except Rejected:
            continue
    _choose_outputs(g)
    return g


def _add_inputs(g):
    def d(name):
        return (_DIMS[name][0], None) if g.chance(0.25) else (_DIMS[name], name)

    kinds = [
        lambda: ((d("n"), (g.pick(1, 3, 4, 8, 16, 17), None), d("h"), d("w")), "float32"),
        lambda: ((d("n"), d("s"), (g.pick(4, 6, 8, 12, 16), None)), "float32"),
        lambda: ((d("n"), (g.pick(3, 5, 8, 16, 33), None)), "float32"),
        lambda: ((d("s"),), g.pick("float32", "int64", "bool")),
        lambda: ((d("n"), d("t"), (g.pick(4, 6, 8), None)), "float32"),
        lambda: ((d("n"), (g.pick(2, 4), None), d("t")), g.pick("float32", "float64", "float16")),
        lambda: ((d("n"), d("s")), g.pick("int64", "int32", "bool")),
        lambda: ((), "float32"),
        lambda: ((d("n"), (0, None), (4, None)), "float32"),
    ]
    chosen = [kinds[g.pick(0, 0, 1, 1, 2)]]
    chosen += [kinds[g.pick(0, 1, 1, 2, 3, 4, 5, 6, 7, 8)] for _ in range(g.int(0, 3))]
    for kind in chosen:
        dims, dtype = kind()
        sizes = [size if isinstance(size, tuple) else (size, size) for size, _ in dims]
        g.input(sizes, [name for _, name in dims], dtype)


def _choose_outputs(g):
    """What no node reads, or some of it; some inner values; now and then an input."""
    made = g.values[len(g.inputs) :]
    read = {name for node in g.nodes for name in node.input}
    ends = [v for v in made if v.name not in read]
    chosen = [v for v in ends if g.chance(0.9)] + [v for v in made if g.chance(0.08)]
    chosen = chosen + ends[-1:] + g.outputs
    if g.chance(0.05):
        chosen.append(g.inputs[0])
    g.outputs = list({v.name: v for v in chosen}.values())


def check(seed: int, levels: Sequence[tuple[bool, int]]) -> list[Failure]:
    """Build the graph of ``seed`` at each of ``levels``, (symbolic sizes, opt level), and compare.

    A graph that onnxruntime does not run as a whole counts as passed.
    """
    g = random_graph(seed)
    failures = []
    for symbolic, level in levels if g.nodes and g.outputs else ():
        model = g.model(symbolic)
        sets = (0, 1) if symbolic else (0,)
        try:
            wanted = [_expected(g, which, model) for which in sets]
        except Rejected:
            break
        reason = _difference(g, model, level, wanted)
        if reason is not None:
            name = f"{seed}-{'symbolic' if symbolic else 'static'}-{level}"
            failures.append(Failure(name, reason, model, [g.feeds(which) for which in sets]))
    return failures


def _difference(g, model, level, wanted):
    """Why ``model`` does not give what is ``wanted`` for each set of sizes, or None."""
    try:
        built = convert_and_build(model, "llvm", opt_level=level)
        results = [built.run(None, g.feeds(which)) for which in range(len(wanted))]
    except Exception as error:  # noqa: BLE001  of any kind: that is the failure
        return f"{type(error).__name__}: {str(error)[:600]}"
    for which, (got, expected) in enumerate(zip(results, wanted, strict=True)):
        unlike = _unlike_any(g, got, expected)
        if unlike and _unlike_any(g, got, _optimised(g.feeds(which), model, expected)):
            return f"sizes {which}, {unlike}"
    return None


def _unlike_any(g, got, expected):
    """Which output is not as expected and why, or None."""
    for value, array, (wants, off, stable) in zip(g.outputs, got, expected, strict=True):
        reasons = [_unlike(array, want, off) for want in wants] if stable else [None]
        if all(reasons):
            return f"{value.name}: {reasons[0]}"
    return None


def _optimised(feeds, model, expected):
    """``expected``, or what onnxruntime gives with its optimisations.

    These scale sums of integers once, not their terms: what lies between two quantised values
    then goes to either.
    """
    try:
        results = session(model, optimised=True)(feeds)
    except Rejected:
        return expected
    return [
        ([*wants, array], off, stable)
        for array, (wants, off, stable) in zip(results, expected, strict=True)
    ]


def _expected(g, which, model):
    """Of each output: what may be given (what onnxruntime gives), how far inputs a little different
    move it, and whether their integers and shapes are the same."""
    feeds, run = g.feeds(which), session(model)
    want = run(feeds)
    rng = np.random.default_rng(0)
    off = [np.zeros(np.shape(array)) for array in want]
    stable = [True] * len(want)
    for _ in range(2):
        moved = {name: _moved(rng, array) for name, array in feeds.items()}
        for i, (a, b) in enumerate(zip(want, run(moved), strict=True)):
            if np.shape(a) != np.shape(b):
                stable[i] = False
            elif a.dtype.kind == "f":
                off[i] = np.maximum(off[i], np.abs(a.astype("float64") - b.astype("float64")))
            elif not np.array_equal(a, b):
                stable[i] = False
    return list(zip(([array] for array in want), off, stable, strict=True))


def _moved(rng, array):
    if array.dtype.kind != "f":
        return array
    return np.asarray(array * (1 + 3e-7 * rng.normal(size=array.shape)), array.dtype)


def _unlike(got, want, off):
    """Why an array is not the expected one, or None."""
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
    if want.dtype.kind != "f":
        bad = got != want
        if want.dtype.kind in "iu" and want.dtype.itemsize == 1:  # quantised: a unit
            bad = np.abs(got.astype(int) - want.astype(int)) > 1
        return f"{bad.sum()} of {bad.size} differ" if bad.any() else None
    if not want.size:
        return None
    wide = want.astype("float64")
    relative = 1e-2 if want.dtype == np.float16 else 2e-4
    bound = relative * (0.05 * np.abs(wide).max() + np.abs(wide) + 0.02) + 100 * off
    excess = np.abs(got.astype("float64") - wide) - bound
    bad = ~(excess <= 0)
    if not bad.any():
        return None
    at = np.unravel_index(np.argmax(np.where(np.isfinite(excess), excess, np.inf)), bad.shape)
    return f"{bad.sum()} of {bad.size} off, such as {at}: {got[at]}, expected {want[at]}"
