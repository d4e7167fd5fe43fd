"""Converters for the feature preparation of ai.onnx.ml: scaling, encoding, picking of columns."""

import numpy as np
from tvm import relax
from tvm.ir.expr import GenericConst

from tvm_ext.interface import MapType, TensorType
from tvm_ext.ops import preprocessing as ops
from tvm_ext.ops.gather_scatter import gather
from tvm_ext.ops.narrow import STRING

from .. import host
from ..class_scores import rows_of
from ..indices import demand_between
from ..precision import cast
from ..table import converter
from .cast import cast as cast_of_onnx

_ML = "ai.onnx.ml"


@converter("ArrayFeatureExtractor", 1, domain=_ML)
def array_feature_extractor(bb, x, y):
    rows = bb.emit(relax.op.expand_dims(x, 0)) if bb.rank(x) == 1 else x
    if isinstance(y, GenericConst):  # TVM would compile each reshape to fold it
        columns = bb.const(y.value.numpy().ravel())
    else:
        columns = bb.emit(relax.op.reshape(y, [-1]))
    return bb.emit_te(gather, rows, columns, bb.rank(rows) - 1)


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
    x = _of_features(bb, x, len(values))
    return bb.emit_te(ops.impute, x, bb.const(np.asarray(values, dtype)), replaced=replaced)


def _of_features(bb, x, count):
    """``x``, which has so many features, or any number of them if that is one.

    Raises:
        ValueError: it has others.
    """
    return x if count == 1 else bb.of_shape(x, [*bb.shape(x)[:-1], count])


@converter("Normalizer", 1, domain=_ML)
def normalizer(bb, x, *, norm="MAX"):
    if norm not in ops.NORMS:
        raise NotImplementedError(f"norm {norm}")
    y = bb.emit_te(ops.normalize_rows, cast(bb, rows_of(bb, x), "float32"), norm)
    return y if bb.rank(x) == 2 else bb.reshape(y, bb.shape(x))


@converter("Scaler", 1, domain=_ML)
def scaler(bb, x, *, offset=(), scale=()):
    offset, scale = (bb.const(np.asarray(v, "float32")) for v in (offset or (0,), scale or (1,)))
    x = _of_features(bb, x, max(bb.shape(offset)[0], bb.shape(scale)[0]))
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
    categories = bb.numbers(cats_strings) if cats_strings else np.asarray(cats_int64s, "int64")
    y = bb.emit_te(ops.one_hot, cast(bb, x, "int64"), bb.const(categories))
    if not zeros:
        unknown = bb.emit(relax.op.equal(bb.emit(relax.op.sum(y, -1)), bb.const(np.float32(0))))
        count = bb.emit(relax.op.sum(cast(bb, unknown, "int64")))
        demand_between(bb, count, 0, 0, "the number of elements that are no category")
    return y


@converter("LabelEncoder", 2, 4, domain=_ML)
def label_encoder(bb, x, *, default_float=-0.0, default_int64=-1, default_string="_Unused",
                  default_tensor=None, keys_floats=(), keys_int64s=(), keys_strings=(),
                  keys_tensor=None, values_floats=(), values_int64s=(), values_strings=(),
                  values_tensor=None):  # fmt: skip
    keys = _labels(keys_floats, keys_int64s, keys_strings, keys_tensor)
    values = _labels(values_floats, values_int64s, values_strings, values_tensor)
    if keys.shape != values.shape or keys.ndim != 1 or not keys.size:
        raise NotImplementedError(f"keys {keys.shape} and values {values.shape}")
    if default_tensor is not None:
        default = default_tensor.numpy().reshape(-1)[0]
    else:
        kinds = {"f": default_float, "i": default_int64, "O": default_string}
        default = kinds.get(values.dtype.kind, 0)
    return _encoded(bb, x, keys, values, default)


@converter("LabelEncoder", 1, domain=_ML)
def label_numbers(bb, x, *, classes_strings=(), default_int64=-1, default_string="_Unused"):
    """The first version numbers its classes from 0."""
    numbers = range(len(classes_strings))
    return category_mapper(
        bb, x, cats_int64s=numbers, cats_strings=classes_strings, default_int64=default_int64,
        default_string=default_string,
    )  # fmt: skip


@converter("CategoryMapper", 1, domain=_ML)
def category_mapper(
    bb, x, *, cats_int64s=(), cats_strings=(), default_int64=-1, default_string="_Unused"
):
    """Strings to integers or back."""
    strings, integers = np.array(cats_strings, object), np.asarray(cats_int64s, "int64")
    if len(strings) != len(integers):
        raise NotImplementedError(f"{len(strings)} strings and {len(integers)} integers")
    if bb.element(x) == STRING:
        return _encoded(bb, x, strings, integers, default_int64)
    return _encoded(bb, x, integers, strings, default_string)


