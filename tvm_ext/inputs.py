"""Arrays to feed a model with: seeded random ones, or read from numpy files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes  # noqa: F401  numpy learns bfloat16 and the float8 types by their names
import numpy as np

from .errors import InputError
from .interface import TensorInfo

__all__ = ["random_inputs", "read_array"]


def random_inputs(
    infos: Sequence[TensorInfo],
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    below: Mapping[str, int] | None = None,
) -> dict[str, np.ndarray]:
    """One array per input: floats standard normal, integers and bools 0 or 1.

    Integers stay that small because they are most often indices; ``below`` gives, by input, a
    bound that is known to be safe. ``dims`` gives the sizes of symbolic dims.

    Raises:
        InputError: a symbolic dim has no size.
    """
    rng = np.random.default_rng(seed)
    below = below or {}
    return {info.name: _random(rng, info, dims or {}, below.get(info.name, 2)) for info in infos}


def _random(
    rng: np.random.Generator, info: TensorInfo, dims: Mapping[str, int], below: int
) -> np.ndarray:
    unknown = [d for d in info.shape if isinstance(d, str) and d not in dims]
    if unknown:
        raise InputError(f"input {info.name!r} {info.shape}: give a size for {', '.join(unknown)}")
    shape = [dims[d] if isinstance(d, str) else d for d in info.shape]
    dtype = np.dtype(info.dtype)
    if dtype.kind in "biu":
        return rng.integers(0, below, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def read_array(path: Path, name: str) -> np.ndarray:
    """The array in a ``.npy`` file, or the one called ``name`` (or the only one) in a ``.npz``.

    Raises:
        InputError: the file cannot be read, is not a numpy file, or holds no such array.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise InputError(f"{path} is not a numpy file: {error}") from error
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        if name in loaded.files or len(loaded.files) == 1:
            return loaded[name if name in loaded.files else loaded.files[0]]
        raise InputError(f"{path} holds no array {name!r}; it has {loaded.files}")
