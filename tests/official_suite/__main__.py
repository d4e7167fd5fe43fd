"""Run the official suite and report its failures grouped by reason.

Examples:
    python -m tests.official_suite --filter 'lstm|gru'
    python -m tests.official_suite --jobs 2 --write-exclusions
"""

import argparse
import re
import sys
from collections import defaultdict

from . import CASES, EXCLUSIONS
from .worker import run

_HEADER = """\
# The cases of the official ONNX backend suite that fail, one per line with the reason.
# Strict: a case that starts to pass fails the test run until it leaves this list.
# Rewritten by: python -m tests.official_suite --jobs 2 --write-exclusions
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m tests.official_suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--filter", default="", help="regular expression on the name of a case")
    parser.add_argument("--names", type=int, default=4, help="cases to list per reason (default 4)")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes (default 1)")
    parser.add_argument(
        "--write-exclusions", action="store_true", help="rewrite the exclusion list; runs all cases"
    )
    args = parser.parse_args()

    pattern = "" if args.write_exclusions else args.filter
    names = [name for name in sorted(CASES) if re.search(pattern, name)]
    failures = {}
    for count, (name, reason) in enumerate(run(names, args.jobs), 1):
        if reason:
            failures[name] = reason
        if count % 100 == 0:
            print(f"{count} of {len(names)}, {len(failures)} failed", file=sys.stderr, flush=True)
    groups = defaultdict(list)
    for name, reason in failures.items():
        groups[reason].append(name)
    for reason, members in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        more = f" ... {len(members)}" if len(members) > args.names else ""
        print(f"{len(members):4} {reason}\n       {' '.join(members[: args.names])}{more}")
    print(f"{len(names) - len(failures)} of {len(names)} cases pass")
    if args.write_exclusions:
        lines = (f"{name}: {reason}\n" for name, reason in failures.items())
        EXCLUSIONS.write_text(_HEADER + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
