"""Operators that move more than they compute, at the sizes at which models use them.

A case is a model in ONNX's text form: typed inputs, typed weights, and nodes that end in ``y``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """One operator.

    ``behind_conv``: on the result of a 1x1 depthwise convolution, as cheap as a copy, so that
    layouts for convolutions hold; both then count.
    """

    family: str
    inputs: str
    body: str
    weights: str = ""
    behind_conv: bool = False

    def __str__(self) -> str:
        shape = self.inputs.split(" ")[0]
        constants = dict(re.findall(r"(\w+) = Constant <value_ints=(\[[^]]*\])>\(\) ", self.body))
        text = re.sub(r"\w+ = Constant [^)]*\) ", "", self.body).replace("y = ", "")
        for name, value in constants.items():
            text = re.sub(rf"\b{name}\b", value, text)
        return f"{'Conv, ' if self.behind_conv else ''}{text}  {shape}"

    def model(self) -> onnx.ModelProto:
        """The case as a model of its own."""
        if not self.behind_conv:
            return _model(self.inputs, self.weights, self.body)
        inputs = self.inputs.replace(" x", " image")
        channels = self.inputs.split(",")[1]
        weights = ", ".join(filter(None, [f"float[{channels},1,1,1] kernel", self.weights]))
        return _model(inputs, weights, f"x = Conv <group={channels}>(image, kernel) {self.body}")


def _model(inputs: str, weights: str, body: str) -> onnx.ModelProto:
    """The parsed model with random positive weights."""
    declared = ", ".join(filter(None, [inputs, weights]))
    head = '<ir_version: 10, opset_import: ["": 23]>'
    model = onnx.parser.parse_model(f"{head} case ({declared}) => (y) {{ {body} }}")
    rng = np.random.default_rng(0)
    for info in list(model.graph.input)[inputs.count("[") :]:
        shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        array = rng.uniform(0.5, 1.5, shape).astype(dtype)
        model.graph.initializer.append(numpy_helper.from_array(array, info.name))
        model.graph.input.remove(info)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def _ints(name: str, *values: int) -> str:
    return f"{name} = Constant <value_ints={list(values)}>() "


def _normalisations() -> Iterator[Case]:
    for channels, size in (64, 224), (32, 256), (3, 224), (64, 112), (128, 56), (256, 28), (32, 13):
        image = f"float[1,{channels},{size},{size}] x"
        affine = f"float[{channels}] scale, float[{channels}] bias"
        norm = "InstanceNormalization(x, scale, bias)"
        yield Case("instance norm", image, f"y = {norm}", affine)
        if channels > 3:
            yield Case("instance norm", image, f"t = {norm} y = Relu(t)", affine, behind_conv=True)
    for rows, width in (1, 768), (128, 768), (3136, 96), (4096, 64), (512, 1024), (2048, 4096):
        x, affine = f"float[{rows},{width}] x", f"float[{width}] scale, float[{width}] bias"
        yield Case("layer norm", x, "y = LayerNormalization(x, scale, bias)", affine)
    x, affine = "float[128,768] a, float[128,768] b", "float[768] scale, float[768] bias"
    yield Case("layer norm", x, "x = Add(a, b) y = LayerNormalization(x, scale, bias)", affine)
    yield Case("layer norm", "float[128,4096] x", "y = RMSNormalization(x, scale)",
               "float[4096] scale")  # fmt: skip
    for shape, axis in (
        ("1,1000", -1), ("1536,128", -1), ("12,197,197", -1), ("4096,8", -1), ("65536,16", -1),
        ("1024,1024", -1), ("1,50257", -1), ("16,50257", -1), ("1,21,256,256", 1),
        ("1,84,8400", 1), ("128,1000", 0),
    ):  # fmt: skip
        yield Case("softmax", f"float[{shape}] x", f"y = Softmax <axis={axis}>(x)")
    for shape, axis in ("128,1000", -1), ("1,21,256,256", 1):
        yield Case("softmax", f"float[{shape}] x", f"y = LogSoftmax <axis={axis}>(x)")


def _pools() -> Iterator[Case]:
    for shape in "1,2048,7,7", "1,1280,7,7", "8,512,14,14", "1,256,56,56", "1,64,112,112":
        yield Case("global pool", f"float[{shape}] x", "y = GlobalAveragePool(x)")
    large = "float[1,256,56,56] x"
    yield Case("global pool", large, "y = GlobalMaxPool(x)")
    yield Case("global pool", large, "y = GlobalAveragePool(x)", behind_conv=True)
    mean = _ints("axes", 2, 3) + "y = ReduceMean <keepdims=0>(x, axes)"
    yield Case("global pool", "float[1,1280,7,7] x", mean)
    yield Case("global pool", "float[1,64,112,112] x", mean)
    three, two = "kernel_shape=[3,3], pads=[1,1,1,1]", "kernel_shape=[2,2], strides=[2,2]"
    for behind in False, True:
        for op, window, shape in (
            ("MaxPool", f"{three}, strides=[2,2]", "1,64,112,112"),
            ("MaxPool", two, "1,64,112,112"),
            ("MaxPool", three, "1,192,28,28"), ("AveragePool", three, "1,192,35,35"),
            ("AveragePool", two, "1,128,56,56"),
        ):  # fmt: skip
            yield Case("pool", f"float[{shape}] x", f"y = {op} <{window}>(x)", behind_conv=behind)
    five = "kernel_shape=[5,5], pads=[2,2,2,2]"
    yield Case("pool", "float[1,256,20,20] x", f"y = MaxPool <{five}>(x)")


def _reductions() -> Iterator[Case]:
    for op in "ReduceSum", "ReduceMax":
        for shape, axis in (
            ("1024,1024", 1), ("1024,1024", 0), ("32,256,256", 1), ("1,84,8400", 1),
            ("4096,16", 1), ("1048576", 0), ("2,3,200000", 2),
        ):  # fmt: skip
            body = _ints("axes", axis) + f"y = {op} <keepdims=0>(x, axes)"
            yield Case("reduction", f"float[{shape}] x", body)
    last = _ints("axes", -1)
    yield Case("reduction", "float[128,768] x", last + "y = ReduceMean(x, axes)")
    yield Case("reduction", "float[1024,1024] x", last + "y = ReduceL2(x, axes)")
    for shape, axis in ("128,1000", 1), ("16,50257", 1), ("1,21,256,256", 1), ("1000,64", 0):
        body = f"y = ArgMax <axis={axis}, keepdims=0>(x)"
        yield Case("arg max", f"float[{shape}] x", body)


def _movements() -> Iterator[Case]:
    for shape, perm in (
        ("1,64,112,112", [0, 2, 3, 1]), ("1,112,112,64", [0, 3, 1, 2]),
        ("1,3,224,224", [0, 2, 3, 1]), ("1,224,224,3", [0, 3, 1, 2]), ("1024,1024", [1, 0]),
        ("1000,77", [1, 0]), ("1,128,12,64", [0, 2, 1, 3]), ("1,128,12,64", [0, 2, 3, 1]),
        ("1,8,16,32,32", [0, 2, 1, 3, 4]),
    ):  # fmt: skip
        yield Case("transpose", f"float[{shape}] x", f"y = Transpose <perm={perm}>(x)")
    yield Case("transpose", "float16[1024,1024] x", "y = Transpose <perm=[1,0]>(x)")

    small = "float[1,64,56,56] x"
    reflect = _ints("pads", 0, 0, 1, 1, 0, 0, 1, 1) + 'y = Pad <mode="reflect">(x, pads)'
    wide = _ints("pads", 0, 0, 40, 40, 0, 0, 40, 40) + 'y = Pad <mode="reflect">(x, pads)'
    yield Case("pad", "float[1,3,224,224] x", wide)
    yield Case("pad", "float[1,64,128,128] x", reflect)
    yield Case("pad", "float[1,32,256,256] x", reflect, behind_conv=True)
    zeros = _ints("pads", 0, 0, 1, 1, 0, 0, 1, 1) + "y = Pad(x, pads)"
    yield Case("pad", small, zeros)

    for mode, shape, sizes in (
        ("nearest", "1,64,56,56", (1, 64, 112, 112)), ("nearest", "1,128,20,20", (1, 128, 40, 40)),
        ("linear", "1,64,56,56", (1, 64, 112, 112)), ("linear", "1,3,480,640", (1, 3, 224, 224)),
        ("linear", "1,21,64,64", (1, 21, 512, 512)), ("nearest", "1,3,480,640", (1, 3, 224, 224)),
    ):  # fmt: skip
        body = _ints("sizes", *sizes) + f'y = Resize <mode="{mode}">(x, , , sizes)'
        yield Case("resize", f"float[{shape}] x", body)
    double = _ints("sizes", 1, 64, 112, 112) + 'y = Resize <mode="nearest">(x, , , sizes)'
    yield Case("resize", small, double, behind_conv=True)

    concat = "y = Concat <axis={}>(x, b)".format
    yield Case("concat", "float[1,64,56,56] x, float[1,128,56,56] b", concat(1))
    yield Case("concat", "float[1024,512] x, float[1024,500] b", concat(-1))
    yield Case("gather", "float[30522,768] x, int64[1,128] i", "y = Gather <axis=0>(x, i)")
    yield Case("gather", "float[512,1024] x, int64[300] i", "y = Gather <axis=1>(x, i)")
    ends = _ints("from", 0, 100) + _ints("to", 1024, 900)
    yield Case("slice", "float[1024,1024] x", ends + "y = Slice(x, from, to)")
    yield Case("slice", "float[1,128,2304] x", "a, b, c = Split <axis=2, num_outputs=3>(x) "
               "d = Add(a, b) y = Add(c, d)")  # fmt: skip
    yield Case("slice", small, "y = DepthToSpace <blocksize=2>(x)")
    yield Case("slice", "float[1,512,1] x", _ints("dims", 64, 512, 64) + "y = Expand(x, dims)")


def _element_wise() -> Iterator[Case]:
    image, channel = "float[1,64,112,112] x", "float[1,64,1,1] scale, float[1,64,1,1] bias"
    yield Case("element-wise", f"{image}, float[1,64,112,112] b", "y = Add(x, b)")
    yield Case("element-wise", image, "y = Relu(x)")
    yield Case("element-wise", image, "t = Mul(x, scale) u = Add(t, bias) y = Relu(u)", channel)
    yield Case("element-wise", image, "t = Sigmoid(x) y = Mul(t, x)")
    yield Case("element-wise", image, "y = HardSwish(x)")
    yield Case("element-wise", "float[128,3072] x", "y = Gelu(x)", "")
    yield Case("element-wise", "float[128,768] x", "y = Add(x, bias)", "float[768] bias")
    yield Case("element-wise", "float[1,8,128,128] x, float[1,1,1,128] b", "y = Add(x, b)")
    yield Case("element-wise", "float[512,1] x, float[1,512] b", "y = Mul(x, b)")
    yield Case("element-wise", "float[4096,4096] x", "y = Exp(x)")
    yield Case("element-wise", "float[1048576] x", "y = Cast <to=10>(x)")
    yield Case("element-wise", "uint8[1,3,480,640] x", "y = Cast <to=1>(x)")
    yield Case("element-wise", "float[1000] x", "y = Tanh(x)")


CASES = (*_normalisations(), *_pools(), *_reductions(), *_movements(), *_element_wise())
