"""The C files of a package: header, source behind it, example."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .._version import __version__
from ..executors.emit import ENTRY, ENTRY_PARAMETERS
from .example import Expected
from .interface import Interface, Tensor

__all__ = ["example", "header", "source", "weights_assembly"]

# What compilers know by these names; the rest of LLVM's features comes along on real CPUs.
_CHECKED = """
    sse3 ssse3 sse4.1 sse4.2 popcnt avx avx2 fma bmi bmi2 avx512f avx512cd avx512bw avx512dq
    avx512vl
""".split()


def header(model: Interface) -> str:
    """``<id>.h``: the documented interface."""
    name, id, macro = _comment(model.name), model.id, model.macro
    where = "embedded" if model.embedded else f"in {id}.bin"
    return f"""\
/* {name}, compiled by tvm_ext {__version__} for {model.triple}.
 *
 * Inputs:
{_rows(model.inputs)}
 * Outputs:
{_rows(model.outputs)}
 * Weights: {model.checksum[0]} bytes, {where}.
 *
 *   tvmx_model *model;
 *   if ({id}_create(&model, {_weights_argument(model)}) != TVMX_OK) puts(tvmx_error());
 *   size_t bytes = {id}_workspace_bytes();
 *   void *workspace = aligned_alloc({macro}_WORKSPACE_ALIGNMENT, bytes);
 *   {id}_run(model, inputs, {macro}_INPUTS, outputs, {macro}_OUTPUTS, workspace, bytes);
 *   {id}_destroy(model);
 */
#ifndef {macro}_H
#define {macro}_H

#include "tvmx_model.h"

#define {macro}_VERSION "{__version__}"

#define {macro}_INPUTS {len(model.inputs)}
{_indices(f"{macro}_INPUT", model.inputs)}
#define {macro}_OUTPUTS {len(model.outputs)}
{_indices(f"{macro}_OUTPUT", model.outputs)}
/* The workspace: activations, and scratch memory for each thread of tvmx_threads(). */
#define {macro}_ARENA_BYTES {model.arena_bytes}
#define {macro}_SCRATCH_BYTES {model.scratch_bytes}
#define {macro}_WORKSPACE_ALIGNMENT 64

#ifdef __cplusplus
extern "C" {{
#endif

/* Make the model ready. `weights` is the path of its file of weights; NULL where they are
 * embedded. A file is mapped, so that processes share it, and checked. */
tvmx_status {id}_create(tvmx_model **model, const char *weights);

/* NULL is allowed. No run may be under way. */
void {id}_destroy(tvmx_model *model);

/* What a run needs now; more after tvmx_set_threads() with more threads. */
size_t {id}_workspace_bytes(void);

/* Run on the caller's buffers, which must not overlap. Nothing is allocated. Threads may run the
 * same model at the same time, each with a workspace of its own. */
tvmx_status {id}_run(const tvmx_model *model, const tvmx_input *inputs, size_t input_count,
    const tvmx_output *outputs, size_t output_count, void *workspace, size_t workspace_bytes);

/* Names, shapes and dtypes; `count`, if not NULL, gets how many there are. Initializers are the
 * constants as the kernels read them, named after the ONNX nodes that do. */
const tvmx_tensor *{id}_inputs(size_t *count);
const tvmx_tensor *{id}_outputs(size_t *count);
const tvmx_tensor *{id}_initializers(size_t *count);
void {id}_print_inputs(void);
void {id}_print_outputs(void);
void {id}_print_initializers(void);

#ifdef __cplusplus
}}
#endif
#endif
"""


def _comment(text: str) -> str:
    """``text`` where it cannot end a comment or a line."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("?", " ?").rstrip("\\")


