"""Kernels that are C text: what compound operators emit instead of TIR.

Such a kernel is a PrimFunc with the attribute ``c_source``, text that defines ``TVMX_KERNEL``, and
``c_support``, text that is compiled once for all kernels that name the same. The PrimFunc itself
computes the same, for executors that link no C.
"""

from collections.abc import Mapping

from tvm import tirx

__all__ = ["c_sources", "is_c_code"]


def is_c_code(kernel: tirx.PrimFunc) -> bool:
    """Whether ``kernel`` comes with C text."""
    return bool(kernel.attrs) and "c_source" in kernel.attrs


def c_sources(kernels: Mapping[str, tirx.PrimFunc]) -> list[str]:
    """The C files of kernels by the names under which they are called: one each, then support."""
    named = [
        f'#define TVMX_KERNEL {symbol}\n#line 1 "{_place(kernel)}"\n{kernel.attrs["c_source"]}'
        for symbol, kernel in kernels.items()
        if is_c_code(kernel)
    ]
    support = [str(kernel.attrs["c_support"]) for kernel in kernels.values() if is_c_code(kernel)]
    return named + [text for text in dict.fromkeys(support) if text]


def _place(kernel: tirx.PrimFunc) -> str:
    """What a C compiler says of an error in the text."""
    return f"C code of compound {kernel.attrs.get('Composite', 'unknown')}"
