"""Graph rewrites on ONNX, one rule per file, and the order in which they run."""

from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from . import batch_norm, normalization, quantized
from .attention import Attention, UprightWeights
from .byte_tables import tabulate
from .clean import lift_constants, remove_unused, share_common_subexpressions
from .conv_transpose import ConvTransposeIntoConv
from .counted_loops import count_trips
from .expand import expand_functions
from .fold import fold_constants
from .gelu import Gelu
from .gemm_bias import AddIntoBatchedGemm, AddIntoGemm
from .gemm_transpose import TransposeIntoBatchedGemm, TransposeIntoGemm
from .infer import infer_shapes
from .inline import inline_functions
from .loop_invariants import read_loop_invariants_outside
from .matmul_to_gemm import MatMulToGemm
from .packed_weights import PackedWeights, PackedWeightsOfBatchedGemm
from .pad import fold_pad
from .resized import convolve_before_resize
from .rule import rewriting
from .swish import Swish
from .widen import widen_channels, widen_filters

__all__ = ["steps"]

Rewrite = Callable[[ir.Model], ir.Model]

# What conversion needs.
_NEEDED: list[tuple[str, Rewrite]] = [
    ("inline-functions", inline_functions),
    ("expand-functions", expand_functions),
]
# Exact: the same arithmetic on the same numbers.
_EXACT: list[tuple[str, Rewrite]] = [
    ("loop-invariants", read_loop_invariants_outside),
    ("lift-constants", lift_constants),
    ("infer-shapes", infer_shapes),
    ("fold-constants", fold_constants),
    ("count-trips", count_trips),
    ("lift-counts", lift_constants),
    ("share-common-subexpressions", share_common_subexpressions),
    ("matmul-to-gemm", rewriting(MatMulToGemm)),
    ("transpose-into-gemm", rewriting(TransposeIntoGemm, TransposeIntoBatchedGemm)),
    ("bias-into-gemm", rewriting(AddIntoGemm, AddIntoBatchedGemm)),
]
# Compound: arithmetic regrouped, within rounding.
_COMPOUND: list[tuple[str, Rewrite]] = [
    ("widen-channels", widen_channels),
    ("lift-widened-constants", lift_constants),
    ("tabulate-bytes", tabulate),
    ("move-quantized", rewriting(quantized.GatherOfQuantized, *quantized.MOVES)),
    ("convolve-quantized", rewriting(quantized.ConvTransposeOfQuantizedIntoConv)),
    ("lift-quantized-filters", lift_constants),
    ("quantize-before-move", rewriting(quantized.QuantizeBeforeMove)),
    ("integer-products", rewriting(
        quantized.ConvOfQuantized, quantized.MatMulOfQuantized, quantized.GemmOfQuantized,
        quantized.BatchedGemmOfQuantized,
    )),
    ("packed-weights", rewriting(PackedWeights, PackedWeightsOfBatchedGemm)),
    ("quantize-by-product", rewriting(quantized.QuantizeByProduct)),
    ("dequantise-transposed", rewriting(quantized.ConvTransposeOfQuantized)),
    ("lift-dequantised-constants", lift_constants),
    ("round-to-codes", rewriting(quantized.RoundToCodes)),
    ("scale-of-dynamic", rewriting(quantized.ScaleOfDynamic)),
    ("fold-batch-norm", rewriting(
        batch_norm.BatchNormIntoConv, batch_norm.BatchNormIntoConvTranspose,
        batch_norm.BatchNormIntoGemm,
    )),
    ("conv-transpose-into-conv", rewriting(ConvTransposeIntoConv)),
    ("fold-pad", fold_pad),
    ("convolve-before-resize", convolve_before_resize),
    ("fuse-norm", rewriting(
        normalization.LayerNorm, normalization.LayerNormByDivision, normalization.RMSNorm,
        normalization.RMSNormByDivision,
    )),
    ("scale-into-norm", rewriting(normalization.LayerNormScale, normalization.RMSNormScale)),
    ("bias-into-norm", rewriting(normalization.LayerNormBias)),
    ("fuse-gelu", rewriting(Gelu)),
    ("fuse-swish", rewriting(Swish)),
    ("upright-weights", rewriting(UprightWeights)),
    ("fuse-attention", rewriting(Attention)),
    ("lift-folded-constants", lift_constants),
    ("scales-with-dims", quantized.scales_with_dims),
]  # fmt: skip
_LAST: list[tuple[str, Rewrite]] = [("remove-unused", remove_unused)]


def steps(opt_level: int, vector: int = 0) -> list[tuple[str, Rewrite]]:
    """The named rewrites of an opt level, in order; each maps a model to a model.

    ``vector``: how many numbers of float32 registers hold, where convolutions are to fill them.
    """
    if opt_level < 1:
        return list(_NEEDED)
    chosen = _NEEDED + _EXACT
    if opt_level > 1:
        chosen = chosen + _COMPOUND
    if opt_level > 2 and vector:
        widen = partial(widen_filters, vector=vector)
        chosen = [*chosen, ("widen-filters", widen), ("lift-wide-filters", lift_constants)]
    return chosen + _LAST
