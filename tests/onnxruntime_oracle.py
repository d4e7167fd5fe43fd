"""Independent oracle: one-node models, of any domain, against onnxruntime."""

import numpy as np
import onnxruntime
from onnx import compose, helper, numpy_helper

from tests.uses import record
from tvm_ext import convert_and_build

__all__ = [
    "case", "check_against_onnxruntime", "check_together", "contrib_model", "number", "operands",
    "run_onnxruntime",
]  # fmt: skip

MICROSOFT = "com.microsoft"
OPSET = 18


def operands(seed):
    """A seeded generator, and two functions that make arrays of its numbers: floats and codes.

    Codes of int8 have seven bits: without VNNI, onnxruntime adds pairs of products in 16 bits.
    """
    rng = np.random.default_rng(seed)

    def data(*shape):
        return np.asarray(rng.normal(size=shape), "float32")

    def codes(*shape, dtype="uint8"):
        info = np.iinfo(dtype)
        bits = 7 if info.dtype == np.int8 else info.bits
        low = -(2 ** (bits - 1)) if info.min else 0
        return rng.integers(low, low + 2**bits, shape).astype(dtype)

    return rng, data, codes


def number(value, dtype="float32"):
    """A scalar operand."""
    return np.array(value, dtype)


def contrib_model(op_type, inputs, attributes=None, *, domain=MICROSOFT, version=1, opset=OPSET,
                  outputs=1, constants=(), symbolic=(), types=()):  # fmt: skip
    """A model of one node; ``inputs`` are arrays (None: absent), ``constants`` their initializers.

    Dims of the sizes in ``symbolic`` (True: all) are symbolic, one name per size.
    Outputs are declared without a shape, of the types ``types`` (default: that of the first
    input); an output of type None is left out.
    """
    types = list(types) + [inputs[0].dtype] * (outputs - len(types))
    names = [f"x{k}" if array is not None else "" for k, array in enumerate(inputs)]
    results = [f"y{k}" if dtype is not None else "" for k, dtype in enumerate(types)]
    node = helper.make_node(op_type, names, results, "node", domain=domain, **(attributes or {}))
    declared, initializers = [], []
    for k, (name, array) in enumerate(zip(names, inputs, strict=True)):
        if array is None:
            continue
        if k in constants:
            initializers.append(numpy_helper.from_array(array, name))
            continue
        unknown = set(array.shape) if symbolic is True else set(symbolic)
        shape = [f"d{size}" if size in unknown else size for size in array.shape]
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        declared.append(helper.make_tensor_value_info(name, dtype, shape))
    produced = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
        for name, dtype in zip(results, types, strict=True)
        if name
    ]
    graph = helper.make_graph([node], "graph", declared, produced, initializers)
    imports = [helper.make_opsetid("", opset)]
    if domain:
        imports.append(helper.make_opsetid(domain, version))
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def run_onnxruntime(model, feeds):
    """The outputs by onnxruntime, without its graph rewrites."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, feeds)


def case(op_type, inputs, attributes=None, *, expected=None, constants=(), **options):
    """A model of one node, what to feed it, and what is to come out: by default onnxruntime's."""
    model = contrib_model(op_type, inputs, attributes, constants=constants, **options)
    feeds = {
        f"x{k}": array for k, array in enumerate(inputs) if array is not None and k not in constants
    }
    expected = run_onnxruntime(model, feeds) if expected is None else expected
    for info, array in zip(model.graph.output, expected, strict=True):
        info.type.tensor_type.shape.SetInParent()
        for _ in range(np.ndim(array)):
            info.type.tensor_type.shape.dim.add()
    return model, feeds, expected


def check_together(*cases, rtol=1e-4, atol=1e-5):
    """Build the models of several cases as one, which costs a part of what each costs alone."""
    whole, fed, wanted = None, {}, []
    for k, (model, feeds, expected) in enumerate(cases):
        model = compose.add_prefix(model, f"c{k}_")
        fed |= {f"c{k}_{name}": array for name, array in feeds.items()}
        wanted += expected
        if whole is None:
            whole = model
            continue
        for field in ("node", "input", "output", "initializer"):
            getattr(whole.graph, field).extend(getattr(model.graph, field))
    _check(whole, fed, wanted, 3, rtol, atol)


def check_against_onnxruntime(op_type, inputs, attributes=None, *, rtol=1e-5, atol=1e-6,
                              opt_levels=(3,), **options):  # fmt: skip
    """Build a one-node model and compare it with onnxruntime, or with ``expected``."""
    model, feeds, expected = case(op_type, inputs, attributes, **options)
    for level in opt_levels:
        _check(model, feeds, expected, level, rtol, atol)


def _check(model, feeds, expected, level, rtol, atol):
    results = convert_and_build(model, "llvm", opt_level=level).run(None, feeds)
    for info, got, want in zip(model.graph.output, results, expected, strict=True):
        want = np.asarray(want)
        assert (got.shape, got.dtype) == (want.shape, want.dtype), info.name
        wide = "float64" if want.dtype.kind != "i" else want.dtype
        np.testing.assert_allclose(
            got.astype(wide), want.astype(wide), rtol=rtol, atol=atol, err_msg=info.name
        )
    record(model)