def _string(text: str) -> str:
    """A C string literal: what is not plain ASCII as UTF-8 in octal."""
    escaped = {ord("\\"): "\\\\", ord('"'): '\\"', ord("?"): "\\?"}
    plain = (escaped.get(b, chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in text.encode())
    return f'"{"".join(plain)}"'


def _rows(tensors: Sequence[Tensor]) -> str:
    rows = [f" *   {k}  {_comment(t.name)}  {t}  {t.bytes} bytes" for k, t in enumerate(tensors)]
    return "\n".join(rows) or " *   none"


def _indices(prefix: str, tensors: Sequence[Tensor]) -> str:
    rows = [f"#define {prefix}_{tensor.id.upper()} {k}" for k, tensor in enumerate(tensors)]
    return "".join(f"{row}\n" for row in rows)


def _weights_argument(model: Interface) -> str:
    return "NULL" if model.embedded else f'"{model.id}.bin"'


def source(model: Interface) -> str:
    """The C file behind the header: metadata, and what calls the runtime."""
    return "\n".join(_source(model))


def _source(model: Interface) -> Iterator[str]:
    id = model.id
    yield f'#include "{id}.h"\n'
    yield f"int {ENTRY}({ENTRY_PARAMETERS});"
    if model.embedded:
        yield "extern const unsigned char tvmx_weights[];"
    sides = {"inputs": model.inputs, "outputs": model.outputs, "initializers": model.constants}
    for side, tensors in sides.items():
        yield from _table(side, tensors)
    yield from _missing(model)
    bytes_, total, sums = model.checksum
    yield f"""
static const tvmx_program PROGRAM = {{
    {_string(model.name)},
    inputs, outputs, {len(model.inputs)}, {len(model.outputs)},
    {model.arena_bytes}, {model.scratch_bytes},
    {{UINT64_C({bytes_}), UINT64_C({total}), UINT64_C({sums})}},
    {"tvmx_weights" if model.embedded else "NULL"}, missing,
}};

tvmx_status {id}_create(tvmx_model **model, const char *weights) {{
  return tvmx_create(model, &PROGRAM, weights);
}}

void {id}_destroy(tvmx_model *model) {{ tvmx_destroy(model); }}

size_t {id}_workspace_bytes(void) {{ return tvmx_workspace_bytes(&PROGRAM); }}

tvmx_status {id}_run(const tvmx_model *model, const tvmx_input *inputs, size_t input_count,
    const tvmx_output *outputs, size_t output_count, void *workspace, size_t workspace_bytes) {{
  void *in[{max(1, len(model.inputs))}], *out[{max(1, len(model.outputs))}];
  tvmx_status status = tvmx_begin(&PROGRAM, model, inputs, input_count, in, outputs, output_count,
                                  out, workspace, workspace_bytes);
  if (status != TVMX_OK) return status;
  return tvmx_end(&PROGRAM, {ENTRY}(model->weights, workspace, in, out, NULL));
}}"""
    for side, tensors in sides.items():
        yield f"""
const tvmx_tensor *{id}_{side}(size_t *count) {{
  if (count) *count = {len(tensors)};
  return {side};
}}

void {id}_print_{side}(void) {{ tvmx_print_tensors({side}, {len(tensors)}); }}"""
    yield ""


def _table(side: str, tensors: Sequence[Tensor]) -> Iterator[str]:
    """The metadata of one side; C has no empty arrays."""
    rows = []
    for k, tensor in enumerate(tensors):
        shape = "NULL"
        if tensor.shape:
            shape = f"{side}_{k}"
            yield f"static const int64_t {shape}[] = {{{', '.join(map(str, tensor.shape))}}};"
        name, dtype = _string(tensor.name), _string(tensor.dtype)
        size = f"{len(tensor.shape)}, {shape}, {tensor.bytes}, {tensor.element}"
        rows.append(f"    {{{name}, {dtype}, {size}}},")
    yield f"static const tvmx_tensor {side}[] = {{"
    yield from rows or ['    {"", "", 0, NULL, 0, 1},']
    yield "};"


def _missing(model: Interface) -> Iterator[str]:
    """The function that names what the CPU lacks."""
    yield "\nstatic const char *missing(void) {"
    if model.triple.startswith("x86_64"):
        for feature in _CHECKED:
            if feature in model.features:
                yield f'  if (!__builtin_cpu_supports("{feature}")) return "{feature}";'
    yield "  return NULL;\n}"


def weights_assembly(file: str) -> str:
    """Assembly that puts the bytes of ``file`` under the name that the source uses."""
    return f"""\
    .section .rodata
    .balign 64
    .globl tvmx_weights
tvmx_weights:
    .incbin "{file}"
    .byte 0
    .section .note.GNU-stack,"",%progbits
"""


def example(model: Interface, results: Sequence[Expected]) -> str:
    """``main.c``: runs the model on the input that ``results`` were computed from."""
    return "\n".join([_EXAMPLE_HEAD.replace("MODEL", model.id), *_example(model, results)])


def _example(model: Interface, results: Sequence[Expected]) -> Iterator[str]:
    id, macro = model.id, model.macro
    for k, samples in enumerate(results):
        rows = ", ".join(f"{{{place}, {_number(value)}}}" for place, value in samples)
        yield f"static const sample EXPECTED_{k}[] = {{{rows or '{0, 0}'}}};"
    columns = ", ".join(f"{{EXPECTED_{k}, {len(samples)}}}" for k, samples in enumerate(results))
    yield f"""\
static const struct {{
  const sample *samples;
  size_t count;
}} EXPECTED[] = {{{columns or "{NULL, 0}"}}};

int main(int argc, char **argv) {{
  tvmx_model *model;
  if ({id}_create(&model, argc > 1 ? argv[1] : {_weights_argument(model)}) != TVMX_OK) {{
    fprintf(stderr, "%s\\n", tvmx_error());
    return 1;
  }}
  {id}_print_inputs();
  {id}_print_outputs();

  tvmx_input inputs[{macro}_INPUTS + 1];
  tvmx_output outputs[{macro}_OUTPUTS + 1];
  const tvmx_tensor *given = {id}_inputs(NULL), *made = {id}_outputs(NULL);
  for (size_t k = 0; k < {macro}_INPUTS; k++) {{
    void *data = allocate(given[k].bytes);
    fill(&given[k], k, data);
    inputs[k] = (tvmx_input){{data, given[k].bytes}};
  }}
  for (size_t k = 0; k < {macro}_OUTPUTS; k++)
    outputs[k] = (tvmx_output){{allocate(made[k].bytes), made[k].bytes}};

  size_t bytes = {id}_workspace_bytes();
  void *workspace = allocate(bytes);
  if ({id}_run(model, inputs, {macro}_INPUTS, outputs, {macro}_OUTPUTS, workspace, bytes) !=
      TVMX_OK) {{
    fprintf(stderr, "%s\\n", tvmx_error());
    return 1;
  }}
  int wrong = 0;
  for (size_t k = 0; k < {macro}_OUTPUTS; k++)
    for (size_t s = 0; s < EXPECTED[k].count; s++)
      wrong += differs(&made[k], outputs[k].data, &EXPECTED[k].samples[s]);

  for (size_t k = 0; k < {macro}_INPUTS; k++) free((void *)(uintptr_t)inputs[k].data);
  for (size_t k = 0; k < {macro}_OUTPUTS; k++) free(outputs[k].data);
  free(workspace);
  {id}_destroy(model);
  puts(wrong ? "WRONG" : "correct");
  return wrong != 0;
}}
"""


def _number(value: float) -> str:
    if np.isnan(value):
        return "NAN"
    if np.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return repr(value)


_EXAMPLE_HEAD = """\
/* Runs the model on pseudo-random input and compares with what it answered when it was exported.
 * The path of the file of weights, where there is one, may be given. */
#include "MODEL.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  size_t place; /* number of the element */
  double value;
} sample;

static void *allocate(size_t bytes) {
  void *memory = aligned_alloc(64, bytes / 64 * 64 + 64);
  if (!memory) exit(1);
  return memory;
}

/* The output function of splitmix64. */
static uint64_t mixed(uint64_t state) {
  uint64_t z = (state + 1) * UINT64_C(0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

/* Floats in [-1, 1), integers and bools 0 or 1. */
static void fill(const tvmx_tensor *tensor, size_t number, void *data) {
  const char *dtype = tensor->dtype;
  memset(data, 0, tensor->bytes);
  for (size_t k = 0; k < tensor->bytes / tensor->element; k++) {
    uint64_t bits = mixed(k + ((uint64_t)number << 32));
    unsigned char *place = (unsigned char *)data + k * tensor->element;
    uint64_t bit = bits >> 63;
    if (!strcmp(dtype, "float32")) {
      float value = (float)(bits >> 40) / 8388608.0f - 1.0f;
      memcpy(place, &value, sizeof value);
    } else if (!strcmp(dtype, "float64")) {
      double value = (double)(bits >> 40) / 8388608.0 - 1.0;
      memcpy(place, &value, sizeof value);
    } else if (!strcmp(dtype, "float16") || !strcmp(dtype, "bfloat16")) {
      uint16_t value = (uint16_t)(bit * (dtype[0] == 'f' ? 0x3C00 : 0x3F80));
      memcpy(place, &value, sizeof value);
    } else if (strncmp(dtype, "float", 5) != 0) {
      memcpy(place, &bit, tensor->element); /* little-endian */
    }
  }
}

static double element(const tvmx_tensor *tensor, const void *data, size_t place) {
  const char *dtype = tensor->dtype;
  if (!strcmp(dtype, "float32")) return ((const float *)data)[place];
  if (!strcmp(dtype, "float64")) return ((const double *)data)[place];
  int is_signed = dtype[0] == 'i';
  switch (tensor->element) {
    case 1: return is_signed ? ((const int8_t *)data)[place] : ((const uint8_t *)data)[place];
    case 2: return is_signed ? ((const int16_t *)data)[place] : ((const uint16_t *)data)[place];
  }
  int64_t wide = 0; /* little-endian */
  memcpy(&wide, (const char *)data + place * tensor->element, tensor->element);
  if (tensor->element == 4) return is_signed ? (double)(int32_t)wide : (double)(uint32_t)wide;
  return is_signed ? (double)wide : (double)(uint64_t)wide;
}

static int differs(const tvmx_tensor *tensor, const void *data, const sample *want) {
  double got = element(tensor, data, want->place);
  if (got == want->value || (isnan(got) && isnan(want->value))) return 0;
  if (fabs(got - want->value) <= 1e-4 * (1 + fabs(want->value))) return 0;
  fprintf(stderr, "%s, element %zu: %g, expected %g\\n", tensor->name, want->place, got,
          want->value);
  return 1;
}
"""
