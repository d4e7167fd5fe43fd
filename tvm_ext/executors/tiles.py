"""Products of tiles by AMX, as functions of LLVM's that kernels call.

A tile is up to 16 rows of 64 bytes. What :mod:`tvm_ext.schedules.llvm.tiles` schedules calls

- ``tvmx_tiles_begin(rows)`` before and ``tvmx_tiles_end()`` after all others, on each thread; the
  tiles of sums and of the left side have so many rows;
- ``tvmx_tiles_R_L(sums, end, left, other, right, blocks, block, taps, tap, steps, step, pitch,
  ahead)``, of R tiles of rows, one or two, by two tiles of columns: ``sums[R, 16, 32]``
  is set to what pairs of bfloat16 add up to. The left tiles begin at ``left`` and ``other``; their
  rows are ``pitch`` bytes apart, and for each of ``blocks``, of ``taps`` and of ``steps`` they move
  by so many bytes. Right tiles follow each other, ``[16 pairs, 32]`` each. Each step asks memory
  for L lines, from ``ahead`` on. ``end``, the last element, only says how
  far ``sums`` is written.
- ``tvmx_tiles_bytes_R_L``, the same of four bytes in the place of pairs, unsigned ones on the left,
  and of int32.

Linux gives a process the registers of tiles when it asks.
"""

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm

from .cpu import TILE_REQUEST
from .llvm_functions import with_functions

__all__ = ["lower_tiles", "uses_tiles"]

_PREFIX = "tvmx_tiles"
_PITCH = 128  # bytes of a row of sums, and of the right side: two tiles


@tvm.transform.module_pass(opt_level=0, name="LowerTiles")
def lower_tiles(module, _context):
    """Each kernel brings the functions that it calls."""
    for gv, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and (called := _called(function)):
            texts = [_DECLARED, *map(_text, sorted(called))]
            module.update_func(gv, with_functions(function, ["".join(texts)]))
    return module


def uses_tiles(module: tvm.IRModule) -> bool:
    """Whether a kernel of ``module`` multiplies tiles."""
    functions = (f for _, f in module.functions_items())
    return any(isinstance(f, tirx.PrimFunc) and _called(f) for f in functions)


def _called(function: tirx.PrimFunc) -> set[str]:
    names: set[str] = set()

    def visit(call: Call) -> None:
        first = call.args[0] if call.args else None
        if isinstance(first, StringImm) and first.value.startswith(_PREFIX):
            names.add(str(first.value))

    tvm_ffi.structural_walk(function.body, (Call, visit))
    return names


_DECLARED = """
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.x86.tdpbusd(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)
declare i64 @syscall(i64, ...)
"""

_SUMS, _LEFT, _RIGHT = ((0, 1), (2, 3)), (4, 5), (6, 7)
_OF_ROWS = (*(tile for row in _SUMS for tile in row), *_LEFT)

_SET_ROWS = "\n  ".join(
    f"%p{tile} = getelementptr i8, ptr %shape, i64 {48 + tile}\n  store i8 %few, ptr %p{tile}"
    for tile in _OF_ROWS
)

# Palette 1: all of the eight tiles are 16 rows of 64 bytes, until the number of rows is written.
# The system is asked once; whoever loads the model has checked that it grants the registers.
_BEGIN = f"""
@{_PREFIX}_shape = linkonce_odr hidden constant <{{ [16 x i8], [16 x i16], [16 x i8] }}> <{{
  [16 x i8] [i8 1{", i8 0" * 15}],
  [16 x i16] [{", ".join(["i16 64"] * 8 + ["i16 0"] * 8)}],
  [16 x i8] [{", ".join(["i8 16"] * 8 + ["i8 0"] * 8)}] }}>, align 64
@{_PREFIX}_asked = linkonce_odr hidden global i32 0
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1 immarg)
define linkonce_odr hidden i32 @{_PREFIX}_begin(i64 %rows) alwaysinline {{
  %shape = alloca [64 x i8], align 64
  %asked = load atomic i32, ptr @{_PREFIX}_asked monotonic, align 4
  %done = icmp ne i32 %asked, 0
  br i1 %done, label %set, label %ask
ask:
  %granted = call i64 (i64, ...) @syscall({", ".join(f"i64 {n}" for n in TILE_REQUEST)})
  store atomic i32 1, ptr @{_PREFIX}_asked monotonic, align 4
  br label %set
set:
  call void @llvm.memcpy.p0.p0.i64(ptr %shape, ptr @{_PREFIX}_shape, i64 64, i1 false)
  %few = trunc i64 %rows to i8
  {_SET_ROWS}
  call void @llvm.x86.ldtilecfg(ptr %shape)
  ret i32 0
}}
"""

_END = f"""
define linkonce_odr hidden i32 @{_PREFIX}_end() alwaysinline {{
  call void @llvm.x86.tilerelease()
  ret i32 0
}}
"""


