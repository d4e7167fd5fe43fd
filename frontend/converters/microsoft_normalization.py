"""Converters for the normalisations of com.microsoft: of a sum, and of embeddings."""

from typing import Any

from onnx import defs, helper
from tvm import relax

from tvm_ext.ops import normalization as ops
from tvm_ext.ops.activation import sigmoid, silu
from tvm_ext.ops.gather_scatter import gather

from ..arithmetic import added, multiplied
from ..indices import demand_indices
from ..microsoft import microsoft
from ..precision import cast
from ..run_time import demand_range
from ..table import converter
from .normalization import aligned, group_normalization
from .quantization import dequantize_linear
from .shape import reshaped


@microsoft("SkipLayerNormalization")
def skip_layer_normalization(bb, x, skip, gamma, beta=None, bias=None, *, epsilon=1e-12):
    return _of_sum(bb, [x, skip, bias], gamma, beta, epsilon, centred=True)


@microsoft("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(bb, x, skip, gamma, bias=None, *, epsilon=1e-12):
    return _of_sum(bb, [x, skip, bias], gamma, None, epsilon, centred=False)


def simplified_layer_normalization(bb, x, scale, *, axis=-1, epsilon=1e-5, stash_type=1):
    _asked_for(bb, range(1, 2))
    return _normalized(bb, x, scale, None, epsilon, axis, centred=False)


@microsoft("EmbedLayerNormalization")
def embed_layer_normalization(bb, input_ids, segment_ids, word_embedding, position_embedding,
                              segment_embedding=None, gamma=None, beta=None, mask=None,
                              position_ids=None, *, epsilon=1e-12, mask_index_type=0):  # fmt: skip
    """The sum of the embeddings of word, position and segment, normalised; the mask's row sums."""
    words = _embedded(bb, word_embedding, input_ids, "an id")
    parts = [words, _of_position(bb, position_embedding, input_ids, position_ids)]
    if segment_ids is not None:
        parts.append(_embedded(bb, segment_embedding, segment_ids, "a segment"))
    total = _sum(bb, parts)
    y = _normalized(bb, total, gamma, beta, epsilon, -1, centred=True)
    return y, _mask_counts(bb, mask, input_ids), total


def _embedded(bb, table, ids, what):
    """The rows of ``table`` that ``ids``, which ``what`` names, say."""
    demand_indices(bb, ids, bb.shape(table)[0], what, negative=False)
    return bb.emit_te(gather, table, ids, 0)


def _of_position(bb, table, ids, given=None):
    """The rows for the positions ``given``, or for the places of ``ids[B, S]``: ``[1, S]``."""
    if given is not None:
        return _embedded(bb, table, given, "a position")
    length, rows = bb.shape(ids)[1], bb.shape(table)[0]
    demand_range(bb, length, "the length of a sequence", most=rows)
    places = bb.emit(relax.op.arange(0, length, 1, "int64"))
    return bb.emit_te(gather, table, bb.emit(relax.op.expand_dims(places, 0)), 0)


def _mask_counts(bb, mask, ids):
    if mask is None:
        return bb.emit(relax.op.zeros([bb.shape(ids)[0]], "int32"))
    return bb.emit(relax.op.sum(cast(bb, mask, "int32"), 1))


@microsoft("QEmbedLayerNormalization")
def q_embed_layer_normalization(
    bb, input_ids, segment_ids, words, places, segments, gamma, beta, mask, words_scale,
    places_scale, segments_scale, gamma_scale, beta_scale, words_zero, places_zero,
    segments_zero, gamma_zero, beta_zero, *, epsilon=1e-12,
):  # fmt: skip
    """As :func:`embed_layer_normalization`, of 8-bit tables whose rows are dequantised as read."""
    gamma, beta = (
        dequantize_linear(bb, *quantised)
        for quantised in ((gamma, gamma_scale, gamma_zero), (beta, beta_scale, beta_zero))
    )
    rows = [(_embedded(bb, words, input_ids, "an id"), words_scale, words_zero),
            (_of_position(bb, places, input_ids), places_scale, places_zero)]  # fmt: skip
    if segment_ids is not None:
        embedded = _embedded(bb, segments, segment_ids, "a segment")
        rows.append((embedded, segments_scale, segments_zero))
    total = _sum(bb, [dequantize_linear(bb, *row) for row in rows])
    y = _normalized(bb, total, gamma, beta, epsilon, -1, centred=True)
    return y, _mask_counts(bb, mask, input_ids)


@microsoft("GatedRMSNorm")
def gated_rms_norm(bb, x, scale, gate, *, activation="silu", epsilon=1e-5):
    """``scale[C]``: each C elements of the last axis are normalised by themselves."""
    functions = {"silu": silu, "swish": silu, "sigmoid": sigmoid}
    if activation not in functions:
        raise NotImplementedError(f"activation {activation!r}")
    dtype = bb.dtype(x)
    x, scale, gate = (cast(bb, value, "float32") for value in (x, scale, gate))
    y = _of_groups(bb, x, scale, bb.shape(scale)[0], epsilon)
    gate = bb.emit_te(functions[activation], gate)
    return cast(bb, multiplied(bb, y, gate), dtype)


@microsoft("BranchwiseRMSNorm")
def branchwise_rms_norm(bb, x, scale=None, *, epsilon=1e-5, num_branches=0):
    """Each row of the last axis, or each of its ``num_branches`` parts, by itself."""
    dtype, width = bb.dtype(x), bb.shape(x)[-1]
    group = bb.simplify(width // num_branches) if num_branches else width
    branches = num_branches or bb.shape(x)[-2]
    if scale is None:
        scale = bb.emit(relax.op.ones([group], "float32"))
    elif bb.rank(scale) == 2 or not bb.equal(bb.shape(scale)[0], group):
        scale = reshaped(bb, scale, [branches, group])
    x, scale = cast(bb, x, "float32"), cast(bb, scale, "float32")
    return cast(bb, _of_groups(bb, x, scale, group, epsilon), dtype)


def _of_groups(bb, x, scale, group, epsilon):
    """The root mean square norm of each ``group`` elements of the last axis of ``x``."""
    *outer, width = bb.shape(x)
    if bb.equal(width, group):
        return _normalized(bb, x, scale, None, epsilon, -1, centred=False)
    parts = reshaped(bb, x, [*outer, bb.simplify(width // group), group])
    return reshaped(bb, _normalized(bb, parts, scale, None, epsilon, -1, False), bb.shape(x))


@microsoft("GroupNorm")
def group_norm(bb, x, gamma, beta, *, activation, channels_last=1, epsilon=1e-5, groups):
    """``activation`` 1 is x sigmoid(x)."""
    if activation not in (0, 1):
        raise NotImplementedError(f"activation {activation}")
    last = bb.rank(x) - 1
    if channels_last:
        x = bb.emit(relax.op.permute_dims(x, [0, last, *range(1, last)]))
    y = group_normalization(bb, x, gamma, beta, epsilon=epsilon, num_groups=groups)
    if channels_last:
        y = bb.emit(relax.op.permute_dims(y, [0, *range(2, last + 1), 1]))
    return bb.emit_te(silu, y) if activation else y


@microsoft("SkipGroupNorm")
def skip_group_norm(bb, x, gamma, beta, skip, bias=None, *, activation, channels_last=1,
                    epsilon=1e-5, groups):  # fmt: skip
    """``skip`` may be ``[N, C]``, the same for all places."""
    if bb.rank(skip) == 2:
        batch, channels = bb.shape(skip)
        skip = bb.reshape(skip, [batch, 1, 1, channels])
    total = _sum(bb, [x, skip, bias])
    y = group_norm(bb, total, gamma, beta, activation=activation, channels_last=channels_last,
                   epsilon=epsilon, groups=groups)  # fmt: skip
    return y, total


def _of_sum(bb, parts, gamma, beta, epsilon, centred):
    _asked_for(bb, range(1, 3))
    total = _sum(bb, parts)
    y = _normalized(bb, total, gamma, beta, epsilon, -1, centred)
    return y, total, total, total  # the second and third have no name


def _asked_for(bb, results):
    """Refuse the statistics of training, which inference has no use for."""
    for output in bb.node.outputs[results.start : results.stop]:
        if output.uses() or output.is_graph_output():  # rewrites name what has no name
            raise NotImplementedError(f"the statistics {output.name!r} as a result")


def rms_normalized(bb, x, scale, epsilon):
    """Each row of the last axis by its root mean square."""
    return _normalized(bb, x, scale, None, epsilon, -1, centred=False)


def _normalized(bb, x, scale, bias, epsilon, axis, centred):
    rank, shape = bb.rank(x), bb.shape(x)
    bias = None if bias is None else aligned(bb, bias, shape)
    axes = list(range(axis % rank, rank))
    name = "layer_norm" if centred else "rms_norm"
    return bb.emit_te(ops.normalize, x, aligned(bb, scale, shape), bias, axes, epsilon,
                      centred=centred, primfunc_name_hint=name)  # fmt: skip


def _sum(bb, parts):
    first, *others = (part for part in parts if part is not None)
    for part in others:
        first = added(bb, first, part)
    return first


def _declare(op_type, function, attributes):
    """Let onnx's checker know an operator that onnxruntime keeps in ONNX's own domain."""
    parameter, floats = defs.OpSchema.FormalParameter, ("float16", "float", "double", "bfloat16")
    optional = defs.OpSchema.FormalParameterOption.Optional
    schema = defs.OpSchema(
        op_type,
        "",
        1,
        inputs=[parameter("X", "T"), parameter("scale", "T")],
        outputs=[parameter("Y", "T"), parameter("inv_std_var", "U", param_option=optional)],
        type_constraints=[(name, [f"tensor({kind})" for kind in floats], "") for name in "TU"],
        attributes=[
            defs.OpSchema.Attribute(name, helper.make_attribute(name, default))
            for name, default in attributes.items()
        ],
    )

    def same_type(context: Any) -> None:
        """Behind operators that onnx does not know there is none."""
        if (ty := context.get_input_type(0)) is not None:
            context.set_output_type(0, ty)

    schema.set_type_and_shape_inference_function(same_type)
    if not defs.has(op_type):
        defs.register_schema(schema)
    converter(op_type, 1)(function)


_declare(
    "SimplifiedLayerNormalization",
    simplified_layer_normalization,
    {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
)
