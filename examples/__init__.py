"""The example models: torch definitions, seeded random weights, one registry.

``EXAMPLES[name].build(size)`` gives a module in evaluation mode; ``examples.export`` writes ONNX.
``size="small"`` is the same architecture with few channels, few layers and small inputs.
"""

from .registry import EXAMPLES, SIZES, Example

__all__ = ["EXAMPLES", "SIZES", "Example"]
