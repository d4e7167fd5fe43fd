"""A compiled model: call it, run it, ask it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import tvm

from .errors import InputError
from .executors import artifact
from .executors.plan import MemoryPlan

__all__ = ["CompiledModel", "TensorInfo", "load"]


@dataclass(frozen=True)
class TensorInfo:
    """Name, shape (ints and names of symbolic dims) and dtype of an input or output."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str


class CompiledModel:
    """A model compiled for one target.

    Call it with arrays (numpy or DLPack) by position or by input name; it returns one numpy
    array, or a tuple of them where the model has several outputs.
    """

    def __init__(self, executor, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]):
        self._executor = executor
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)

    @property
    def device(self) -> tvm.runtime.Device:
        """Where the model runs."""
        return self._executor.device

    @property
    def memory(self) -> MemoryPlan | None:
        """What was planned at compile time; None where memory is allocated at run time."""
        return self._executor.memory

    def save(self, path: str | os.PathLike) -> None:
        """Write the model to one file, for :func:`tvm_ext.load`.

        Raises:
            OutputPathError: the file cannot be written; nothing is left half-written.
        """
        ports = {"inputs": self.inputs, "outputs": self.outputs}
        interface = {key: [asdict(info) for info in infos] for key, infos in ports.items()}
        artifact.write(path, self._executor, interface)

    def __call__(self, *args: object, **kwargs: object) -> np.ndarray | tuple[np.ndarray, ...]:
        names = [info.name for info in self.inputs]
        if len(args) > len(names):
            raise InputError(f"{len(args)} inputs given, the model has {len(names)}: {names}")
        feeds = dict(zip(names, args, strict=False))
        twice = sorted(feeds.keys() & kwargs.keys())
        if twice:
            raise InputError(f"inputs given twice: {twice}")
        results = self.run(None, feeds | kwargs)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, output_names: Sequence[str] | None,
            feeds: Mapping[str, object]) -> list[np.ndarray]:
        """Run as ``onnxruntime.InferenceSession.run`` does.

        Args:
            output_names: the outputs wanted, in order; None for all.
            feeds: one array per input name.

        Raises:
            InputError: a name, dtype, rank or shape does not fit.
        """
        wanted = self._output_indices(output_names)
        results = self._executor(self._arrays(feeds))
        return [results[k] for k in wanted]

    def _output_indices(self, names: Sequence[str] | None) -> list[int]:
        known = [info.name for info in self.outputs]
        if names is None:
            return list(range(len(known)))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InputError(f"no outputs {unknown}; the model has {known}")
        return [known.index(name) for name in names]

    def _arrays(self, feeds: Mapping[str, object]) -> list[np.ndarray]:
        known = [info.name for info in self.inputs]
        missing = [name for name in known if name not in feeds]
        unknown = [name for name in feeds if name not in known]
        if missing or unknown:
            raise InputError(f"inputs missing: {missing}, unknown: {unknown}; the model has {known}")
        sizes: dict[str, int] = {}
        return [_checked(info, feeds[info.name], sizes) for info in self.inputs]


def load(path: str | os.PathLike) -> CompiledModel:
    """Read a model that :meth:`CompiledModel.save` wrote. It holds native code: trust it first.

    Raises:
        OutputPathError: the file cannot be read, is not ours, or is damaged.
    """
    executor, interface = artifact.read(path)
    inputs, outputs = (
        [TensorInfo(row["name"], tuple(row["shape"]), row["dtype"]) for row in interface[key]]
        for key in ("inputs", "outputs")
    )
    return CompiledModel(executor, inputs, outputs)


def _checked(info: TensorInfo, value: object, sizes: dict[str, int]) -> np.ndarray:
    """``value`` as a contiguous array that fits ``info``; ``sizes`` binds symbolic dims."""
    array = np.from_dlpack(value) if hasattr(value, "__dlpack__") and not isinstance(
        value, np.ndarray) else np.asarray(value)
    if array.dtype.name != info.dtype:
        raise InputError(f"input {info.name!r} needs dtype {info.dtype}, got {array.dtype}")
    if array.ndim != len(info.shape):
        raise InputError(
            f"input {info.name!r} needs rank {len(info.shape)} {info.shape}, got shape {array.shape}")
    for axis, (want, got) in enumerate(zip(info.shape, array.shape, strict=True)):
        if isinstance(want, str):
            want = sizes.setdefault(want, got)
        if want != got:
            raise InputError(
                f"input {info.name!r} axis {axis}: needs {info.shape[axis]}"
                f"{f' = {want}' if isinstance(info.shape[axis], str) else ''}, got {got}")
    return np.ascontiguousarray(array).reshape(array.shape)
