"""The files of a model as C source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from ..._version import __version__
from ...executors.emit import in_regions, moved, reads, with_functions
from ...executors.plan import COPY, Slot
from ..c_example import FUNCTIONS, literal
from ..c_texts import comment, marked, string
from ..example import Expected
from ..interface import Tensor
from .c_types import as_bits, c_type, constant, is_narrow
from .layout import WIDTH, wrapped
from .program import Call, Program

__all__ = ["PARALLEL", "cmake_lists", "example", "header", "source", "weights_source"]

#: What stands in front of loops that threads may share.
PARALLEL = "PARALLEL_FOR"

_ALIGNMENT = 8  # of the largest element


def header(program: Program, embedded: bool) -> str:
    """``<id>.h``: the documented interface."""
    macro = program.id.upper()
    return f"""\
/* {comment(program.name)}: an ONNX model as C11, printed by tvm_ext {__version__}.
 *
 * Inputs:
{_rows(program.inputs)}
 * Outputs:
{_rows(program.outputs)}
 *
 * Elements lie in row-major order. bool is uint8_t, 0 or 1; float16 and bfloat16 are uint16_t
 * and float8 is uint8_t, their bits. Nothing is allocated and no state is kept: threads may run
 * the model at the same time, each with a workspace of its own, such as
 *
 *   static _Alignas({_ALIGNMENT}) unsigned char workspace[{macro}_WORKSPACE_BYTES];
 */
#ifndef {macro}_H
#define {macro}_H

{"#include <stddef.h>" + chr(10) if program.checks else ""}#include <stdint.h>

#define {macro}_WORKSPACE_BYTES {_workspace_bytes(program)}
#define {macro}_ALIGNMENT {_ALIGNMENT}
{_file_bytes(program, embedded)}
{_elements(program)}
enum {{ {macro}_OK = 0, {macro}_NULL_ARGUMENT = 1, {macro}_UNALIGNED = 2{_codes(program)} }};

#ifdef __cplusplus
extern "C" {{
#endif

/* Run the model; {macro}_OK or one of the other codes. No two of the arrays overlap. */
{_signature(program, embedded)};
{_explanation(program)}
#ifdef __cplusplus
}}
#endif
#endif
"""


def _workspace_bytes(program: Program) -> int:
    """Of activations; of two numbers where a check fails."""
    return max(program.memory.arena_bytes, 16 if program.checks else 1)


def _codes(program: Program) -> str:
    return f", {program.id.upper()}_WRONG_VALUE = {_WRONG_VALUE}" if program.checks else ""


def _explanation(program: Program) -> str:
    """What is declared where values are checked."""
    macro = program.id.upper()
    return f"""
/* Codes from {macro}_WRONG_VALUE on are of values that an operator does not allow, such as an index
 * beyond an axis; what the outputs hold then has no meaning. Writes the whole sentence of such a
 * code to `text`, as much of it as fits `size`; `workspace` is that of the run. */
{_EXPLAIN.format(id=program.id)};
""" * bool(program.checks)


def _explain(program: Program) -> Iterator[str]:
    """The function that tells what a code means."""
    id = program.id
    yield "/* \\1 and \\2 are the numbers given and wanted. */"
    yield "static const char *const CHECKS[] = {"
    for check in program.checks:
        text = marked(check.text)
        pieces = [text[at : at + _LITERAL] for at in range(0, len(text), _LITERAL)]
        yield "\n".join(f"    {string(piece)}" for piece in pieces) + ","
    yield f"""}};

