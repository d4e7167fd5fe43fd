"""Kernels that are C text: what compound operators emit instead of TIR.

Such a kernel is a PrimFunc with the attribute ``c_source``, text that defines ``TVMX_KERNEL``, and
``c_support``, text that is compiled once for all kernels that name the same. Its body only says
which tensors the C function takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tvm
import tvm_ffi
from tvm import IRModule, tirx
from tvm.ir import GlobalVar, PrimType

from ..errors import RunError
from .emit import kernel_symbol
from .toolchain import compile_c
from .work_folder import work_folder

__all__ = ["c_sources", "is_c_code", "with_c_code"]


def is_c_code(kernel: tirx.PrimFunc) -> bool:
    """Whether ``kernel`` is C text."""
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


def with_c_code(
    module: IRModule, triple: str | None
) -> tuple[IRModule, list[tvm.runtime.Module], list[str]]:
    """``module`` for TVM's own calling convention: its C kernels call what is compiled here.

    Returns too the object files, which TVM links, and the C texts. For the machine of ``triple``,
    by default this one.

    Raises:
        BuildError: there is no C compiler, or it fails.
    """
    kernels = {gv: f for gv, f in module.functions_items() if is_c_code(f)}
    texts = c_sources({_symbol(gv): f for gv, f in kernels.items()})
    if not kernels:
        return module, [], texts
    with work_folder() as folder:
        objects = [_compiled(folder / f"c{k}.c", text, triple) for k, text in enumerate(texts)]
    return (
        IRModule(
            {gv: _calling(gv, f) if gv in kernels else f for gv, f in module.functions_items()},
            attrs=module.attrs,
        ),
        objects,
        texts,
    )


def _compiled(place: Path, text: str, triple: str | None) -> tvm.runtime.Module:
    place.write_text(text)
    return tvm.runtime.load_static_library(str(compile_c(place, triple, _HIDDEN)), [])


# Libraries of several models may define the same names.
_HIDDEN = ("-fvisibility=hidden",)


def _symbol(kernel: GlobalVar) -> str:
    return kernel_symbol(kernel.name_hint, "vm")


def _calling(symbol: GlobalVar, kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel that calls its C function, and fails where that does."""
    operands = [
        tirx.address_of(tirx.BufferLoad(buffer, [0] * len(buffer.ty.shape)))
        for buffer in kernel.params
    ]
    code = tirx.Var("code", PrimType("int32"))
    call = tirx.call_extern("int32", _symbol(symbol), *operands)
    failing = tirx.call_packed(_FAILED, str(kernel.attrs.get("Composite", "")), code)
    body = tirx.SeqStmt(
        [tirx.Bind(code, call), tirx.IfThenElse(code != 0, tirx.Evaluate(failing), None)]
    )
    return tirx.PrimFunc(kernel.params, body, kernel.ret_type, kernel.attrs)


_FAILED = "tvm_ext.c_code_failed"
tvm_ffi.register_error("RunError", RunError)  # so that it is one on this side of TVM, too


@tvm_ffi.register_global_func(_FAILED, override=True)
def _failed(compound: str, code: int) -> None:
    """What a kernel calls whose C function returned a code."""
    raise RunError(f"the C code of compound {compound} returned {code}")
