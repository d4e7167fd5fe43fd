"""The converters of tvm_ext in the table of TVM's own ONNX importer.

``tvm.relax.frontend.onnx.from_onnx`` (0.27) knows 164 operators; others (Swish, Col2Im, ...) raise
``OpNotImplemented``. Its InstanceNormalization sums in the type of its input: an image of 32 x 32
float16 values around 100 sums to more than float16 holds, and the result is NaN. Within ::

    with converters_in_tvm("InstanceNormalization"):
        module = from_onnx(model)

the named operators, and all that TVM lacks, are converted by ``tvm_ext.frontend``.

Upstream: ``_get_convert_map`` in ``tvm/relax/frontend/onnx/onnx_frontend.py`` builds the table anew
on every call, so there is no table to register in; the function is replaced while in the context.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import onnx
import onnx_ir as ir
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend
from tvm_ext.frontend.builder import Builder
from tvm_ext.frontend.table import TABLE, lookup

__all__ = ["converters_in_tvm"]

_CONTROL_FLOW = {"If", "Loop", "Scan", "SequenceMap"}  # their graphs need our own walk


@contextmanager
def converters_in_tvm(*operators: str) -> Iterator[None]:
    """Within the context TVM's importer uses our converters for ``operators`` and for all it lacks.

    Raises:
        ValueError: an operator that tvm_ext has no converter for.
    """
    ours = {op_type for domain, op_type, _ in TABLE if domain == ""} - _CONTROL_FLOW
    unknown = sorted(set(operators) - ours)
    if unknown:
        raise ValueError(f"tvm_ext converts no {', '.join(unknown)}")
    original = onnx_frontend._get_convert_map

    def extended() -> dict[str, object]:
        table = original()
        chosen = set(operators) | (ours - table.keys())
        return table | {op_type: _Entry(op_type, table.get(op_type)) for op_type in chosen}

    onnx_frontend._get_convert_map = extended
    try:
        yield
    finally:
        onnx_frontend._get_convert_map = original


class _Entry:
    """What TVM's table holds for an operator: ``get_converter`` by opset."""

    def __init__(self, op_type: str, fallback: type | None):
        self.op_type = op_type
        self.fallback = fallback

    def get_converter(self, opset: int):
        """Our converter for the opset; TVM's where we have none."""
        _, function = lookup("", self.op_type, opset)
        if function is None:
            if self.fallback is None:
                raise NotImplementedError(f"{self.op_type} in opset {opset}")
            return self.fallback.get_converter(opset)

        def convert(bb: relax.BlockBuilder, inputs, attr: Mapping[str, object], params):
            attributes = dict(attr)
            outputs = attributes.pop("tvm_custom", {}).get("num_outputs", 1)
            builder = Builder({"": opset})
            builder.bb = bb
            builder.node = ir.Node("", self.op_type, [None] * len(inputs), num_outputs=outputs)
            for name, value in attributes.items():
                if isinstance(value, onnx.TensorProto):
                    attributes[name] = ir.from_proto(value)
                elif isinstance(value, bytes):
                    attributes[name] = value.decode()
            results = function(builder, *inputs, **attributes)
            return relax.Tuple(list(results)) if isinstance(results, tuple) else results

        return convert
