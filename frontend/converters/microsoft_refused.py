"""Operators of onnxruntime that have no converter: why, and what to do instead."""

from ..microsoft import DOMAIN
from ..table import refuse

_PAGES = (
    "the cache is pages that its caller hands out; export the model with GroupQueryAttention, "
    "whose cache is a tensor"
)
_SPECULATION = (
    "it moves states of an engine that takes steps back; give the steps that count to the model "
    "itself, without it"
)
_SELECTION = (
    "it chooses keys for an attention over pages or lists of them; export the model with dense "
    "attention"
)
_LLAMA_CPP = "weights are in a packed format of llama.cpp; dequantise them, or export MatMulNBits"
_CUBLASLT = (
    "8-bit tensors in an order of cuBLASLt; export the model with QuantizeLinear and "
    "DequantizeLinear"
)
_BLOCK_FLOAT = (
    "block floating point, whose format belongs to one accelerator; export the model with "
    "QuantizeLinear and DequantizeLinear"
)
_COMPILED = "a model that was compiled for one accelerator; give the model that it was made of"
_TENSORRT = "a plugin of TensorRT; export the model without it, {}"

_REASONS = {
    "PagedAttention": _PAGES,
    "SparsePagedAttention": _PAGES,
    "ConvStateReplay": _SPECULATION,
    "GatedDeltaNetStateReplay": _SPECULATION,
    "Mamba2Verify": _SPECULATION,
    "SpeculativePrefixCommit": _SPECULATION,
    "DynamicSparseAttention": _SELECTION,
    "PackedSparseAttentionIndexer": _SELECTION,
    "PackedSparseAttentionIndexerMerge": _SELECTION,
    "SparseAttentionIndexer": _SELECTION,
    "GatherPacked": _LLAMA_CPP,
    "MatMulPacked": _LLAMA_CPP,
    "MoEPacked": _LLAMA_CPP,
    "MoEGroupRouter": "its scores are for MoEPacked; export the router as TopK and Softmax",
    "RMSNormRotary": "the roundings of one kernel of CUDA; export RMSNormalization and "
                     "RotaryEmbedding",
    "DequantizeWithOrder": _CUBLASLT,
    "QOrderedAttention": _CUBLASLT,
    "QOrderedGelu": _CUBLASLT,
    "QOrderedLayerNormalization": _CUBLASLT,
    "QOrderedLongformerAttention": _CUBLASLT,
    "QOrderedMatMul": _CUBLASLT,
    "QuantizeWithOrder": _CUBLASLT,
    "DequantizeBFP": _BLOCK_FLOAT,
    "QuantizeBFP": _BLOCK_FLOAT,
    "EPContext": _COMPILED,
    "Snpe": _COMPILED,
    "SparseToDenseMatMul": "its input is a sparse tensor; give the dense one to MatMul",
    "AttnLSTM": "no exporter writes it; export the layer as Loop",
    "DecoderAttention": "flags that are read at run time say what its inputs mean; export "
                        "MultiHeadAttention",
}  # fmt: skip

for _op_type, _reason in _REASONS.items():
    refuse(_op_type, DOMAIN, _reason)

# What onnxruntime's optimiser turns operators into, for the layout of one machine or device.
_REWRITTEN = {
    "com.microsoft.nchwc": """AveragePool Conv GlobalAveragePool GlobalMaxPool MaxPool ReorderInput
        ReorderOutput Upsample""",
    "com.ms.internal.nhwc": """AveragePool BatchNormalization Conv ConvTranspose DepthToSpace
        GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample InstanceNormalization LRN LpPool
        MaxPool MaxUnpool QLinearAveragePool QLinearConv QLinearConvTranspose Resize
        SpaceToDepth""",
}
for _domain, _names in _REWRITTEN.items():
    for _op_type in _names.split():
        refuse(
            _op_type,
            _domain,
            "onnxruntime's optimiser wrote it for one machine; give the model "
            "that it read, or save it at the level ORT_ENABLE_EXTENDED",
        )

for _op_type, _instead in {
    "DisentangledAttention_TRT": "as products of matrices",
    "EfficientNMS_TRT": "with NonMaxSuppression",
    "MultilevelCropAndResize_TRT": "with RoiAlign",
    "PyramidROIAlign_TRT": "with RoiAlign",
}.items():
    refuse(_op_type, "", _TENSORRT.format(_instead))
