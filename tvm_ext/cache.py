"""Compiled models kept in a folder, by what they were made from.

An entry's name is a digest of everything that decides its content, so entries are never stale and
writers of one entry write the same: each writes a file of its own, and the last to finish stays.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
from collections.abc import Callable, Iterator
from functools import cache as once
from pathlib import Path

import onnx_ir as ir
import tvm
from tvm.ir.transform import PassContext

from ._version import __version__
from .errors import BuildError, OutputPathError, TargetError
from .executors.artifact import FORMAT
from .executors.atomic import remove_abandoned
from .frontend.traverse import tensors
from .model import CompiledModel, load
from .pipeline import Pipeline

__all__ = ["Cache", "default_folder", "key_of"]

_log = logging.getLogger(__name__)
_NAMES = "[0-9a-f]" * 64 + ".so"


def default_folder() -> Path:
    """Where the command line keeps compiled models: ``tvm_ext`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "tvm_ext"


class Cache:
    """A folder of compiled models; it is made when the first is kept."""

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)

    def fetch(self, key: str, build: Callable[[], CompiledModel]) -> CompiledModel:
        """The model under ``key``; what ``build`` returns where it is missing or damaged.

        A folder that cannot be written, or a model that cannot be saved here, costs no build: it
        is logged.
        """
        path = self.folder / f"{key}.so"
        if path.exists():
            try:
                return load(path, verify=True)
            except (OutputPathError, TargetError, BuildError) as error:
                _log.info("built again: %s", error)
        model = build()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            model.save(path)
        except (OutputPathError, BuildError) as error:
            _log.warning("not cached: %s", error)
        except OSError as error:
            _log.warning("not cached: cannot write %s: %s", self.folder, error.strerror)
        return model

    def entries(self) -> list[Path]:
        """The files of all models."""
        return sorted(self.folder.glob(_NAMES))

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.entries())

    def clear(self) -> None:
        """Remove all models, and what killed writers left; loaded models keep working.

        Raises:
            OutputPathError: one cannot be removed.
        """
        remove_abandoned(self.folder)
        for path in self.entries():
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise OutputPathError(f"cannot remove {path}: {error.strerror}") from error


def key_of(model: ir.Model, steps: Pipeline, **options: object) -> str | None:
    """The digest of all that decides what ``model`` is compiled to by ``steps``.

    That is the model with its external data, the target, the steps, ``options``, TVM's
    PassContext, the plugins and the code of this package. None where a plugin is no single file,
    as what a notebook declares: it has no content to go by.
    """
    from .extend.plugin import INTERACTIVE, PLUGINS

    plugins = [p for p in (INTERACTIVE, *PLUGINS.values()) if p.operators or p.compounds or p.steps]
    if not all(plugin.content for plugin in plugins):
        return None
    context = PassContext.current()
    facts = {
        "target": str(steps.target),
        "precision": steps.precision,
        "steps": [(step.phase, step.name) for step in steps.steps],
        "options": sorted(options.items()),
        "context": [context.opt_level, list(context.disabled_pass), dict(context.config)],
        "plugins": sorted((plugin.name, plugin.content) for plugin in plugins),
        "versions": [__version__, _own_code(), FORMAT, tvm.__version__],
    }
    return _digest(json.dumps(facts, default=str).encode(), *_content(model))


def _content(model: ir.Model) -> Iterator[bytes]:
    yield ir.to_proto(model).SerializeToString(deterministic=True)
    for _, tensor in tensors(model):
        if isinstance(tensor, ir.ExternalTensor):
            yield tensor.tobytes()


@once
def _own_code() -> str:
    """A digest of this package: between releases its version says too little."""
    folders = Path(__file__).parent, Path(inspect.getfile(tensors)).parent
    files = sorted(path for folder in folders for path in folder.rglob("*.[pch]*"))
    return _digest(*(path.read_bytes() for path in files if path.suffix in (".py", ".c", ".h")))


def _digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.hexdigest()
