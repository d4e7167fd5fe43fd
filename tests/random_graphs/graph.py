"""A graph that is built node by node, each evaluated at once for two sets of sizes."""

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

__all__ = ["MICROSOFT", "Graph", "Rejected", "Value"]

MICROSOFT = {"domain": "com.microsoft"}  # attributes of a node

_LARGEST, _MOST = 1e4, 60_000  # magnitude and count of elements

onnxruntime.set_default_logger_severity(4)


class Rejected(Exception):
    """A node that is not valid, or whose result would be of no use."""


class Value:
    """A name and what it holds, for both sets of sizes."""

    def __init__(self, name, arrays, constant=False):
        self.name, self.arrays, self.constant = name, arrays, constant

    @property
    def array(self):
        return self.arrays[0]

    @property
    def shape(self):
        return self.arrays[0].shape

    @property
    def ndim(self):
        return self.arrays[0].ndim

    @property
    def dtype(self):
        return self.arrays[0].dtype

    @property
    def static(self):
        """Whether the sizes are the same in both sets."""
        return self.arrays[0].shape == self.arrays[1].shape

    def is_static(self, axis):
        return self.arrays[0].shape[axis] == self.arrays[1].shape[axis]


class Graph:
    """Inputs, constants and nodes; every value is known for both sets of sizes.

    ``rng`` draws all that is random of it, so that a seed gives the same graph again.
    """

    def __init__(self, rng, opset):
        self.rng, self.opset = rng, opset
        self.values, self.inputs, self.dims = [], [], []
        self.nodes, self.initializers, self.outputs = [], [], []
        self._count = 0

    # Random choices

    def chance(self, p):
        return self.rng.random() < p

    def pick(self, *options):
        return options[self.rng.integers(len(options))]

    def int(self, low, high):
        """Of low..high, both included."""
        return int(self.rng.integers(low, high + 1))

    def choose(self, test=lambda v: True, recent=0.6):
        """A value that passes the test; recent ones are likelier."""
        found = [v for v in self.values if test(v)]
        if not found:
            raise Rejected("no value")
        if self.chance(recent):
            found = found[-4:]
        return found[self.rng.integers(len(found))]

    # Values

    def name(self, stem="v"):
        self._count += 1
        return f"{stem}{self._count}"

    def numbers(self, shape, dtype="float32"):
        """Seeded numbers of moderate size, away from ties."""
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            return self.rng.random(shape) < 0.5
        if dtype.kind in "iu":
            return self.rng.integers(0 if dtype.kind == "u" else -3, 5, shape).astype(dtype)
        return self.rng.normal(size=shape).astype(dtype)

    def input(self, sizes, names, dtype="float32"):
        """``sizes`` pairs (first set, second set); ``names`` of dims where symbolic."""
        arrays = [self.numbers([pair[k] for pair in sizes], dtype) for k in (0, 1)]
        value = Value(self.name("x"), arrays)
        self.values.append(value)
        self.inputs.append(value)
        self.dims.append(names)
        return value

    def const(self, array, dtype=None):
        array = np.asarray(array, dtype)
        if self.initializers and self.chance(0.5):
            for value in self.initializers:
                if (value.dtype, value.shape) == (array.dtype, array.shape) and (
                    value.array == array
                ).all():
                    return value
        value = Value(self.name("c"), [array, array], True)
        if self.chance(0.15):
            node = helper.make_node(
                "Constant", [], [value.name], value=numpy_helper.from_array(array)
            )
            self.nodes.append(node)
        else:
            self.initializers.append(value)
        return value

    def ints(self, *numbers):
        return self.const(np.array(numbers, "int64"))

    def scalar(self, number, like="float32"):
        """A number, of rank 0 or of one element and some rank."""
        rank = self.pick(0, 0, 0, 1, 1, 2, 4)
        return self.const(np.full([1] * rank, number, like))

    def node(self, op, *inputs, outputs=1, domain="", **attributes):
        """One more node; its only result, or the tuple of them."""
        names = [self.name() for _ in range(outputs)]
        node = helper.make_node(
            op,
            [v.name if v is not None else "" for v in inputs],
            names,
            self.name(f"{op}_"),
            domain=domain,
            **{k: v for k, v in attributes.items() if v is not None},
        )
        results = self._evaluated([node], [v for v in inputs if v is not None], names)
        self.nodes.append(node)
        self.values += results
        return results[0] if outputs == 1 else tuple(results)

    def add(self, node, read):
        """A node with subgraphs that capture the values ``read``."""
        return self.add_all([node], read)

    def add_all(self, nodes, read):
        """Nodes of which only the last gives tensors, evaluated together."""
        results = self._evaluated(nodes, read, nodes[-1].output)
        self.nodes += nodes
        self.values += results
        return results

    def _evaluated(self, nodes, read, names):
        unique = list({v.name: v for v in read}.values())
        arrays = [_run(nodes, unique, k, self.opset) for k in (0, 1)]
        for pair in zip(*arrays, strict=True):
            for array in pair:
                if array.size > _MOST:
                    raise Rejected("too large")
                if (
                    array.size
                    and array.dtype.kind == "f"
                    and not (np.isfinite(array).all() and np.abs(array).max() < _LARGEST)
                ):
                    raise Rejected("not finite, or too large")
            if pair[0].ndim != pair[1].ndim:
                raise Rejected("ranks differ")
        return [Value(name, [a[i] for a in arrays]) for i, name in enumerate(names)]

    # Models

    def model(self, symbolic):
        """The model with the sizes of the first set, or with names for dims."""
        graph = helper.make_graph(
            self.nodes,
            "random",
            [
                helper.make_tensor_value_info(
                    v.name,
                    helper.np_dtype_to_tensor_dtype(v.dtype),
                    [n if symbolic and n else s for n, s in zip(names, v.shape, strict=True)],
                )
                for v, names in zip(self.inputs, self.dims, strict=True)
            ],
            [
                helper.make_tensor_value_info(
                    v.name,
                    helper.np_dtype_to_tensor_dtype(v.dtype),
                    [f"{v.name}_{k}" for k in range(v.ndim)],
                )
                for v in self.outputs
            ],
            [numpy_helper.from_array(v.array, v.name) for v in self.initializers],
        )
        domains = {node.domain for node in self.nodes}
        imports = [entry for entry in _imports(self.opset) if entry.domain in domains]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def feeds(self, which):
        return {v.name: v.arrays[which] for v in self.inputs}