{_EXPLAIN.format(id=id)} {{
  const char *told = CHECKS[code - {id.upper()}_WRONG_VALUE];
  size_t at = 0;
  for (; *told && at + 1 < size; told++) {{
    if (*told != 1 && *told != 2) {{
      text[at++] = *told;
      continue;
    }}
    const int64_t number = ((const int64_t *)workspace)[*told - 1];
    uint64_t rest = number < 0 ? -(uint64_t)number : (uint64_t)number;
    char digits[21];
    int count = 0;
    do digits[count++] = (char)('0' + rest % 10); while (rest /= 10);
    if (number < 0) digits[count++] = '-';
    while (count > 0 && at + 1 < size) text[at++] = digits[--count];
  }}
  if (size > 0) text[at] = 0;
}}
"""


_LITERAL = 20  # characters: four in C each at most
_EXPLAIN = "void {id}_explain(int code, const void *workspace, char *text, size_t size)"
_WRONG_VALUE = 3


def _rows(tensors: Sequence[Tensor]) -> str:
    rows = [f" *   {tensor.id:{_width(tensors)}}  {_described(tensor)}" for tensor in tensors]
    return "\n".join(rows) or " *   none"


def _width(tensors: Sequence[Tensor]) -> int:
    return max(len(tensor.id) for tensor in tensors)


def _described(tensor: Tensor) -> str:
    name = "" if tensor.name == tensor.id else f"  {_short(tensor.name)}"
    return f"{tensor}{name}"


def _short(name: str) -> str:
    """``name`` for a comment, on one line."""
    plain = comment(name)
    return plain if len(plain) <= 60 else f"{plain[:57]}..."


def _file_bytes(program: Program, embedded: bool) -> str:
    if embedded:
        return ""
    return f"#define {program.id.upper()}_WEIGHTS_BYTES {_weight_bytes(program)}\n"


def _weight_bytes(program: Program) -> int:
    return max((weight.offset + weight.array.nbytes for weight in program.weights), default=0)


def _elements(program: Program) -> str:
    macro = program.id.upper()
    rows = [
        f"#define {macro}_{tensor.id.upper()}_ELEMENTS {tensor.bytes // tensor.element}"
        for tensor in (*program.inputs, *program.outputs)
    ]
    return "\n".join([*rows, ""]) if rows else ""


def _signature(program: Program, embedded: bool) -> str:
    params = [] if embedded else ["const void *weights"]
    params += [f"const {c_type(t.dtype)} *{t.id}" for t in program.inputs]
    params += [f"{c_type(t.dtype)} *{t.id}" for t in program.outputs]
    return "\n".join(wrapped(f"int {program.id}_run({', '.join([*params, 'void *workspace'])})", 0))


def source(program: Program, embedded: bool, openmp: bool) -> str:
    """``<id>.c``: the kernels, and the function that calls them."""
    return "\n".join(_source(program, embedded, openmp))


def _source(program: Program, embedded: bool, openmp: bool) -> Iterator[str]:
    id = program.id
    yield f"/* {comment(program.name)}: the kernels in the order of their first calls. */"
    yield f'#include "{id}.h"\n'
    yield "#include <math.h>\n#include <stddef.h>\n#include <string.h>\n"
    if openmp:
        yield f'#ifdef _OPENMP\n#define {PARALLEL} _Pragma("omp parallel for")'
        yield f"#else\n#define {PARALLEL}\n#endif\n"
    if embedded:
        for weight in program.weights:
            yield f"extern {_weight_declaration(weight.id, weight.array)};"
        if program.weights:
            yield ""
    for helper in program.helpers:
        yield f"{helper}\n"
    for function, text in program.functions.items():
        yield from _comment_of(program, function)
        yield f"{text}\n"
    yield from with_functions(_run(program, embedded))
    if program.checks:
        yield from _explain(program)


def _comment_of(program: Program, function: str) -> Iterator[str]:
    """The ONNX nodes of each call of a kernel."""
    calls = [call for call in program.calls if call.function == function]
    rows = [", ".join(map(_short, call.nodes)) or "no ONNX node" for call in calls]
    lines = [line for row in rows for line in wrapped(row, 3)]
    yield "\n".join(["/*", *(f" *{line[2:]}" for line in lines), " */"])


def _type(slot: Slot) -> str:
    return f"{slot.dtype}[{', '.join(map(str, slot.shape))}]"


def _run(program: Program, embedded: bool) -> Iterator[str]:
    macro = program.id.upper()
    checked = [tensor.id for tensor in (*program.inputs, *program.outputs)]
    checked += ([] if embedded else ["weights"]) + ["workspace"]
    yield f"{_signature(program, embedded)} {{"
    missing = " || ".join(f"!{name}" for name in checked)
    yield from wrapped(f"if ({missing}) return {macro}_NULL_ARGUMENT;", 2)
    places = ["workspace"] if embedded else ["workspace", "weights"]
    unaligned = " || ".join(f"(uintptr_t){place} % {macro}_ALIGNMENT" for place in places)
    yield f"  if ({unaligned}) return {macro}_UNALIGNED;"
    if program.memory.arena_bytes:
        yield "  unsigned char *const arena = workspace;"
    if not embedded:
        yield "  const unsigned char *const constants = weights;"
        yield from ("  (void)constants;",) if not program.weights else ()
    for slot, name in program.names.items():
        if slot.kind == "arena":
            line = f"  void *const {name} = arena + {slot.offset};"
            note = f"/* {_type(slot)} */"
            if len(line) + len(note) < WIDTH:
                yield f"{line} {note}"
            else:
                yield from (f"  {note}", line)
    yield from _checks(program, -1, embedded)
    numbered = enumerate(program.calls)
    calls = ((call.kernel, _call(program, number, call, embedded)) for number, call in numbered)
    yield from in_regions(calls, str, partial(_plain, program, embedded=embedded))
    yield from _copies(program, embedded)
    yield f"  return {macro}_OK;\n}}\n"


def _call(program: Program, number: int, call: Call, embedded: bool) -> Iterator[str]:
    kernel = call.kernel
    yield ""
    for line in wrapped(", ".join(map(_short, call.nodes)), 5) if call.nodes else ():
        yield f"  /* {line.strip()} */"
    if kernel.is_call:
        operands = [_operand(program, slot, embedded) for slot in (*kernel.reads, *kernel.writes)]
        operands += [f"(void *)(arena + {slot.offset})" for slot in kernel.scratch]
        yield from wrapped(f"{call.function}({', '.join(operands)});", 2)
    elif kernel.symbol == COPY:
        places = zip(kernel.operands, kernel.moves, strict=True)
        source, target = (moved(_plain(program, slot, embedded), n, str) for slot, n in places)
        yield from wrapped(f"memcpy({target}, {source}, {kernel.reads[0].nbytes});", 2)
    yield from _checks(program, number, embedded)


def _checks(program: Program, call: int, embedded: bool) -> Iterator[str]:
    """Those behind a call: where one fails, the workspace gets the two numbers that differ."""
    mine = [(k, check) for k, check in enumerate(program.checks) if check.after == call]
    read = list(reads([check for _, check in mine], lambda s: _plain(program, s, embedded)))
    yield from ["  {", *read] if read else ()
    for number, check in mine:
        yield from wrapped(f"if ({check.given} != {check.wanted}) {{", 2)
        code = f"{program.id.upper()}_WRONG_VALUE + {number}"
        numbers = f"{{{check.given}, {check.wanted}}}"
        yield from wrapped(f"const int64_t found[2] = {numbers};", 4)
        yield "    memcpy(workspace, found, sizeof found);"
        yield f"    return {code};"
        yield "  }"
    yield from ("  }",) if read else ()


def _copies(program: Program, embedded: bool) -> Iterator[str]:
    """Outputs that no kernel writes: inputs, constants, views, or another output again."""
    for number, (slot, tensor) in enumerate(zip(program.results, program.outputs, strict=True)):
        if (slot.root.kind, slot.root.index) != ("output", number) and slot.nbytes:
            yield ""
            source = _plain(program, slot, embedded)
            yield from wrapped(f"memcpy({tensor.id}, {source}, {slot.nbytes});", 2)


def _plain(program: Program, slot: Slot, embedded: bool) -> str:
    """Where the bytes of ``slot`` are."""
    if slot.root.kind == "weight" and not embedded:
        return f"constants + {slot.root.offset}"
    return program.names[slot.root]


def _operand(program: Program, slot: Slot, embedded: bool) -> str:
    """``slot`` as an argument of a kernel: an array of its shape."""
    root, text = slot.root, _plain(program, slot, embedded)
    if root.kind == "arena":
        return text
    if root.kind == "output":
        return f"(void *){text}"
    inner = "".join(f"[{max(dim, 1)}]" for dim in slot.shape[1:])
    if root.kind == "weight" and embedded and root.shape == slot.shape:
        return text
    if " + " in text:
        text = f"({text})"
    return f"(const {c_type(slot.dtype)} {f'(*){inner}' if inner else '*'}){text}"


def _weight_declaration(id: str, array: np.ndarray) -> str:
    dims = "".join(f"[{max(dim, 1)}]" for dim in array.shape or (1,))
    return f"const {c_type(array.dtype.name)} {id}{dims}"


def weights_source(program: Program) -> Iterator[str]:
    """``<id>_weights.c``, line by line: the constants."""
    yield f"/* {comment(program.name)}: the constants, as the kernels read them. */"
    yield "#include <math.h>\n#include <stdint.h>\n"
    for weight in program.weights:
        name = "computed" if weight.initializer is None else _short(weight.initializer)
        declaration = _weight_declaration(weight.id, weight.array)
        yield f"/* {name} */"
        yield f"extern {declaration};"
        yield f"{declaration} = {{"
        yield from _elements_of(_printable(weight.array), 2)
        yield "};\n"


def _printable(array: np.ndarray) -> np.ndarray:
    """``array``, with the bits of floats that C lacks; an empty one with an element for C."""
    if is_narrow(array.dtype.name):
        array = array.view(np.uint16)
    array = array.view(as_bits(array.dtype.name))
    shape = [max(dim, 1) for dim in array.shape or (1,)]
    return array.reshape(shape) if array.size else np.zeros(shape, array.dtype)


def _elements_of(array: np.ndarray, indent: int) -> Iterator[str]:
    """The lines between the braces of ``array``; as much on one as fits."""
    margin = " " * indent
    line = margin
    for part in array:
        text = _inline(part, WIDTH - indent)
        if text is None:
            if line.strip():
                yield line.rstrip()
            line = margin
            yield f"{margin}{{"
            yield from _elements_of(part, indent + 2)
            yield f"{margin}}},"
        elif len(line) + len(text) < WIDTH:
            line += f"{text}, "
        else:
            yield line.rstrip()
            line = f"{margin}{text}, "
    if line.strip():
        yield line.rstrip()


def _inline(part: np.ndarray, room: int) -> str | None:
    """``part`` on one line; None where it is longer."""
    if part.ndim == 0:
        return constant(part.item(), part.dtype.name)
    if part.size > room // 3:
        return None
    inner = [_inline(each, room) for each in part]
    text = f"{{{', '.join(map(str, inner))}}}"
    return text if None not in inner and len(text) < room else None


def example(program: Program, results: Sequence[Expected], embedded: bool) -> str:
    """``main.c``: runs the model on the input that ``results`` were computed from."""
    return "\n".join(_example(program, results, embedded))


def _example(program: Program, results: Sequence[Expected], embedded: bool) -> Iterator[str]:
    id, macro = program.id, program.id.upper()
    yield f"""\
