"""Arrays of the element types that a model holds as others; see ``narrow`` and ``strings``.

Part of what loading a model needs: nothing here imports TVM.
"""

import ml_dtypes
import numpy as np

__all__ = ["FLOAT4", "FLOAT6", "INTEGERS", "SCALE", "STORAGE", "STRING", "restored", "stored"]

INTEGERS = {"int2": 2, "int4": 4, "uint2": 2, "uint4": 4}  # bits
FLOAT4, SCALE = "float4_e2m1fn", "float8_e8m0fnu"
FLOAT6 = ("float6_e2m3fn", "float6_e3m2fn")
STRING = "string"  # held by numbers; its arrays are no numpy arrays of their own

# Element type -> the type that holds it in a model.
STORAGE = {"int2": "int8", "int4": "int8"} | dict.fromkeys(
    ("uint2", "uint4", FLOAT4, *FLOAT6, SCALE), "uint8"
)

_NARROW = frozenset(np.dtype(getattr(ml_dtypes, name)) for name in STORAGE)
STORAGE[STRING] = "int64"


def stored(array: np.ndarray) -> np.ndarray:
    """``array`` as a model holds it."""
    if array.dtype not in _NARROW:  # comparing dtypes is quick, asking for their names is not
        return array
    name = array.dtype.name
    if name in INTEGERS:
        return array.astype(STORAGE[name])
    return np.ascontiguousarray(array).view(np.uint8).reshape(array.shape)


def restored(array: np.ndarray, dtype: str) -> np.ndarray:
    """The inverse of :func:`stored`: ``array`` of a model as ``dtype``."""
    if dtype not in STORAGE or array.dtype.name == dtype:
        return array
    numpy_type = getattr(ml_dtypes, dtype)
    return array.astype(numpy_type) if dtype in INTEGERS else array.view(numpy_type)
