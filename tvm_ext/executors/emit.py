"""The C function that runs a memory plan: one call after the other, no interpreter."""

from collections.abc import Iterator

from .plan import Plan, Slot

__all__ = ["ENTRY", "ENTRY_PARAMETERS", "entry_source", "kernel_symbol"]

ENTRY = "tvmx_execute"

ENTRY_PARAMETERS = (
    "const unsigned char *weights, unsigned char *arena, "
    "void *const *inputs, void *const *outputs, void (*observe)(int, double)"
)


def kernel_symbol(name: str, tag: str) -> str:
    """The C name of a kernel: its own could be one of libc's, or of another program's, which the
    ``tag`` keeps apart."""
    return f"tvmx_kernel_{tag}_{name}"


def entry_source(plan: Plan, tag: str, entry: str = ENTRY) -> str:
    """C text of ``int tvmx_execute(weights, arena, inputs, outputs, observe)``, or of that name.

    It returns 0 or the code of the kernel that failed. ``observe`` is NULL, or called after each
    kernel with its number and its seconds.
    """
    return "\n".join([*_head(plan, tag), *_body(plan, tag, entry), ""])


def _head(plan: Plan, tag: str) -> Iterator[str]:
    yield '#include "tvmx.h"'
    yield "#include <string.h>\n"
    for kernel in dict.fromkeys((k.symbol, len(k.operands)) for k in plan.kernels):
        symbol, count = kernel
        yield f"int32_t {kernel_symbol(symbol, tag)}({', '.join(['void *'] * count) or 'void'});"


def _body(plan: Plan, tag: str, entry: str) -> Iterator[str]:
    yield f"\nint {entry}({ENTRY_PARAMETERS}) {{"
    yield "  int code;"
    yield "  double start = observe ? tvmx_seconds() : 0;"
    yield "  (void)weights, (void)arena, (void)inputs, (void)outputs, (void)code, (void)start;"
    for number, kernel in enumerate(plan.kernels):
        where = ", ".join(_address(slot) for slot in kernel.operands)
        yield f"  if ((code = {kernel_symbol(kernel.symbol, tag)}({where}))) return code;"
        yield f"  if (observe) observe({number}, tvmx_seconds() - start), start = tvmx_seconds();"
    for number, slot in enumerate(plan.outputs):
        if (slot.root.kind, slot.root.index) != ("output", number):
            yield f"  memcpy(outputs[{number}], {_address(slot)}, {slot.nbytes});"
    yield "  return 0;"
    yield "}"


def _address(slot: Slot) -> str:
    root = slot.root
    if root.kind == "arena":
        return f"arena + {root.offset}"
    if root.kind == "weight":
        return f"(void *)(weights + {root.offset})"
    return f"{root.kind}s[{root.index}]"
