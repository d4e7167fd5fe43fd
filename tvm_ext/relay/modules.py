"""Import lines below ``tvm_ext.relay`` that name what is no file here.

``from tvm_ext.relay.tvm.contrib import graph_executor`` gives ours, ``import
tvm_ext.relay.tvm.topi`` TVM's own module and not a second copy of it, and ``from
tvm_ext.relay.tvm import autotvm`` the error that says what to use instead.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from tvm_ext.errors import RemovedError, RemovedModuleError

from .removed import removed

__all__ = ["Overlay", "find_below", "own_or_of"]

_ROOT = f"{__package__}."


def own_or_of(name: str, attribute: str, bases: Sequence[ModuleType]) -> object:
    """``attribute`` of the first of TVM's modules ``bases`` that has it; ``name`` is theirs here.

    Raises:
        RemovedError: none has it.
    """
    if attribute.startswith("__"):  # TVM's __path__ would lead to a second copy of its modules
        raise AttributeError(attribute)
    for base in bases:
        if hasattr(base, attribute):
            return getattr(base, attribute)
        below = f"{base.__name__}.{attribute}"
        if hasattr(base, "__path__") and find_spec(below) is not None:
            return import_module(below)
    raise removed(f"{name}.{attribute}")


class Overlay(ModuleType):
    """A module with the attributes given, and those of TVM's modules ``bases`` for the rest."""

    def __init__(self, name: str, bases: Sequence[ModuleType], **attributes: object):
        super().__init__(name)
        self.__path__ = []  # modules below are found by the finder
        self.__dict__.update(attributes)
        self._bases = bases

    def __getattr__(self, attribute: str) -> Any:
        return own_or_of(self.__name__, attribute, self._bases)


class _Finder(MetaPathFinder, Loader):
    """Finds what is below this package and none of its files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_ROOT):
            return None
        is_file = path == sys.modules[__package__].__path__ and PathFinder.find_spec(fullname, path)
        return None if is_file else ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        found: object = sys.modules[__package__]
        try:
            for part in module.__name__.removeprefix(_ROOT).split("."):
                found = getattr(found, part)
        except RemovedError as error:
            raise RemovedModuleError(str(error)) from error
        if not isinstance(found, ModuleType):
            raise ModuleNotFoundError(f"{module.__name__} is no module", name=module.__name__)
        sys.modules[module.__name__] = found


def find_below() -> None:
    """Let import lines find what is below this package and no file."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # before TVM's packages are searched for files
