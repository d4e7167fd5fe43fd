"""A folder for files that tools pass to each other.

Part of what loading a model needs: nothing here imports TVM.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import BuildError, TvmExtError

__all__ = ["work_folder"]


@contextmanager
def work_folder() -> Iterator[Path]:
    """A folder that is there within the context.

    Raises:
        BuildError: it cannot be made, or its disk is full.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="tvm_ext_") as folder:
            yield Path(folder)
    except OSError as error:
        if isinstance(error, TvmExtError):
            raise
        raise BuildError(
            f"cannot work in a temporary folder: {error.strerror or error}; "
            "the variable TMPDIR says where they are"
        ) from error
