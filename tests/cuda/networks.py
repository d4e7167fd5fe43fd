"""Small ONNX graphs, in ONNX text, with the operators of real networks; several branches each.

A graph is one build, so its branches share the cost of a compiler run; each branch has an
output named for what it checks.
"""

import numpy as np
import onnx

__all__ = ["GRAPHS", "NETWORKS", "feeds_of", "parse"]

_HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'

#: Families of kernels: odd, prime and unit extents.
GRAPHS = {
    "rows": """
        g (float[2, 5, 7, 11] x, float[5] s, float[5] b, float16[2, 3, 9, 10] h, float16[3] t,
           float[6, 77] v, float[77] w, float[3, 1031] l)
          => (float[2, 5, 7, 11] instance_norm, float[2, 5, 7, 11] instance_norm_relu_add,
              float16[2, 3, 9, 10] instance_norm_half, float[6, 77] softmax,
              float[6, 77] layer_norm, float[6, 77] log_softmax, float[6, 77] softmax_axis_0,
              float[3, 1031] long_softmax) {
          instance_norm = InstanceNormalization (x, s, b)
          normed = InstanceNormalization (x, s, b)
          positive = Relu (normed)
          instance_norm_relu_add = Add (positive, x)
          instance_norm_half = InstanceNormalization (h, t, t)
          softmax = Softmax <axis = -1> (v)
          layer_norm = LayerNormalization <axis = -1> (v, w, w)
          log_softmax = LogSoftmax <axis = 1> (v)
          softmax_axis_0 = Softmax <axis = 0> (v)
          long_softmax = Softmax (l)
        }""",
    "reductions": """
        g (float[3, 7, 65] x, float[4, 1] u, int64[5, 33] i, float[301, 2, 35] z)
          => (float[1, 1, 1] total, float[3, 7] mean_rows, float[7, 65] mean_first,
              float[3, 65] largest, int64[3, 7, 1] arg_largest, int64[3, 1, 65] arg_least,
              float[4] unit, int64[5, 1] integers, float[3, 7, 1] norm, float[3] two_axes,
              float[4, 1] unit_exp, float[2, 35] column_exp, int64[1, 2, 35] column_arg_largest,
              float[35] columns) {
          last = Constant <value_ints = [-1]> ()
          first = Constant <value_ints = [0]> ()
          middle = Constant <value_ints = [1]> ()
          both = Constant <value_ints = [1, 2]> ()
          total = ReduceSum (x)
          mean_rows = ReduceMean <keepdims = 0> (x, last)
          mean_first = ReduceMean <keepdims = 0> (x, first)
          largest = ReduceMax <keepdims = 0> (x, middle)
          arg_largest = ArgMax <axis = 2> (x)
          arg_least = ArgMin <axis = 1> (x)
          unit = ReduceSum <keepdims = 0> (u, last)
          integers = ReduceSum (i, last)
          norm = ReduceL2 (x, last)
          two_axes = ReduceSum <keepdims = 0> (x, both)
          unit_sum = ReduceSum (u, last)
          unit_exp = Exp (unit_sum)
          column_mean = ReduceMean <keepdims = 0> (z, first)
          column_exp = Exp (column_mean)
          column_arg_largest = ArgMax <axis = 0> (z)
          rows = Constant <value_ints = [0, 1]> ()
          columns = ReduceMax <keepdims = 0> (z, rows)
        }""",
    "contractions": """
        g (float[1, 130] v, float[130, 37] w, float[3, 17, 23] a, float[3, 23, 9] b,
           float[65, 40] m, float[40, 70] n, float[70] c, float[2, 6, 9, 11] x,
           float[10, 6, 3, 3] k, float[10] o, float[6, 1, 3, 3] d, float[4, 3, 3, 3] q,
           float[6, 4, 2, 2] r, float[6, 4, 3, 3] t, float[4] e, float[5, 31] f, float[31] u,
           float[6, 3, 3, 3] h)
          => (float[1, 37] gemv, float[5] vector, float[3, 17, 9] batched,
              float[65, 70] gemm_relu, float[2, 4, 18, 22] transposed_odd,
              float[2, 10, 9, 11] conv_bias_relu_add, float[2, 6, 5, 6] depthwise,
              float[2, 4, 9, 11] grouped, float[2, 6, 5, 6] grouped_relu,
              float[2, 4, 18, 22] transposed) {
          gemv = MatMul (v, w)
          batched = MatMul (a, b)
          product = Gemm (m, n, c)
          gemm_relu = Relu (product)
          conv = Conv <pads = [1, 1, 1, 1]> (x, k, o)
          rectified = Relu (conv)
          conv_bias_relu_add = Add (rectified, conv)
          depthwise = Conv <group = 6, strides = [2, 2], pads = [1, 1, 1, 1]> (x, d)
          grouped = Conv <group = 2, pads = [1, 1, 1, 1]> (x, q)
          threes = Conv <group = 2, strides = [2, 2], pads = [1, 1, 1, 1]> (x, h)
          grouped_relu = Relu (threes)
          transposed = ConvTranspose <strides = [2, 2]> (x, r)
          spread = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1],
                                  output_padding = [1, 1]> (x, t, e)
          transposed_odd = Relu (spread)
          vector = MatMul (f, u)
        }""",
    "elements": """
        g (float[3, 5, 7] x, float[1, 5, 1] y, float[1] z, int64[3, 5, 7] i,
           float[0, 4] nothing, float[2, 3, 9, 10] p, int64[4] rows, float[2, 33, 3, 35] q,
           float[33] c)
          => (float[3, 5, 7] broadcast, float[3, 5, 7] gelu, float[7, 3, 5] transposed,
              float[3, 12, 7] joined, float scalar, int64[3, 5, 7] integers,
              float[0, 4] empty, float[2, 3, 4, 4] pooled, float[2, 3, 5, 5] averaged,
              float[2, 3, 1, 1] global_pooled, float[2, 3, 18, 20] resized, float[4, 5, 7] rows_of,
              float[3, 9, 7] padded, bool[3, 5, 7] compared, float[3, 2, 7] sliced,
              float[3, 5, 7] chosen, float[3, 35, 2, 33] channels_last) {
          moved = Transpose <perm = [2, 3, 0, 1]> (q)
          shifted = Add (moved, c)
          channels_last = Relu (shifted)
          sum = Add (x, y)
          broadcast = Mul (sum, z)
          gelu = Gelu (x)
          transposed = Transpose <perm = [2, 0, 1]> (x)
          doubled = Concat <axis = 1> (x, x)
          two = Constant <value_ints = [0]> ()
          upto = Constant <value_ints = [2]> ()
          along = Constant <value_ints = [1]> ()
          sliced = Slice (x, two, upto, along)
          joined = Concat <axis = 1> (doubled, sliced)
          element = Squeeze (z)
          scalar = Exp (element)
          integers = Mul (i, i)
          empty = Tanh (nothing)
          pooled = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (p)
          averaged = AveragePool <kernel_shape = [2, 2], strides = [2, 2], pads = [0, 0, 1, 0]> (p)
          global_pooled = GlobalAveragePool (p)
          scales = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()
          resized = Resize <mode = "linear"> (p, , scales)
          rows_of = Gather <axis = 0> (x, rows)
          pads = Constant <value_ints = [0, 2, 0, 0, 2, 0]> ()
          padded = Pad <mode = "reflect"> (x, pads)
          compared = Less (x, y)
          chosen = Where (compared, x, y)
        }""",
    "half": """
        g (float16[5, 65] x, float16[65, 33] w, float16[33] c, float16[1, 6, 9, 11] p,
           float16[4, 6, 3, 3] k, float16[4] o, float16[5, 33] r, float16[65] s)
          => (float16[5, 33] gemm_gelu_add, float16[1, 4, 9, 11] conv_bias_relu,
              float16[5, 65] softmax, float16[5, 65] layer_norm, float16[5, 65] tanh,
              float16[5] mean, float[5, 65] widened) {
          product = Gemm (x, w, c)
          active = Gelu (product)
          gemm_gelu_add = Add (active, r)
          conv = Conv <pads = [1, 1, 1, 1]> (p, k, o)
          conv_bias_relu = Relu (conv)
          softmax = Softmax (x)
          layer_norm = LayerNormalization (x, s)
          tanh = Tanh (x)
          last = Constant <value_ints = [-1]> ()
          mean = ReduceMean <keepdims = 0> (x, last)
          widened = Cast <to = 1> (x)
        }""",
    "symbolic": """
        g (float[n, 33] x, float[33, 9] w, float[n, 33] y)
          => (float[n, 33] softmax, float[n, 9] product, float[n, 33] sum, float[33, n] turned) {
          softmax = Softmax (x)
          product = MatMul (x, w)
          sum = Add (x, y)
          turned = Transpose (x)
        }""",
    "serial": """
        g (float[4, 9] x, float[5, 2, 3] t, float[1, 16, 3] w, float[1, 16, 4] r,
           float[6, 3] data, int64[2, 1] index, float[2, 3] updates)
          => (float[4, 9] summed, float[4, 3] top, int64[4, 3] where_top, float[5, 1, 2, 4] lstm,
              float[6, 3] scattered) {
          axis = Constant <value_int = 1> ()
          summed = CumSum (x, axis)
          three = Constant <value_ints = [3]> ()
          top, where_top = TopK (x, three)
          lstm = LSTM <hidden_size = 4> (t, w, r)
          scattered = ScatterND (data, index, updates)
        }""",
    # Each step is launched: panels of 16, 32, 32 and 64 units, the last of each partly filled.
    "recurrent": """
        g (float[3, 2, 3] t, float[3, n, 3] open,
           float[2, 280, 3] w4, float[2, 280, 70] r4, float[1, 210, 3] w3, float[1, 210, 70] r3,
           float[1, 450, 3] w6, float[1, 450, 150] r6, float[1, 200, 3] w1, float[1, 200, 200] r1)
          => (float[3, 2, 2, 70] lstm, float[3, 1, 2, 70] linear_gru, float[3, 1, 2, 150] gru,
              float[3, 1, n, 200] rnn) {
          lstm = LSTM <hidden_size = 70, direction = "bidirectional"> (t, w4, r4)
          linear_gru = GRU <hidden_size = 70, linear_before_reset = 1, direction = "reverse">
            (t, w3, r3)
          gru = GRU <hidden_size = 150> (t, w6, r6)
          rnn = RNN <hidden_size = 200> (open, w1, r1)
        }""",
}

