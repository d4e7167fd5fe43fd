"""What scripts of the Relay era name and tvm_ext does not offer: what to use instead."""

from tvm_ext.errors import RemovedError

__all__ = ["removed"]

_NO_TUNING = "relay.build chooses schedules by itself, without tuning: leave the tuning out"
_EXPORT = "export the model to ONNX (torch.onnx.export, tf2onnx, ...) and use from_onnx"
_IMPORTERS = "pytorch", "tensorflow", "tflite", "keras", "mxnet", "caffe", "coreml", "paddle"

_INSTEAD = {
    "tvm.autotvm": _NO_TUNING,
    "tvm.auto_scheduler": _NO_TUNING,
    "tvm.meta_schedule": f"{_NO_TUNING}; TVM's own tuner is tvm.s_tir.meta_schedule",
    "tvm.rpc": "copy the file of export_library to the device and load it there",
    "tvm.driver": "the command tvm-ext builds, runs and compares models",
    "tvm.micro": "there are no targets without an operating system",
    "relay.build_module.bind_params_by_name": "give the parameters to relay.build",
    "relay.quantize": "quantise the ONNX model, for example by onnxruntime.quantization",
    "relay.testing": "the models of examples/ are exported by examples.export",
    "relay.vm.Executable": "load_module reads what export_library wrote",
    "relay.vm.Executable.save": "export_library writes one file",
    **{f"relay.frontend.from_{name}": _EXPORT for name in _IMPORTERS},
}


def removed(name: str) -> RemovedError:
    """The error for a dotted name, ``"relay.var"`` or ``"tvm.autotvm"``."""
    instead = _INSTEAD.get(name)
    if instead is None and name.startswith("relay."):
        instead = (
            "models come from relay.frontend.from_onnx as they are; "
            "operators and passes of your own from tvm_ext.extend"
        )
    return RemovedError(f"{name} is not offered: {instead or 'TVM has it no more'}")
