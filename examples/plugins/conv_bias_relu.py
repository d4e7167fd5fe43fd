"""Convolution, bias and ReLU for llvm as one kernel that stores nothing between: a compound."""

from tvm import te, tirx, topi
from tvm.relax.dpl import is_const, is_op, wildcard

from tvm_ext.extend import compound

x, w, bias = wildcard(), is_const(), is_const()
conv = is_op("relax.nn.conv2d")(x, w)
conv_bias_relu = compound(
    "example.conv_bias_relu",
    is_op("relax.nn.relu")(is_op("relax.add")(conv, bias)),
    parts={"x": x, "w": w, "bias": bias, "conv": conv},
    targets=["llvm"],
)


@conv_bias_relu.check
def _(m):
    if not m.static or m.dtype() != "float32" or int(m["conv"].attrs.groups) > 1:
        return "serves static float32 without groups"
    return m.dims("bias") == [1, m.dims("w")[0], 1, 1]


@conv_bias_relu.attributes
def _(m):
    attrs = m["conv"].attrs
    return {k: [int(v) for v in getattr(attrs, k)] for k in ("strides", "padding", "dilation")}


@conv_bias_relu.compute
def _(x, w, bias, *, strides, padding, dilation):
    total = topi.nn.conv2d(x, w, strides, padding, dilation)

    def relu(n, f, i, j):
        value = total[n, f, i, j] + bias[0, f, 0, 0]
        return tirx.Select(value < 0, tirx.const(0, x.dtype), value)  # keeps NaN

    return te.compute(total.shape, relu, "relu")


@conv_bias_relu.schedule("llvm")
def _(sch, target):
    *_padding, conv, relu = sch.get_child_blocks(sch.get_sblock("root"))
    n, f, row, _ = sch.get_loops(relu)
    sch.parallel(sch.fuse(n, f))
    sch.compute_at(conv, row, preserve_unit_loops=True)
    *_, column, c, ky, kx = sch.get_loops(conv)
    sch.reorder(c, ky, kx, column)
    sch.decompose_reduction(conv, c)


for pad in (1, 2):
    conv_bias_relu.sample(
        f"""(float[n,c,9,h] x, float[f,c,3,3] w, float[f] b) => (float[n,f,i,j] y)
        {{ s = Conv <pads = [{pad},{pad},{pad},{pad}]> (x, w, b)  y = Relu(s) }}""",
        constants=["w", "b"],
    )
