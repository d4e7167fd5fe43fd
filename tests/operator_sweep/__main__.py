"""Run the sweep, report its failures grouped by reason, and count what passes.

Examples:
    python -m tests.operator_sweep --filter 'ReduceSum-'
    TVM_EXT_RECORD=out/sweep.jsonl python -m tests.operator_sweep --write-exclusions

Exit status 1: a variant fails that is not in ``exclusions.txt``, or one that is there passes.
"""

import argparse
import re
import sys
from collections import defaultdict
from time import perf_counter

from tests.official_suite.worker import Worker

from . import EXCLUSIONS, Batch, answer, batches, exclusions

_SECONDS_PER_BATCH = 600


def main() -> int:
    args = _arguments()
    chosen = [batch for batch in batches() if re.search(args.filter, batch.name)]
    worker = Worker(answer, _SECONDS_PER_BATCH)
    begin = perf_counter()
    failed: dict[str, str] = {}
    run: list[str] = []
    for batch in chosen:
        started = perf_counter()
        names, failures = _outcome(worker, batch)
        run += names
        failed |= failures
        seconds = perf_counter() - started
        print(f"{batch.name}: {len(names) - len(failures)} of {len(names)}, {seconds:.1f} s",
              *(f"    {name}: {why}" for name, why in failures.items()),
              sep="\n", file=sys.stderr, flush=True)  # fmt: skip
    known = {name: why for name, why in exclusions().items() if name in run}
    if args.write_exclusions:
        _write({name: why for name, why in exclusions().items() if name not in run} | failed)
    groups = defaultdict(list)
    for name, why in failed.items():
        groups[why].append(name)
    for why, names in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        print(f"{len(names):4} {why}\n       {', '.join(names[: args.names])}")
    surprises = sorted(failed.keys() ^ known.keys())
    for name in surprises:
        print(f"{name} " + ("not listed" if name in failed else "listed, but passes"))
    minutes = (perf_counter() - begin) / 60
    print(f"{len(run) - len(failed)} of {len(run)} variants pass, {minutes:.1f} minutes")
    return 1 if surprises else 0


def _outcome(worker: Worker, batch: Batch) -> tuple[list[str], dict[str, str]]:
    """The names of the variants, and why those fail that do, each by itself if all at once die."""
    found = worker((batch, None))
    if not isinstance(found, str):
        return found
    names, failures = worker((batch, "names"))
    for name in names:
        found = worker((batch, name))
        failures |= {name: found} if isinstance(found, str) else found[1]
    return names, failures


def _write(failed: dict[str, str]) -> None:
    lines = EXCLUSIONS.read_text(encoding="utf-8").splitlines()
    header = [line for line in lines if line.startswith("#")]
    body = [f"{name}: {why}" for name, why in sorted(failed.items())]
    EXCLUSIONS.write_text("\n".join([*header, *body, ""]), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.operator_sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--filter", default="", help="regular expression on the name of a batch")
    parser.add_argument("--names", type=int, default=6, help="variants to list per reason")
    parser.add_argument("--write-exclusions", action="store_true", help="rewrite exclusions.txt")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
