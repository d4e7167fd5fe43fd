"""What becomes of one seed, and the models of it that fail."""

from pathlib import Path

import numpy as np
import onnx

from . import check

__all__ = ["answer"]

_OTHERS = [(symbolic, level) for level in (0, 1, 2) for symbolic in (False, True)]


def answer(task: tuple[int, str | None]) -> list[tuple[str, str]]:
    """Names and reasons of the failures of a seed, whose models go into a folder, if given."""
    seed, folder = task
    failures = check(seed, [(False, 3), (True, 3), _OTHERS[seed % len(_OTHERS)]])
    for failure in failures if folder is not None else ():
        path = Path(folder) / failure.name
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(failure.model, f"{path}.onnx")
        for which, feeds in enumerate(failure.feeds):
            np.savez(f"{path}-{which}.npz", **feeds)
    return [(failure.name, failure.reason) for failure in failures]
