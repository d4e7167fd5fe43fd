"""``main.c`` of a package: runs the model and checks what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .c_texts import weights_argument
from .example import Expected
from .interface import Interface

__all__ = ["FUNCTIONS", "example", "literal"]


def example(model: Interface, results: Sequence[Sequence[Expected]]) -> str:
    """``main.c``: runs each variant on the input that its ``results`` were computed from."""
    head = _EXAMPLE_HEAD.replace("MODEL", model.id)
    return "\n".join([head, FUNCTIONS, *_example(model, results)])


def _example(model: Interface, results: Sequence[Sequence[Expected]]) -> Iterator[str]:
    id, macro = model.id, model.macro
    yield from _expected(model, results)
    first = f"const {id}_sizes *sizes, " if model.dims else ""
    given, alone = ("sizes, ", "sizes") if model.dims else ("", "")
    yield f"""\

/* How many of the answers are wrong. */
static int run(const tvmx_model *model, {first}const expected *want) {{
  tvmx_input inputs[{macro}_INPUTS + 1];
  tvmx_output outputs[{macro}_OUTPUTS + 1];
  const tvmx_tensor *given = {id}_inputs({given}NULL), *made = {id}_outputs({given}NULL);
  for (size_t k = 0; k < {macro}_INPUTS; k++) {{
    void *data = allocate(given[k].bytes);
    fill(&given[k], k, data);
    inputs[k] = (tvmx_input){{data, given[k].bytes}};
  }}
  for (size_t k = 0; k < {macro}_OUTPUTS; k++)
    outputs[k] = (tvmx_output){{allocate(made[k].bytes), made[k].bytes}};

  size_t bytes = {id}_workspace_bytes({alone});
  void *workspace = allocate(bytes);
  int wrong = 0;
  if ({id}_run(model, {given}inputs, {macro}_INPUTS, outputs, {macro}_OUTPUTS, workspace, bytes) !=
      TVMX_OK) {{
    fprintf(stderr, "%s\\n", tvmx_error());
    wrong = 1;
  }}
  for (size_t k = 0; k < {macro}_OUTPUTS && !wrong; k++)
    for (size_t s = 0; s < want[k].count; s++)
      wrong += differs(&made[k], outputs[k].data, &want[k].samples[s]);

  for (size_t k = 0; k < {macro}_INPUTS; k++) free((void *)(uintptr_t)inputs[k].data);
  for (size_t k = 0; k < {macro}_OUTPUTS; k++) free(outputs[k].data);
  free(workspace);
  return wrong;
}}

int main(int argc, char **argv) {{
  tvmx_model *model;
  if ({id}_create(&model, argc > 1 ? argv[1] : {weights_argument(model)}) != TVMX_OK) {{
    fprintf(stderr, "%s\\n", tvmx_error());
    return 1;
  }}
  {id}_print_inputs();
  {id}_print_outputs();
  int wrong = 0;
  for (size_t k = 0; k < {len(model.variants)}; k++)
    wrong += run(model, {f"&{id}_all_sizes[k], " if model.dims else ""}EXPECTED[k]);
  {id}_destroy(model);
  puts(wrong ? "WRONG" : "correct");
  return wrong != 0;
}}
"""


def _expected(model: Interface, results: Sequence[Sequence[Expected]]) -> Iterator[str]:
    """The tables of samples: per variant, per output."""
    for number, variant in enumerate(results):
        for k, samples in enumerate(variant):
            rows = ", ".join(f"{{{place}, {literal(value)}}}" for place, value in samples)
            yield f"static const sample EXPECTED_{number}_{k}[] = {{{rows or '{0, 0}'}}};"
    yield f"static const expected EXPECTED[{len(results)}][{model.macro}_OUTPUTS + 1] = {{"
    for number, variant in enumerate(results):
        columns = (f"{{EXPECTED_{number}_{k}, {len(s)}}}" for k, s in enumerate(variant))
        yield f"    {{{', '.join(columns) or '{NULL, 0}'}}},"
    yield "};"


def literal(value: float) -> str:
    """``value`` in C."""
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

static void *allocate(size_t bytes) {
  void *memory = aligned_alloc(64, bytes / 64 * 64 + 64);
  if (!memory) exit(1);
  return memory;
}
"""

#: Makes inputs and checks outputs, which ``tvmx_tensor`` describes.
FUNCTIONS = """\
typedef struct {
  size_t place; /* number of the element */
  double value;
} sample;

typedef struct {
  const sample *samples;
  size_t count;
} expected;

/* The output function of splitmix64. */
static uint64_t mixed(uint64_t state) {
  uint64_t z = (state + 1) * UINT64_C(0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

/* Floats in [-1, 1), integers, bools and narrower floats 0 or 1, float8 0 or at most 1. */
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
    } else {
      if (!strcmp(dtype, "float16")) bit *= 0x3C00;
      if (!strcmp(dtype, "bfloat16")) bit *= 0x3F80;
      if (!strncmp(dtype, "float8", 6)) bit *= 0x38;
      memcpy(place, &bit, tensor->element); /* little-endian */
    }
  }
}

/* Floats that C lacks: the bits of their mantissa, and what their exponent counts from. */
typedef struct {
  const char *dtype;
  int mantissa, bias;
} narrow;

static const narrow NARROW[] = {
    {"float16", 10, 15},         {"bfloat16", 7, 127},       {"float8_e4m3fn", 3, 7},
    {"float8_e4m3fnuz", 3, 8},   {"float8_e5m2", 2, 15},     {"float8_e5m2fnuz", 2, 16},
};

static const narrow *narrow_of(const tvmx_tensor *tensor) {
  for (size_t k = 0; k < sizeof NARROW / sizeof *NARROW; k++)
    if (!strcmp(NARROW[k].dtype, tensor->dtype)) return &NARROW[k];
  return NULL;
}

static double value_of(const narrow *type, int bits, int width) {
  int unit = 1 << type->mantissa, magnitude = bits & ((1 << (width - 1)) - 1);
  int exponent = magnitude / unit, fraction = magnitude % unit;
  int least = 1 - type->bias - type->mantissa;
  double value = exponent ? ldexp(unit + fraction, exponent - 1 + least) : ldexp(fraction, least);
  return bits == magnitude ? value : -value;
}

static double element(const tvmx_tensor *tensor, const void *data, size_t place) {
  const char *dtype = tensor->dtype;
  if (!strcmp(dtype, "float32")) return ((const float *)data)[place];
  if (!strcmp(dtype, "float64")) return ((const double *)data)[place];
  const narrow *type = narrow_of(tensor);
  if (type && tensor->element == 1) return value_of(type, ((const uint8_t *)data)[place], 8);
  if (type) return value_of(type, ((const uint16_t *)data)[place], 16);
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
  const narrow *type = narrow_of(tensor);
  double bound = type ? ldexp(1, -type->mantissa) : 1e-4;
  if (fabs(got - want->value) <= bound * (1 + fabs(want->value))) return 0;
  fprintf(stderr, "%s, element %zu: %g, expected %g\\n", tensor->name, want->place, got,
          want->value);
  return 1;
}
"""