def _encoded(bb, x, keys, values, default):
    """The value of each key that ``x`` has; strings, too, are found by their numbers."""
    if (keys.dtype == object) != (bb.element(x) == STRING):
        kind = "strings" if keys.dtype == object else "numbers"
        raise ValueError(f"the keys are {kind}, its input is {bb.element(x)}")
    found = bb.numbers(keys) if keys.dtype == object else keys
    # Sorted by key, the first of equal ones in front; NaN, which is equal to itself here, last.
    order = np.argsort(found, kind="stable")
    table = bb.const(values[order])
    operands = bb.const(found[order]), table, bb.const(np.array(default, values.dtype))
    return bb.copy_knowledge(table, bb.emit_te(ops.encode_labels, x, *operands))


@converter("DictVectorizer", 1, domain=_ML)
def dict_vectorizer(bb, x, *, int64_vocabulary=(), string_vocabulary=()):
    """The values of the vocabulary's keys in a row, as onnxruntime gives it; 0 where none is."""
    if bool(len(int64_vocabulary)) == bool(len(string_vocabulary)):
        raise ValueError("needs either int64_vocabulary or string_vocabulary")
    if len(string_vocabulary):
        wanted = bb.numbers(np.array(string_vocabulary, object))
    else:
        wanted = np.asarray(int64_vocabulary, "int64")
    keys, values = _entries(bb, x)
    return _at_keys(bb, bb.const(wanted[None]), keys, values)


@converter("CastMap", 1, domain=_ML)
def cast_map(bb, x, *, cast_to="TO_FLOAT", map_form="DENSE", max_map=1):
    """The values in the order of their keys, or, of a sparse map, each at the place of its key."""
    forms = {"TO_FLOAT": 1, "TO_INT64": 7, "TO_STRING": 8}
    if cast_to not in forms or map_form not in ("DENSE", "SPARSE"):
        raise ValueError(f"cast_to={cast_to!r} and map_form={map_form!r}")
    keys, values = _entries(bb, x)
    if map_form == "SPARSE":
        row = _at_keys(bb, bb.const(np.arange(max_map)[None]), keys, values)
    else:
        row = bb.of_element(bb.emit(relax.op.expand_dims(values, 0)), bb.element(values))
    return cast_of_onnx(bb, row, to=forms[cast_to])


def _entries(bb, x):
    """Keys in increasing order and values of a map, which are known at run time."""
    kind = host.kind_of(bb, x)
    if not isinstance(kind, MapType):
        raise NotImplementedError(f"its input is {kind}, must be a map")
    kinds = [TensorType(dtype, ("entries",)) for dtype in (kind.key, kind.value)]
    keys, values = host.call_for_tensors(bb, "entries", x, kinds=kinds)
    return keys, host.like(bb, bb.match(values, bb.shape(keys)), kinds[1])


def _at_keys(bb, wanted, keys, values):
    """The value of each key in ``wanted``; 0 or an empty string where the map has none."""
    element = bb.element(values)
    default = np.array("", object) if element == STRING else np.zeros((), element)
    found = bb.emit_te(ops.encode_labels, wanted, keys, values, bb.const(default))
    return bb.of_element(found, element)


def _labels(floats, integers, strings, tensor):
    if tensor is not None:
        found = tensor.numpy()
        return np.char.decode(found).astype(object) if found.dtype.kind == "S" else found
    if strings:
        return np.array(strings, object)
    return np.asarray(floats, "float32") if floats else np.asarray(integers, "int64")


@converter("ZipMap", 1, domain=_ML)
def zip_map(bb, x, *, classlabels_int64s=(), classlabels_strings=()):
    """The scores: maps from labels to those of a row are made of them when they are returned."""
    if bool(classlabels_int64s) == bool(classlabels_strings):
        raise ValueError("needs either classlabels_int64s or classlabels_strings")
    keys = list(classlabels_int64s or classlabels_strings)
    if bb.rank(x) not in (1, 2):
        raise NotImplementedError(f"rank {bb.rank(x)}, must be [C] or [N, C]")
    *rows, _ = bb.shape(x)
    scores = bb.match(x, [*rows, len(keys)], reason="{wanted} labels for {given} columns")
    maps = scores if rows else bb.reshape(scores, [1, len(keys)])
    bb.labels[maps] = tuple(keys)
    return maps
