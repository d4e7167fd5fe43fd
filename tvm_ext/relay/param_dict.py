"""Parameters as bytes: ``relay.save_param_dict`` and ``relay.load_param_dict``."""

from collections.abc import Mapping

import tvm

from tvm_ext.errors import InputError

from .nd import NDArray, array

__all__ = ["load_param_dict", "save_param_dict"]


def save_param_dict(params: Mapping[str, NDArray]) -> bytearray:
    """The arrays by name, in TVM's own format."""
    tensors = {name: tvm.runtime.tensor(value.numpy()) for name, value in params.items()}
    return tvm.runtime.save_param_dict(tensors)


def load_param_dict(data: bytes | bytearray) -> dict[str, NDArray]:
    """What :func:`save_param_dict` wrote.

    Raises:
        InputError: the bytes are no such parameters.
    """
    try:
        loaded = tvm.runtime.load_param_dict(bytearray(data))
    except (RuntimeError, ValueError, TypeError) as error:
        raise InputError("these bytes are no parameters that save_param_dict wrote") from error
    return {str(name): array(value.numpy()) for name, value in loaded.items()}
