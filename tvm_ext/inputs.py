"""Arrays to feed a model with: seeded random ones, or read from numpy files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes  # noqa: F401  numpy learns bfloat16 and the float8 types by their names
import numpy as np

from .errors import InputError
from .interface import STRING, Info, Shapes, TensorInfo

__all__ = ["dims_of", "random_inputs", "read_array"]


def random_inputs(
    infos: Sequence[Info],
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    below: Mapping[str, int] | None = None,
) -> dict[str, np.ndarray]:
    """One array per input: floats standard normal, integers and bools 0 or 1.

    Integers stay that small because they are most often indices; ``below`` gives, by input, a
    bound that is known to be safe. ``dims`` gives the sizes of symbolic dims.

    Raises:
        InputError: a symbolic dim has no size, an input is no tensor of numbers or larger than
            memory, or the seed is below 0.
    """
    if seed < 0:
        raise InputError(f"a seed is a whole number of at least 0, not {seed}")
    rng = np.random.default_rng(seed)
    below = below or {}
    return {
        info.name: _random(rng, _tensor(info), dims or {}, below.get(info.name, 2))
        for info in infos
    }


def _tensor(info: Info) -> TensorInfo:
    if not isinstance(info, TensorInfo):
        raise InputError(f"input {info.name!r} is {info.type}, of which none is made up: give one")
    if info.dtype == STRING:
        raise InputError(f"input {info.name!r} holds strings, of which none are made up: give some")
    return info


def _random(
    rng: np.random.Generator, info: TensorInfo, dims: Mapping[str, int], below: int
) -> np.ndarray:
    unknown = [d for d in info.shape if isinstance(d, str) and d not in dims]
    if unknown:
        raise InputError(f"input {info.name!r} {info.shape}: give a size for {', '.join(unknown)}")
    shape = [dims[d] if isinstance(d, str) else d for d in info.shape]
    dtype = np.dtype(info.dtype)
    try:
        if dtype.kind in "biu":
            return rng.integers(0, below, shape).astype(dtype)
        return rng.standard_normal(shape).astype(dtype)
    except (MemoryError, ValueError) as error:  # numpy knows dims up to some size only
        raise InputError(f"input {info.name!r} {shape} needs more memory than there is") from error


def dims_of(infos: Sequence[Info], shapes: Shapes) -> dict[str, int]:
    """The sizes of symbolic dims, from ``shapes`` by dim name or by input name.

    Raises:
        InputError: an unknown name, another rank or size, or a dim given two sizes.
    """
    dims: dict[str, int] = {}
    declared = {info.name: info.shape for info in infos if isinstance(info, TensorInfo)}
    symbols = sorted({d for shape in declared.values() for d in shape if isinstance(d, str)})
    for name, given in shapes.items():
        shape: Sequence[int | str] = (name,) if isinstance(given, int) else declared.get(name, ())
        sizes = [given] if isinstance(given, int) else given
        if (isinstance(given, int) and name not in symbols) or len(shape) != len(sizes):
            raise InputError(f"--shape {name}: the model has the inputs {declared}")
        for dim, size in zip(shape, sizes, strict=True):
            if isinstance(size, str):
                continue  # the name that it has in the model
            want = dims.setdefault(dim, size or 0) if isinstance(dim, str) and size else dim
            if size is not None and want != size:
                raise InputError(f"--shape {name}: {dim} is {want}, not {size}")
    return dims


def read_array(path: Path, name: str) -> np.ndarray:
    """The array in a ``.npy`` file, a tensor of ONNX's ``.pb``, or one of an ``.npz``.

    In an ``.npz`` it is the one called ``name``, or the only one.

    Raises:
        InputError: the file cannot be read, is of no such format, or holds no such array.
    """
    try:
        if path.suffix == ".pb":
            return _read_tensor(path)
        loaded = np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise InputError(f"{path} is not a file of numbers that numpy saved") from error
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        if name in loaded.files or len(loaded.files) == 1:
            return loaded[name if name in loaded.files else loaded.files[0]]
        raise InputError(f"{path} holds no array {name!r}; it has {loaded.files}")


def _read_tensor(path: Path) -> np.ndarray:
    import onnx  # only here: saved models run without it
    from google.protobuf.message import DecodeError

    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(path.read_bytes())
        if tensor.data_location == onnx.TensorProto.EXTERNAL or not tensor.data_type:
            raise InputError(f"{path} holds no tensor of its own")
        return onnx.numpy_helper.to_array(tensor)
    except (DecodeError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not an ONNX tensor: {error}") from error
