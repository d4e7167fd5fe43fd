"""Converters for the feature preparation of ai.onnx.ml: scaling, encoding, picking of columns."""

import numpy as np
from tvm import relax

from tvm_ext.ops import preprocessing as ops
from tvm_ext.ops.gather_scatter import gather

from ..class_scores import rows_of
from ..precision import cast
from ..table import converter, refuse

_ML = "ai.onnx.ml"
_STRINGS = "works on strings; encode them outside of the model"
_MAPS = "its values are maps, which no compiled model holds"

refuse("CategoryMapper", _ML, _STRINGS)
refuse("CastMap", _ML, _MAPS)
refuse("DictVectorizer", _ML, f"{_MAPS}; give the model the vector")
refuse("ZipMap", _ML, f"{_MAPS}; export without it (skl2onnx: options={{'zipmap': False}})")


@converter("ArrayFeatureExtractor", 1, domain=_ML)
def array_feature_extractor(bb, x, y):
    rows = bb.emit(relax.op.expand_dims(x, 0)) if bb.rank(x) == 1 else x
    return bb.emit_te(gather, rows, bb.emit(relax.op.reshape(y, [-1])), bb.rank(rows) - 1)


@converter("Binarizer", 1, domain=_ML)
def binarizer(bb, x, *, threshold=0.0):
    above = bb.emit(relax.op.greater(x, bb.const(threshold, bb.dtype(x))))
    return bb.emit(relax.op.astype(above, bb.dtype(x)))


@converter("Imputer", 1, domain=_ML)
def imputer(bb, x, *, imputed_value_floats=(), imputed_value_int64s=(), replaced_value_float=0.0,
            replaced_value_int64=0):  # fmt: skip
    dtype = bb.dtype(x)
    if "float" in dtype:
        values, replaced = imputed_value_floats, replaced_value_float
    else:
        values, replaced = imputed_value_int64s, replaced_value_int64
    if len(values) != 1 and len(values) != bb.shape(x)[-1]:
        raise NotImplementedError(f"{len(values)} imputed values for {bb.shape(x)[-1]} features")
    return bb.emit_te(ops.impute, x, bb.const(np.asarray(values, dtype)), replaced=replaced)


@converter("Normalizer", 1, domain=_ML)
def normalizer(bb, x, *, norm="MAX"):
    if norm not in ops.NORMS:
        raise NotImplementedError(f"norm {norm}")
    y = bb.emit_te(ops.normalize_rows, cast(bb, rows_of(bb, x), "float32"), norm)
    return y if bb.rank(x) == 2 else bb.emit(relax.op.reshape(y, bb.shape(x)))


@converter("Scaler", 1, domain=_ML)
def scaler(bb, x, *, offset=(), scale=()):
    offset, scale = (bb.const(np.asarray(v, "float32")) for v in (offset or (0,), scale or (1,)))
    shifted = bb.emit(relax.op.subtract(cast(bb, x, "float32"), offset))
    return bb.emit(relax.op.multiply(shifted, scale))


@converter("FeatureVectorizer", 1, domain=_ML)
def feature_vectorizer(bb, *inputs, inputdimensions=()):
    """The first ``inputdimensions[k]`` features of each input, side by side, padded with zeros."""
    if len(inputdimensions) != len(inputs):
        raise NotImplementedError(f"{len(inputdimensions)} inputdimensions, {len(inputs)} inputs")
    parts = []
    for x, width in zip(inputs, inputdimensions, strict=True):
        x = bb.emit(relax.op.reshape(x, [bb.shape(x)[0], -1])) if bb.rank(x) != 2 else x
        x = cast(bb, x, "float32")
        parts.append(x if bb.shape(x)[1] == width else bb.emit_te(ops.fit_columns, x, width))
    return bb.emit(relax.op.concat(parts, 1))


@converter("OneHotEncoder", 1, domain=_ML)
def one_hot_encoder(bb, x, *, cats_int64s=(), cats_strings=(), zeros=1):
    if cats_strings:
        raise NotImplementedError("categories that are strings; map them to integers before")
    if not zeros:
        raise NotImplementedError("zeros=0, an error where an element is no category")
    keys = bb.const(np.asarray(cats_int64s, "int64"))
    return bb.emit_te(ops.one_hot, cast(bb, x, "int64"), keys)


@converter("LabelEncoder", 2, 4, domain=_ML)
def label_encoder(bb, x, *, default_float=-0.0, default_int64=-1, default_string="_Unused",
                  default_tensor=None, keys_floats=(), keys_int64s=(), keys_strings=(),
                  keys_tensor=None, values_floats=(), values_int64s=(), values_strings=(),
                  values_tensor=None):  # fmt: skip
    if keys_strings or values_strings:
        raise NotImplementedError(_STRINGS)
    keys = _labels(keys_floats, keys_int64s, keys_tensor)
    values = _labels(values_floats, values_int64s, values_tensor)
    if keys.shape != values.shape or keys.ndim != 1 or not keys.size:
        raise NotImplementedError(f"keys {keys.shape} and values {values.shape}")
    default = default_float if values_floats else default_int64
    if default_tensor is not None:
        default = default_tensor.numpy().reshape(-1)[0]
    # Sorted by key, the first of equal ones in front; NaN, which is equal to itself here, last.
    order = np.argsort(keys, kind="stable")
    operands = (keys[order], values[order], np.asarray(default, values.dtype))
    return bb.emit_te(ops.encode_labels, x, *map(bb.const, operands))


def _labels(floats, integers, tensor):
    if tensor is not None:
        if tensor.dtype.name == "STRING":
            raise NotImplementedError(_STRINGS)
        return tensor.numpy()
    return np.asarray(floats, "float32") if floats else np.asarray(integers, "int64")
