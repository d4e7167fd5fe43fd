"""Small random-weight networks of many architectures: exported, compiled, equal to onnxruntime.

One file per family. ``python -m tests.architectures`` runs them and counts.
"""

from .registry import FAMILIES, FORMS, Architecture, Task, architectures, tasks

__all__ = ["FAMILIES", "FORMS", "Architecture", "Task", "architectures", "tasks"]
