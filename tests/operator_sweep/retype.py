"""A node on the element types that the suite does not have for its operator.

One type variable of the schema at a time takes each type that it may be; the values of the suite
are converted to it. Expected is what ``onnx.reference`` computes: of floating-point numbers in
float64, then rounded; where it cannot, onnxruntime.
"""

import copy
import warnings
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from .variant import Variant, joined

__all__ = ["NoOracle", "retyped"]

_OF_RESULT = {"to", "dtype", "output_dtype", "output_datatype"}  # attributes: its type
_WIDE = ("tensor(double)", "tensor(float)")
_EXACT = 2.0**53  # integers up to here are numbers of float64


class NoOracle(Exception):
    """Neither evaluator computes it."""


def retyped(variants: list[Variant]) -> Iterator[Variant]:
    """The first of ``variants`` that has the variable, once for each type that none of them has."""
    variants = [v for v in variants if _is_of_tensors(v)]
    seen = {pair for variant in variants for pair in _types(variant).items()}
    for constraint in variants[0].schema.type_constraints if variants else ():
        variable = constraint.type_param_str
        source = next((v for v in variants if variable in _types(v)), None)
        for kind in sorted(constraint.allowed_type_strs):
            if source and (variable, kind) not in seen and _is_element(kind):
                variant = _of_type(source, variable, kind)
                if _is_valid(variant):
                    yield variant


def _types(variant: Variant) -> dict[str, str]:
    """Type variable -> its type in ``variant``."""
    found: dict[str, str] = {}
    for formal, value in variant.formals():
        found.setdefault(formal.type_str, value.dtype)
    return found


def _is_of_tensors(variant: Variant) -> bool:
    """No sequences, whose elements would have to change with the others, and no subgraphs."""
    tensors = all(value.dtype.startswith("tensor(") for _, value in variant.formals())
    return tensors and not any(a.HasField("g") for a in variant.node.attribute)


def _is_element(kind: str) -> bool:
    return kind.startswith("tensor(") and "complex" not in kind


def _of_type(variant: Variant, variable: str, kind: str) -> Variant:
    result = copy.deepcopy(variant)
    result.name = f"{variant.name}-{variable}-{kind.removeprefix('tensor(')[:-1]}"
    for formal, value in result.formals():
        if formal.type_str == variable:
            value.data = converted(np.asarray(value.data), _numpy(kind))
            value.info.type.tensor_type.elem_type = _number(kind)
    _adapt(result, variable, kind)
    _declare_results(result)
    return result


def _declare_results(variant: Variant) -> None:
    """The types that onnx infers, which follow from others than the variable, too."""
    graph = variant.graph()
    for info in graph.output:
        info.ClearField("type")
    opsets = {**variant.opsets, variant.node.domain: variant.since}
    imports = [helper.make_opsetid(*entry) for entry in opsets.items()]
    inferred = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=imports))
    for value, info in zip(variant.outputs, inferred.graph.output, strict=True):
        if number := info.type.tensor_type.elem_type:
            value.info.type.tensor_type.elem_type = number


def _is_valid(variant: Variant) -> bool:
    """Whether the types that follow are types of the schema, and bits are cast to as many."""
    if variant.node.op_type == "BitCast":
        return len({np.asarray(x.data).dtype.itemsize for _, x in variant.formals()}) == 1
    return all(value.dtype in formal.types for formal, value in variant.formals())


