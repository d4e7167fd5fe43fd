"""Every operator at each since_version that has a converter, and on each element type.

The cases are those of the official suite that are one node: restated for other versions
(``restate.py``) and converted to other types (``retype.py``). Those of an operator and version are
built as one model, which costs a tenth of building each.
"""

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
from tvm_ext.frontend import TABLE

from tests.uses import record
from tvm_ext import convert_and_build
from tvm_ext.errors import TvmExtError

from .restate import Unsayable, restated
from .retype import NoOracle, expected, retyped
from .variant import Variant, by_operator, joined

__all__ = ["EXCLUSIONS", "Batch", "answer", "batches", "exclusions"]

_MOST = 10  # variants of a version: more repeat what the others ask
_LEVEL = 0
EXCLUSIONS = Path(__file__).with_name("exclusions.txt")


class Batch(NamedTuple):
    """An operator at a version: restated cases, or cases on other types."""

    domain: str
    op_type: str
    since: int
    kind: str  # "versions" or "types"

    @property
    def name(self) -> str:
        prefix = f"{self.domain}." if self.domain else ""
        return f"{prefix}{self.op_type}-{self.since}-{self.kind}"

    def variants(self) -> list[Variant]:
        """What has an expected result."""
        return _variants(self)

    def failures(self, variants: Sequence[Variant] | None = None) -> dict[str, str]:
        """Variant -> why it fails. What passes is recorded for the table."""
        variants = self.variants() if variants is None else variants
        if not variants:
            return {}
        known = exclusions()
        together = [v for v in variants if v.name not in known]
        failed = {}
        if together:
            failed = _failures(together)
        for variant in variants:
            if variant.name in known:
                failed |= _failures([variant])
        passed = [v for v in variants if v.name not in failed]
        if passed:
            record(joined(passed)[0])
        return failed

    def run(self) -> None:
        """Raises what fails and is not listed, and what is listed and does not."""
        failed = self.failures()
        listed = {v.name for v in self.variants()} & exclusions().keys()
        surprises = {
            name: failed.get(name, "listed, but passes") for name in failed.keys() ^ listed
        }
        assert not surprises, "\n".join(f"{name}: {why}" for name, why in surprises.items())


@cache
def batches() -> list[Batch]:
    """Of each operator the versions that the suite has no case of, and the latest on all types."""
    found = []
    for (domain, op_type), cases in sorted(by_operator().items()):
        versions = sorted(s for d, o, s in TABLE if (d, o) == (domain, op_type))
        rest = [since for since in versions if since not in {case.since for case in cases}]
        found += [Batch(domain, op_type, since, "versions") for since in rest]
        found += [Batch(domain, op_type, since, "types") for since in versions[-1:]]
    return found


@cache
def exclusions() -> dict[str, str]:
    """Variant -> why it fails."""
    lines = EXCLUSIONS.read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


@lru_cache(maxsize=1)
def _variants(batch: Batch) -> list[Variant]:
    cases = by_operator()[batch.domain, batch.op_type]
    if batch.kind == "versions":
        return _varied(list(_restatements(cases, batch.since)))
    latest = list(_restatements(cases, batch.since))
    return list(_with_results(retyped(latest))) if latest else []


def answer(task: tuple[Batch, str | None]) -> tuple[list[str], dict[str, str]]:
    """For a worker: the names of the variants, and why those fail that do.

    Run are all, or the one of that name; "names" is none.
    """
    batch, only = task
    variants = [v for v in batch.variants() if only in (None, v.name)]
    return [v.name for v in batch.variants()], batch.failures(variants)


def _restatements(cases: Sequence[Variant], since: int) -> Iterator[Variant]:
    for case in cases:
        try:
            yield case if case.since == since else restated(case, since)
        except Unsayable:
            continue


def _with_results(variants: Iterator[Variant]) -> Iterator[Variant]:
    for variant in variants:
        try:
            results = expected(variant)
        except NoOracle:
            continue
        for value, result in zip(variant.outputs, results, strict=True):
            value.data = result
        yield variant


def _varied(variants: list[Variant]) -> list[Variant]:
    """At most ``_MOST``, those first that differ in what they give and in types."""
    first: dict[tuple, Variant] = {}
    for variant in variants:
        key = (
            tuple(sorted((a.name, a.s) for a in variant.node.attribute)),
            tuple(map(bool, variant.node.input)),
            tuple(x.dtype for x in variant.inputs),
        )
        first.setdefault(key, variant)
    names = {v.name for v in first.values()}
    return [*first.values(), *(v for v in variants if v.name not in names)][:_MOST]


def _failures(variants: Sequence[Variant]) -> dict[str, str]:
    """Of a model with all of them; where that cannot be built or run, of each."""
    try:
        results = _results(variants)
    except Exception as error:  # noqa: BLE001  any failure is what is asked for
        if len(variants) == 1:
            return {variants[0].name: _reason(error)}
        return {name: why for v in variants for name, why in _failures([v]).items()}
    failed = {}
    for variant in variants:
        own = [results.pop(0) for _ in variant.outputs]
        try:
            for value, result in zip(variant.outputs, own, strict=True):
                _compare(result, value.data, variant)
        except AssertionError as error:
            failed[variant.name] = _reason(error)
    return failed


def _results(variants: Sequence[Variant]) -> list:
    model, feeds, _ = joined(variants)
    return list(convert_and_build(model, "llvm", opt_level=_LEVEL).run(None, feeds))


def _reason(error: Exception) -> str:
    if isinstance(error, TvmExtError):
        nodes = getattr(error, "nodes", None)
        return nodes[0].reason.splitlines()[0] if nodes else str(error).splitlines()[0]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if isinstance(error, AssertionError):
        return "wrong result: " + "; ".join(lines[:6])[:200]
    return f"{type(error).__name__}: {lines[0][:160]}"


def _compare(got: object, want: object, variant: Variant) -> None:
    if isinstance(want, list | tuple):
        assert len(got) == len(want), f"{len(got)} elements, expected {len(want)}"
        for one, other in zip(got, want, strict=True):
            _compare(one, other, variant)
        return
    if want is None or got is None:
        assert got is want, "one is absent"
        return
    want = np.asarray(want)
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    if want.dtype == object:
        np.testing.assert_array_equal(got, want)
        return
    assert got.dtype == want.dtype, f"{got.dtype}, expected {want.dtype}"
    rtol, atol = variant.rtol, variant.atol
    if got.dtype.kind not in "biu" and "int" not in got.dtype.name:
        step = float(ml_dtypes.finfo(got.dtype).eps)
        rtol, atol = max(rtol, 4 * step), max(atol, step)
    elif want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    np.testing.assert_allclose(got.astype("float64"), want.astype("float64"), rtol=rtol, atol=atol)