def session(model, optimised=False):
    """What maps feeds to the results of ``model`` by onnxruntime, without optimisations or with.

    Raises:
        Rejected: onnxruntime refuses the model, or a run of it.
    """
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    )
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        loaded = onnxruntime.InferenceSession(model.SerializeToString(), options)
    except Exception as error:
        raise Rejected(str(error)) from error

    def run(feeds):
        try:
            return loaded.run(None, feeds)
        except Exception as error:
            raise Rejected(str(error)) from error

    return run


def _imports(opset):
    versions = {"": opset, "com.microsoft": 1, "ai.onnx.ml": 3}
    return [helper.make_opsetid(domain, version) for domain, version in versions.items()]


def _run(nodes, read, which, opset):
    fixed = [v for v in read if v.constant]
    graph = helper.make_graph(
        nodes,
        "one",
        [
            helper.make_tensor_value_info(
                v.name, helper.np_dtype_to_tensor_dtype(v.dtype), v.arrays[which].shape
            )
            for v in read
            if not v.constant
        ],
        [helper.make_empty_tensor_value_info(name) for name in nodes[-1].output],
        [numpy_helper.from_array(v.array, v.name) for v in fixed],
    )
    model = helper.make_model(graph, opset_imports=_imports(opset), ir_version=10)
    try:
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        raise Rejected(str(error)) from error
    return session(model)({v.name: v.arrays[which] for v in read if not v.constant})
