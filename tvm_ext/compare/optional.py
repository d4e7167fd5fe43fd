"""Packages that only the comparison needs: imported where they are used."""

from importlib import import_module
from types import ModuleType

from ..errors import MissingPackageError

__all__ = ["require"]


def require(name: str) -> ModuleType:
    """The package ``name``, which the extra ``compare`` installs.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        raise MissingPackageError(
            f"{error.name} is not installed: pip install 'tvm-ext[compare]'"
        ) from error
