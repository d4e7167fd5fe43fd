"""Build the random graphs of many seeds and compare them with onnxruntime, each in a child process.

Each seed is built with static and with symbolic sizes at opt level 3, and once more at another. A
model that fails is kept with its inputs; the seed alone makes it again.

Example:
    python -m tests.random_graphs 0 500 --keep out/random

Exit status 1: a graph fails.
"""

import argparse
import sys
from time import perf_counter

from tests.official_suite.worker import Worker

from .keep import answer

_SECONDS_PER_SEED = 300


def main() -> int:
    args = _arguments()
    worker = Worker(answer, _SECONDS_PER_SEED)
    begin, bad = perf_counter(), 0
    for seed in range(args.first, args.last):
        found = worker((seed, args.keep))
        failures = [(str(seed), found)] if isinstance(found, str) else found
        for name, reason in failures:
            print(f"{name}: {' | '.join(reason.splitlines())}", flush=True)
        bad += bool(failures)
    count = max(args.last - args.first, 0)
    print(f"{count - bad} of {count} seeds pass, {(perf_counter() - begin) / 60:.1f} minutes")
    return 1 if bad else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.random_graphs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("last", type=int, help="the seed after the last")
    parser.add_argument("--keep", help="a folder for models that fail")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
