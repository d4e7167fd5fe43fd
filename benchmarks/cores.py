"""How far apart two cores are, again and again: whether times of different runs can be compared.

    python -m benchmarks.cores --repetitions 60 --pause 0.12

A virtual machine's cores may be neighbours at one time and share no cache at another, as the host
places them. On an EPYC (Zen 5) a cache line went to and fro in 95 ns, or in 440 ns for seconds on
end, with nothing else running. Times of small networks (EfficientNet-B0, MobileNetV2) have two
modes a third apart there, too.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tvm_ext.executors.toolchain import compiler

__all__ = ["main", "round_trips"]

# Of the shortest round trip, from where on cores count as distant.
_DISTANT = 2.0


def round_trips(cores: Sequence[int], repetitions: int, pause: float) -> list[float]:
    """Nanoseconds that a cache line takes from one of two ``cores`` to the other and back.

    Each is the mean of 2000 round trips, ``pause`` seconds after the one before. Linux only.

    Raises:
        BuildError: there is no C compiler.
        subprocess.CalledProcessError: it fails, or the system refuses a thread.
    """
    source = Path(__file__).with_suffix(".c")
    with tempfile.TemporaryDirectory(prefix="tvm_ext_") as folder:
        program = Path(folder, "cores")
        subprocess.run([*compiler(), "-O2", "-pthread", source, "-o", program], check=True)
        numbers = (*cores, repetitions, round(pause * 1e6))
        done = subprocess.run(
            [program, *map(str, numbers)], check=True, capture_output=True, text=True
        )
    return [float(line) for line in done.stdout.split()]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 where there is one core alone."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cores", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.12, help="seconds between two of them")
    options = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("there is one core alone")
        return 1
    found = round_trips(cores, options.repetitions, options.pause)
    far = [trip for trip in found if trip > _DISTANT * min(found)]
    near = [trip for trip in found if trip not in far]
    print(" ".join(f"{trip:.0f}" for trip in found))
    print(f"cores {cores[0]} and {cores[1]}: {median(near):.0f} ns in {len(near)} of {len(found)}")
    if far:
        print(f"{median(far):.0f} ns in {len(far)}: compare times of one run and one state only")
    return 0


if __name__ == "__main__":
    sys.exit(main())