#: Whole networks: every opt level.
NETWORKS = {
    "se_block": """
        g (float[1, 16, 8, 9] x, float[16, 4] w1, float[4, 16] w2) => (float[1, 16, 8, 9] y) {
          pooled = GlobalAveragePool (x)
          flat = Flatten <axis = 1> (pooled)
          squeezed = MatMul (flat, w1)
          active = Relu (squeezed)
          excited = MatMul (active, w2)
          gate = Sigmoid (excited)
          shape = Constant <value_ints = [1, 16, 1, 1]> ()
          column = Reshape (gate, shape)
          y = Mul (x, column)
        }""",
    "classifier": """
        g (float[2, 3, 17, 17] x, float[8, 3, 3, 3] w1, float[8] s, float[8] o, float[8] m,
           float[8] v, float[16, 8, 3, 3] w2, float[16] b2, float[16, 10] w3, float[10] b3)
          => (float[2, 10] y) {
          stem = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w1)
          normed = BatchNormalization (stem, s, o, m, v)
          active = Relu (normed)
          pooled = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (active)
          wide = Conv <pads = [1, 1, 1, 1]> (pooled, w2, b2)
          rectified = Relu (wide)
          squeezed = GlobalAveragePool (rectified)
          flat = Flatten (squeezed)
          logits = Gemm (flat, w3, b3)
          y = Softmax (logits)
        }""",
}


def parse(text):
    """The model of one of the graphs above."""
    return onnx.parser.parse_model(_HEAD + text)


def feeds_of(model, seed=0):
    """Seeded inputs: normal floats, positive variances (v), small row numbers, symbolic dims 7."""
    random = np.random.default_rng(seed)
    feeds = {}
    for info in model.graph.input:
        tensor = info.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else 7 for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype.kind == "i":
            feeds[info.name] = random.integers(0, 3, shape, dtype)
        else:
            feeds[info.name] = random.standard_normal(shape).astype(dtype)
        if info.name == "v" and len(shape) == 1:
            feeds[info.name] = np.abs(feeds[info.name]) + dtype.type(0.5)
    return feeds