/* Runs the model on pseudo-random input and compares with what TVM answered when it was
 * exported.{"" if embedded else " The path of the file of weights may be given."} */
#include "{id}.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {{
  const char *name, *dtype;
  size_t bytes, element;
}} tensor;
"""
    yield FUNCTIONS.replace("tvmx_tensor", "tensor")
    for side, tensors in (("input", program.inputs), ("output", program.outputs)):
        for k, t in enumerate(tensors):
            yield f"static {c_type(t.dtype)} {side}_{k}[{max(t.bytes // t.element, 1)}];"
        arrays = ", ".join([*(f"{side}_{k}" for k in range(len(tensors))), "NULL"])
        yield f"static void *const {side.upper()}_ARRAYS[] = {{{arrays}}};"
        yield f"static const tensor {side.upper()}S[] = {{"
        yield from (f"    {_row(t)}," for t in tensors)
        yield "    {NULL, NULL, 0, 0},\n};"
    yield f"static _Alignas({_ALIGNMENT}) unsigned char workspace[{macro}_WORKSPACE_BYTES];"
    if not embedded:
        yield f"static _Alignas({_ALIGNMENT}) unsigned char weights[{macro}_WEIGHTS_BYTES + 1];"
    yield from _samples(results)
    yield f"int main({'void' if embedded else 'int argc, char **argv'}) {{"
    if not embedded:
        yield f"""\
  const char *path = argc > 1 ? argv[1] : "{id}.bin";
  FILE *file = fopen(path, "rb");
  if (!file || fread(weights, 1, {macro}_WEIGHTS_BYTES, file) != {macro}_WEIGHTS_BYTES) {{
    fprintf(stderr, "cannot read the weights from %s\\n", path);
    return 1;
  }}
  fclose(file);"""
    arguments = [] if embedded else ["weights"]
    arguments += [f"input_{k}" for k in range(len(program.inputs))]
    arguments += [f"output_{k}" for k in range(len(program.outputs))]
    call = f"int code = {id}_run({', '.join([*arguments, 'workspace'])});"
    yield f"""\
  for (size_t k = 0; INPUTS[k].name; k++) fill(&INPUTS[k], k, INPUT_ARRAYS[k]);
{chr(10).join(wrapped(call, 2))}
  if (code != 0) {{
    fprintf(stderr, "code %d\\n", code);
    return 1;
  }}
  int wrong = 0;
  for (size_t k = 0; OUTPUTS[k].name; k++)
    for (size_t s = 0; s < EXPECTED[k].count; s++)
      wrong += differs(&OUTPUTS[k], OUTPUT_ARRAYS[k], &EXPECTED[k].samples[s]);
  puts(wrong ? "WRONG" : "correct");
  return wrong != 0;
}}
"""


def _samples(results: Sequence[Expected]) -> Iterator[str]:
    """What the outputs are expected to hold."""
    for k, samples in enumerate(results):
        rows = ", ".join(f"{{{place}, {literal(value)}}}" for place, value in samples)
        yield from wrapped(f"static const sample EXPECTED_{k}[] = {{{rows or '{0, 0}'}}};", 0)
    columns = ", ".join(f"{{EXPECTED_{k}, {len(samples)}}}" for k, samples in enumerate(results))
    yield from wrapped(f"static const expected EXPECTED[] = {{{columns or '{NULL, 0}'}}};", 0)
    yield ""


def _row(tensor: Tensor) -> str:
    name, dtype = string(tensor.name), string(tensor.dtype)
    return f"{{{name}, {dtype}, {tensor.bytes}, {tensor.element}}}"


def cmake_lists(program: Program, embedded: bool, openmp: bool) -> str:
    """``CMakeLists.txt``: a library, and by itself the example as a test."""
    id = program.id
    sources = [f"{id}.c"] + ([f"{id}_weights.c"] if embedded else [])
    threads = f"""\
find_package(OpenMP COMPONENTS C)
if(OpenMP_C_FOUND)
  target_link_libraries({id} PUBLIC OpenMP::OpenMP_C)
endif()
"""
    return f"""\
cmake_minimum_required(VERSION 3.13)
project({id} C)

add_library({id} STATIC {" ".join(sources)})
set_target_properties({id} PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON)
target_include_directories({id} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
# At -O3 gcc unrolls short rows before it looks for vectors.
target_compile_options({id} PRIVATE
  "$<$<AND:$<CONFIG:Release>,$<C_COMPILER_ID:GNU>>:-O2;-ftree-vectorize>")
if(UNIX)
  target_link_libraries({id} PUBLIC m)
endif()
{threads if openmp else ""}
if(CMAKE_PROJECT_NAME STREQUAL PROJECT_NAME)
  enable_testing()
  add_executable({id}_main main.c)
  set_target_properties({id}_main PROPERTIES C_STANDARD 11)
  target_link_libraries({id}_main PRIVATE {id})
  add_test(NAME main.c COMMAND {id}_main WORKING_DIRECTORY ${{CMAKE_CURRENT_SOURCE_DIR}})
endif()
"""