def _adapt(variant: Variant, variable: str, kind: str) -> None:
    """Attributes that say the type of a result, and values that a type does not admit."""
    op_type, schema = variant.node.op_type, variant.schema
    if variable in {formal.type_str for formal in schema.outputs}:
        for name in _OF_RESULT & schema.attributes.keys():
            _give(variant.node, name, _number(kind))
    if op_type == "ConstantOfShape":
        _give(variant.node, "value", numpy_helper.from_array(np.ones(1, _numpy(kind)), "value"))
    if op_type in ("DequantizeLinear", "QuantizeLinear"):
        for formal, value in variant.formals():  # zero points of floats are zero
            if "zero_point" in formal.name and "float" in value.dtype:
                value.data = np.zeros_like(value.data)
    if op_type == "Constant":
        del variant.node.attribute[:]
        _give(variant.node, "value", numpy_helper.from_array(variant.outputs[0].data, "value"))
    if op_type in ("Div", "Mod"):
        divisor = variant.inputs[1]
        divisor.data = np.where(divisor.data == 0, divisor.data.dtype.type(1), divisor.data)
    if op_type in ("Cast", "CastLike") and "int" in variant.outputs[0].dtype:
        x = variant.inputs[0]  # what does not fit an integer has no meaning
        finite = np.nan_to_num(x.data.astype("float32"))
        x.data = converted(np.clip(finite, 0, 1), x.data.dtype)
    if op_type == "Mod" and "float" in kind:
        _give(variant.node, "fmod", 1)


def _give(node: onnx.NodeProto, name: str, value: object) -> None:
    for attribute in [a for a in node.attribute if a.name == name]:
        node.attribute.remove(attribute)
    node.attribute.append(helper.make_attribute(name, value))


def converted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The values as ``dtype``: fractions are scaled to whole numbers, signs dropped if need be."""
    if dtype.kind == "O":
        return np.array([str(x) for x in array.reshape(-1)], object).reshape(array.shape)
    if array.dtype.kind == "O":
        return np.arange(array.size).reshape(array.shape).astype(dtype)
    if dtype.kind == "b":
        return array.astype("float64") > 0
    if not _is_integer(dtype):
        return array.astype(dtype)
    values = np.nan_to_num(array.astype("float64"))
    if (values != np.rint(values)).any():
        values = np.rint(values * 4)
    info = ml_dtypes.iinfo(dtype)
    values = np.abs(values) if info.min == 0 else values
    return np.clip(values, float(info.min), min(float(info.max), _EXACT)).astype(dtype)


def expected(variant: Variant) -> list[object]:
    """The results of ``variant``.

    Raises:
        NoOracle: neither evaluator computes it.
    """
    kinds = [y.dtype for y in variant.outputs]
    try:
        if variant.node.op_type in ("Cast", "CastLike") and "tensor(string)" in kinds:
            return _by_onnxruntime(variant)  # whose text of a number is the one that we write
        results = _by_reference(variant)
    except NoOracle:
        raise
    except Exception:  # noqa: BLE001  whatever it cannot do, onnxruntime may
        results = _by_onnxruntime(variant)
    return [
        r if isinstance(r, list) else _rounded(np.asarray(r), kind)
        for r, kind in zip(results, kinds, strict=True)
    ]


def _by_reference(variant: Variant) -> list[object]:
    computed = copy.deepcopy(variant)
    for formal, value in computed.formals():
        wide = next((kind for kind in _WIDE if kind in formal.types), None)
        if wide and "float" in value.dtype:
            value.data = np.asarray(value.data).astype(_numpy(wide))
            value.info.type.tensor_type.elem_type = _number(wide)
    model, feeds, _ = joined([computed])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return ReferenceEvaluator(model).run(None, feeds)


def _by_onnxruntime(variant: Variant) -> list[object]:
    model, feeds, _ = joined([variant])
    model.ir_version = min(model.ir_version, 10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return session.run(None, feeds)
    except Exception as error:
        raise NoOracle(str(error).splitlines()[0]) from error


def _rounded(array: np.ndarray, kind: str) -> np.ndarray:
    return array if array.dtype == object else array.astype(_numpy(kind))


def _numpy(kind: str) -> np.dtype:
    return np.dtype(helper.tensor_dtype_to_np_dtype(_number(kind)))


def _number(kind: str) -> int:
    return onnx.TensorProto.DataType.Value(kind.removeprefix("tensor(")[:-1].upper())


def _is_integer(dtype: np.dtype) -> bool:
    return dtype.kind in "iu" or dtype.name in ("int4", "uint4", "int2", "uint2")
