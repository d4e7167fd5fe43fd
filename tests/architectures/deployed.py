"""What onnxruntime's tools make of exported models, and exports of older opsets."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from .registry import TOLERANCE, Converted, architecture, architectures

FEW_BITS = 3e-2  # of the largest value: a few steps of 8 bits
sentences = architecture(("converter",), batch=(2, 3), sequence=(9, 14))
steps = architecture(("converter",), batch=(2, 3), sequence=(4, 1), past=(5, 8))
pictures = architecture(("converter",), batch=(2, 3))
Change = Callable[[onnx.ModelProto, dict], onnx.ModelProto]


def changed(name: str, change: Change, opset: int = 17, tolerance: float = TOLERANCE) -> Converted:
    """The architecture ``name``, exported by torchscript; ``change`` sees its inputs, too."""
    from .export import arrays, to_onnx

    source = architectures()[name]
    network = source.make()

    def model(**sizes):
        dynamic = None in sizes.values()
        exported = to_onnx(source, network, "torchscript", dynamic, opset)
        return change(exported, arrays(network, source.sizes(0)))

    return Converted(model, network.inputs, tolerance)


def in_files(change: Callable[[str, str], object]) -> Change:
    """``change`` reads one file and writes another."""

    def of_model(model, feeds):
        with TemporaryDirectory() as folder:
            before, after = (str(Path(folder, name)) for name in ("before.onnx", "after.onnx"))
            onnx.save(model, before)
            change(before, after)
            return onnx.load(after)

    return of_model


def of_opset(name: str, opset: int) -> Converted:
    return changed(name, lambda model, feeds: model, opset)


def dynamic_int8(name: str) -> Converted:
    """Weights of 8 bits, activations quantised as they come."""
    from onnxruntime.quantization import quantize_dynamic

    return changed(name, in_files(quantize_dynamic), tolerance=FEW_BITS)


def static_int8(name: str, form: str) -> Converted:
    """Weights and activations of 8 bits, by scales that the example sets."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Example(CalibrationDataReader):
        def __init__(self, feeds):
            self.left = [feeds]

        def get_next(self):
            return self.left.pop() if self.left else None

    def change(model, feeds):
        def quantise(before, after):
            quantize_static(
                before, after, Example(feeds), getattr(QuantFormat, form), per_channel=True
            )

        return in_files(quantise)(model, feeds)

    return changed(name, change, tolerance=FEW_BITS)


def four_bits(name: str, tolerance: float = TOLERANCE, **settings) -> Converted:
    """Weights of 4 bits in blocks: MatMulNBits."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    def change(model, feeds):
        quantizer = MatMulNBitsQuantizer(model, block_size=16, **settings)
        quantizer.process()
        return quantizer.model.model

    return changed(name, change, tolerance=tolerance)


def fused(name: str, kind: str, **settings) -> Converted:
    """Operators of com.microsoft, by the optimizer of transformers."""

    def change(before, after):
        from onnxruntime.transformers.optimizer import optimize_model

        optimised = optimize_model(before, kind, num_heads=4, hidden_size=48, **settings)
        optimised.save_model_to_file(after)

    return changed(name, in_files(change))


def optimised(name: str) -> Converted:
    """As a session of onnxruntime saves what it has fused."""

    def change(before, after):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = after
        onnxruntime.InferenceSession(before, options, providers=["CPUExecutionProvider"])

    return changed(name, in_files(change))


def half(name: str) -> Converted:
    """float16 between float32 inputs and outputs."""

    def change(model, feeds):
        from onnxruntime.transformers.float16 import convert_float_to_float16

        return convert_float_to_float16(model, keep_io_types=True)

    return changed(name, change, tolerance=1e-2)


@sentences
def bert_dynamic_int8():
    return dynamic_int8("bert")


@sentences
def bert_static_int8():
    return static_int8("bert", "QDQ")


@sentences
def bert_fused():
    return fused("bert", "bert")


@sentences
def bert_optimised():
    return optimised("bert")


@sentences
def bert_half():
    return half("bert")


@steps
def gpt2_opset_11():
    return of_opset("gpt2", 11)


@steps
def gpt2_dynamic_int8():
    return dynamic_int8("gpt2")


@steps
def gpt2_fused():
    return fused("gpt2", "gpt2")


@steps
def llama_four_bits():
    return four_bits("llama", is_symmetric=True)


@steps
def qwen2_four_bits():
    """onnxruntime multiplies with activations of 8 bits at this level, as it may."""
    return four_bits("qwen2", FEW_BITS, is_symmetric=False, accuracy_level=4)


@steps
def llama_optimised():
    return optimised("llama")


@pictures
def resnet_qdq():
    return static_int8("resnet", "QDQ")


@pictures
def resnet_q_operator():
    return static_int8("resnet", "QOperator")


@pictures
def mobilenet_v3_qdq():
    return static_int8("mobilenet_v3", "QDQ")


@pictures
def vit_dynamic_int8():
    return dynamic_int8("vit")


@pictures
def vit_fused():
    return fused("vit", "vit")


@pictures
def resnet_half():
    return half("resnet")


@pictures
def resnet_optimised():
    return optimised("resnet")


@pictures
def resnet_opset_7():
    return of_opset("resnet", 7)


@pictures
def densenet_opset_9():
    return of_opset("densenet", 9)


@pictures
def swin_opset_12():
    return of_opset("swin", 12)


@architecture(("converter",), batch=(2, 3), side=(32, 48))
def unet_opset_9():
    return of_opset("unet", 9)


@architecture(("converter",), batch=(2, 3), samples=(400, 560))
def wav2vec2_dynamic_int8():
    return dynamic_int8("wav2vec2")


@pictures
def bidirectional_lstm_dynamic_int8():
    return dynamic_int8("bidirectional_lstm")


@pictures
def bidirectional_lstm_opset_9():
    return of_opset("bidirectional_lstm", 9)


@architecture(("converter",))
def faster_rcnn_opset_11():
    return of_opset("faster_rcnn", 11)
