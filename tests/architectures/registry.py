"""What an architecture is, and the architectures by name.

A family is a file of functions that are marked with :func:`architecture`. The heavy packages are
imported inside these functions, so that the list is there without them.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

__all__ = [
    "EXPORTERS",
    "FAMILIES",
    "FORMS",
    "NOT_EXPORTED",
    "TOLERANCE",
    "Architecture",
    "Converted",
    "Network",
    "Task",
    "architecture",
    "architectures",
    "tasks",
]

FAMILIES = (
    "encoders",
    "decoders",
    "vision",
    "multimodal",
    "detection",
    "segmentation",
    "images",
    "speech",
    "diffusion",
    "recommenders",
    "time_series",
    "trees",
    "pipelines",
    "keras_models",
    "paddle_models",
    "deployed",
)
EXPORTERS = ("torchscript", "dynamo", "converter")
FORMS = ("static", "dynamic")
TOLERANCE = 1e-3
NOT_EXPORTED = "not exported"  # begins the reason where there is no model to compare with


class Network(NamedTuple):
    """A torch module and its example inputs.

    Attributes:
        module: called with the inputs by keyword; every tensor among its results is an output.
        inputs: sizes by the names of dims -> tensors by the names of inputs, in their order.
        calibrated: whether the weights stay as they are made, not drawn at random.
    """

    module: Any
    inputs: Callable[..., dict[str, Any]]
    calibrated: bool = False


class Converted(NamedTuple):
    """A model that another converter than torch's writes.

    Attributes:
        model: sizes by the names of dims, None where symbolic -> the ``ModelProto``.
        inputs: sizes by the names of dims -> arrays by the names of inputs.
        tolerance: what floats may differ by, of the largest value of an output.
    """

    model: Callable[..., Any]
    inputs: Callable[..., dict[str, Any]]
    tolerance: float = TOLERANCE


class Architecture(NamedTuple):
    """One entry.

    Attributes:
        name: unique.
        family: the file that it is in.
        make: gives the :class:`Network` or the :class:`Converted`.
        dims: the dims that may be symbolic -> the size exported, then another one.
        exporters: those that are asked.
    """

    name: str
    family: str
    make: Callable[[], Network | Converted]
    dims: dict[str, tuple[int, int]]
    exporters: tuple[str, ...]

    def sizes(self, which: int) -> dict[str, int]:
        """The sizes that are exported (0), or the others (1)."""
        return {name: sizes[which] for name, sizes in self.dims.items()}


class Task(NamedTuple):
    """An architecture by one exporter, in one form."""

    name: str
    exporter: str
    form: str


_REGISTERED: dict[str, Architecture] = {}


def architecture(
    exporters: tuple[str, ...] = EXPORTERS[:2], **dims: tuple[int, int]
) -> Callable[[Callable], Callable]:
    """Register the decorated function, which makes a network, under its name.

    ``dims`` are the sizes that may be symbolic: the one exported and another one.
    """

    def register(make: Callable) -> Callable:
        family = make.__module__.rpartition(".")[2]
        if make.__name__ in _REGISTERED:
            raise ValueError(f"two architectures are called {make.__name__!r}")
        _REGISTERED[make.__name__] = Architecture(make.__name__, family, make, dims, exporters)
        return make

    return register


def architectures() -> dict[str, Architecture]:
    """All of them by name, family by family."""
    for family in FAMILIES:
        import_module(f".{family}", __package__)
    return dict(_REGISTERED)


def tasks() -> list[Task]:
    """Each architecture by each of its exporters, static, and dynamic where it has dims."""
    return [
        Task(each.name, exporter, form)
        for each in architectures().values()
        for exporter in each.exporters
        for form in FORMS
        if form == "static" or each.dims
    ]
