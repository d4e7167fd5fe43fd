"""Everything that a build makes, as files in one folder: programs, code, the memory plan."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from .errors import OutputPathError
from .executors.atomic import filling
from .executors.plan_picture import lives, picture
from .executors.static import StaticExecutor
from .model import CompiledModel

__all__ = ["check_folder", "keep", "keep_all", "named"]

_PHASES = ("import", "select", "fuse", "schedule")
_NAMES = {"c": "entry.c", "llvm": "kernels.ll", "asm": "kernels.s", "cuda": "kernels.cu"} | {
    phase: f"{number}_{phase}.py" for number, phase in enumerate(_PHASES, 1)
}


def keep(model: CompiledModel, folder: str | os.PathLike) -> None:
    """Write what ``model`` was made of into ``folder``, which is made where it is missing.

    ``1_import.py`` to ``4_schedule.py`` have Relax and TIR after each phase, ``kernels.ll`` and
    ``kernels.s`` LLVM IR and assembly, ``entry.c`` the C function that calls the kernels; of a
    model of static shape ``plan.json`` has offset, size and first and last kernel of each tensor,
    and ``plan.svg`` draws them over time. Files of these names are replaced; others in the folder
    stay.

    Raises:
        OutputPathError: the folder cannot be written; it is then what it was.
    """
    keep_all({"": model}, folder)


def keep_all(models: Mapping[str, CompiledModel], folder: str | os.PathLike) -> None:
    """The same of several models, each in a folder of its own in ``folder``, by their names."""
    try:
        with filling(check_folder(folder)) as made:
            for name, model in models.items():
                (made / name).mkdir(exist_ok=True)
                for file, text in _files(model):
                    (made / name / file).write_bytes(text.encode())
    except OSError as error:
        raise OutputPathError(
            f"cannot write {folder}, nothing is kept: {error.strerror or error}"
        ) from error


def check_folder(folder: str | os.PathLike) -> Path:
    """Where ``folder`` is, or will be.

    Raises:
        OutputPathError: there is something else of that name, or nothing to make it in.
    """
    place = named(folder)
    try:
        if place.exists() and not place.is_dir():
            raise OutputPathError(f"{folder} is not a folder: give the name of one")
        if not place.exists() and not place.parent.is_dir():
            raise OutputPathError(f"cannot write {folder}: {place.parent} is not a folder")
    except OSError as error:  # a name that is too long, a folder that lets nobody in
        if isinstance(error, OutputPathError):
            raise
        raise OutputPathError(f"cannot write {folder}: {error.strerror or error}") from error
    return place


def named(folder: object) -> Path:
    """The path that ``folder`` is.

    Raises:
        OutputPathError: it is none.
    """
    path = os.fspath(folder) if isinstance(folder, os.PathLike) else folder
    if not isinstance(path, str) or "\0" in path:
        raise OutputPathError(f"cannot write {folder!r}: give the path of a folder")
    return Path(path)


def _files(model: CompiledModel) -> Iterator[tuple[str, str]]:
    for key, text in model.sources().items():
        yield _NAMES.get(key, f"{key}.txt"), text
    executor = model.executor
    if isinstance(executor, StaticExecutor):
        rows = lives(executor.plan, model.nodes_of)
        plan = {
            "arena_bytes": executor.plan.arena_bytes,
            "live_bytes": executor.plan.live_bytes,
            "weight_bytes": executor.plan.weight_bytes,
            "scratch_bytes": executor.plan.scratch_bytes,
            "kernels": [kernel.symbol for kernel in executor.plan.kernels],
            "tensors": [vars(row) for row in rows],
        }
        yield "plan.json", json.dumps(plan, indent=1) + "\n"
        yield "plan.svg", picture(executor.plan, rows)