def _product(name: str, instruction: str, rows: int, lines: int) -> str:
    """The function for so many tiles of rows, and lines to ask for in a step."""
    lefts, sums = ("left", "other")[:rows], _SUMS[:rows]
    load = "call void @llvm.x86.tileloadd64(i8 {}, ptr %{}, i64 {})"
    zero = [f"call void @llvm.x86.tilezero(i8 {tile})" for row in sums for tile in row]
    step = [
        load.format(_RIGHT[0], "right2", _PITCH),
        "%right3 = getelementptr i8, ptr %right2, i64 64",
    ]
    step += [load.format(_RIGHT[1], "right3", _PITCH)]
    for r, left in enumerate(lefts):
        step += [f"%{left}2 = getelementptr i8, ptr %{left}, i64 %at2"]
        step += [load.format(_LEFT[r], f"{left}2", "%pitch")]
        step += [
            f"call void @llvm.x86.{instruction}(i8 {tile}, i8 {_LEFT[r]}, i8 {right})"
            for tile, right in zip(sums[r], _RIGHT, strict=True)
        ]
    for line in range(lines):
        step += [f"%line{line} = getelementptr i8, ptr %ahead2, i64 {64 * line}"]
        # To be read, and kept in the second cache.
        step += [f"call void @llvm.prefetch.p0(ptr %line{line}, i32 0, i32 2, i32 1)"]
    store = []
    for r, row in enumerate(sums):
        for c, tile in enumerate(row):
            store += [f"%s{tile} = getelementptr i8, ptr %sums, i64 {r * 16 * _PITCH + 64 * c}"]
            store += [f"call void @llvm.x86.tilestored64(i8 {tile}, ptr %s{tile}, i64 {_PITCH})"]
    arguments = "ptr %sums, ptr %end, ptr %left, ptr %other, ptr %right, "
    arguments += "i64 %blocks, i64 %block, i64 %taps, i64 %tap, i64 %steps, i64 %step, i64 %pitch, "
    arguments += "ptr %ahead"
    return f"""
define linkonce_odr hidden i32 @{name}({arguments}) alwaysinline {{
entry:
  {_lines(zero)}
  br label %blocks_
blocks_:
  %b = phi i64 [ 0, %entry ], [ %bn, %block_done ]
  %at0 = phi i64 [ 0, %entry ], [ %at0n, %block_done ]
  %right0 = phi ptr [ %right, %entry ], [ %rightn, %block_done ]
  %ahead0 = phi ptr [ %ahead, %entry ], [ %aheadn, %block_done ]
  br label %taps_
taps_:
  %t = phi i64 [ 0, %blocks_ ], [ %tn, %tap_done ]
  %at1 = phi i64 [ %at0, %blocks_ ], [ %at1n, %tap_done ]
  %right1 = phi ptr [ %right0, %blocks_ ], [ %rightn, %tap_done ]
  %ahead1 = phi ptr [ %ahead0, %blocks_ ], [ %aheadn, %tap_done ]
  br label %steps_
steps_:
  %s = phi i64 [ 0, %taps_ ], [ %sn, %steps_ ]
  %at2 = phi i64 [ %at1, %taps_ ], [ %at2n, %steps_ ]
  %right2 = phi ptr [ %right1, %taps_ ], [ %rightn, %steps_ ]
  %ahead2 = phi ptr [ %ahead1, %taps_ ], [ %aheadn, %steps_ ]
  {_lines(step)}
  %rightn = getelementptr i8, ptr %right2, i64 {16 * _PITCH}
  %aheadn = getelementptr i8, ptr %ahead2, i64 {64 * lines}
  %at2n = add i64 %at2, %step
  %sn = add i64 %s, 1
  %more2 = icmp ult i64 %sn, %steps
  br i1 %more2, label %steps_, label %tap_done
tap_done:
  %at1n = add i64 %at1, %tap
  %tn = add i64 %t, 1
  %more1 = icmp ult i64 %tn, %taps
  br i1 %more1, label %taps_, label %block_done
block_done:
  %at0n = add i64 %at0, %block
  %bn = add i64 %b, 1
  %more0 = icmp ult i64 %bn, %blocks
  br i1 %more0, label %blocks_, label %store
store:
  {_lines(store)}
  ret i32 0
}}
"""


def _lines(lines: list[str]) -> str:
    return "\n  ".join(lines)


def _text(name: str) -> str:
    """The function of that name."""
    kind, *numbers = name.removeprefix(f"{_PREFIX}_").split("_")
    if not numbers:
        return {"begin": _BEGIN, "end": _END}[kind]
    if kind == "bytes":
        return _product(name, "tdpbusd", *map(int, numbers))
    return _product(name, "tdpbf16ps", int(kind), *map(int, numbers))
