"""The C files of a package: header, and the source behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .._version import __version__
from ..checks import parts
from ..executors.emit import entry_parameters
from ..executors.toolchain import is_wasm
from .interface import Interface, Tensor, Variant

__all__ = [
    "comment",
    "header",
    "marked",
    "source",
    "string",
    "weights_argument",
    "weights_assembly",
]


def header(model: Interface) -> str:
    """``<id>.h``: the documented interface."""
    macro = model.macro
    return f"""\
{_usage(model)}
#ifndef {macro}_H
#define {macro}_H

#include "tvmx_model.h"

#define {macro}_VERSION "{__version__}"

#define {macro}_INPUTS {len(model.inputs)}
{_indices(f"{macro}_INPUT", model.inputs)}
#define {macro}_OUTPUTS {len(model.outputs)}
{_indices(f"{macro}_OUTPUT", model.outputs)}
/* The workspace: activations, and scratch memory per thread of tvmx_threads(){_most(model)}. */
#define {macro}_ARENA_BYTES {max(v.arena_bytes for v in model.programs)}
#define {macro}_SCRATCH_BYTES {max(v.scratch_bytes for v in model.programs)}
#define {macro}_WORKSPACE_ALIGNMENT 64

#ifdef __cplusplus
extern "C" {{
#endif
{_sizes_type(model)}
{_declarations(model)}
#ifdef __cplusplus
}}
#endif
#endif
"""


def _usage(model: Interface) -> str:
    """What the model is, and how it is called."""
    id, macro, sizes = model.id, model.macro, "sizes, " if model.dims else ""
    where = "embedded" if model.embedded else f"in {id}.bin"
    return f"""\
/* {comment(model.name)}, compiled by tvm_ext {__version__} for {model.triple}.
 *
{_variants(model)}
 * Weights: {model.checksum[0]} bytes, {where}.
 *
 *   tvmx_model *model;
 *   if ({id}_create(&model, {weights_argument(model)}) != TVMX_OK) puts(tvmx_error());
{_example_sizes(model)} *   size_t bytes = {id}_workspace_bytes({sizes[:-2]});
 *   void *workspace = aligned_alloc({macro}_WORKSPACE_ALIGNMENT, bytes);
 *   {id}_run(model, {sizes}inputs, {macro}_INPUTS, outputs, {macro}_OUTPUTS, workspace, bytes);
 *   {id}_destroy(model);
 */"""


def _declarations(model: Interface) -> str:
    """The functions."""
    id = model.id
    first = f"const {id}_sizes *sizes, " if model.dims else ""
    return f"""\
/* Make the model ready. `weights` is the path of its file of weights; NULL where they are
 * embedded. A file is mapped, so that processes share it, and checked. */
tvmx_status {id}_create(tvmx_model **model, const char *weights);

/* NULL is allowed. No run may be under way. */
void {id}_destroy(tvmx_model *model);

/* What a run needs now; more after tvmx_set_threads() with more threads.{_workspace(model)} */
size_t {id}_workspace_bytes({first[:-2] or "void"});

/* Run on the caller's buffers, which must not overlap. Nothing is allocated. Threads may run the
 * same model at the same time, each with a workspace of its own. Where a run fails, what outputs
 * hold has no meaning. */
tvmx_status {id}_run(const tvmx_model *model, {first}const tvmx_input *inputs, size_t input_count,
    const tvmx_output *outputs, size_t output_count, void *workspace, size_t workspace_bytes);

/* Names, shapes and dtypes; `count`, if not NULL, gets how many there are. Initializers are the
 * constants as the kernels read them, named after the ONNX nodes that do. */
const tvmx_tensor *{id}_inputs({first}size_t *count);
const tvmx_tensor *{id}_outputs({first}size_t *count);
const tvmx_tensor *{id}_initializers({first}size_t *count);
void {id}_print_inputs(void);
void {id}_print_outputs(void);
void {id}_print_initializers(void);
"""


def _variants(model: Interface) -> str:
    """The inputs and outputs, for each choice of sizes."""
    lines = []
    for variant in model.variants:
        if model.dims:
            lines.append(f" * With {_choice(model, variant)}:")
        lines += [" * Inputs:", _rows(variant.inputs), " * Outputs:", _rows(variant.outputs)]
        arena, live = variant.arena_bytes, variant.live_bytes
        lines.append(f" * Arena: {arena} bytes, of which {live} are alive at one time.")
    return "\n".join(lines)


def _choice(model: Interface, variant: Variant) -> str:
    pairs = zip(model.dims, variant.sizes, strict=True)
    return comment(", ".join(f"{dim.name} = {size}" for dim, size in pairs))


def _example_sizes(model: Interface) -> str:
    if not model.dims:
        return ""
    members = ", ".join(
        f".{dim.id} = {size}" for dim, size in zip(model.dims, model.variants[0].sizes, strict=True)
    )
    return f" *   const {model.id}_sizes *sizes = &({model.id}_sizes){{{members}}};\n"


def _most(model: Interface) -> str:
    return "; the most of\n * all sizes" if model.dims else ""


def _workspace(model: Interface) -> str:
    return " For the most\n * of all sizes with NULL; 0 for sizes that are not there." * bool(
        model.dims
    )


def _sizes_type(model: Interface) -> str:
    """The struct by which callers choose; its members are the sizes in the order of the dims."""
    if not model.dims:
        return ""
    id, macro = model.id, model.macro
    members = "".join(f"  int64_t {dim.id};\n" for dim in model.dims)
    return f"""
/* The sizes of symbolic dims; a run with others than these ends with TVMX_NO_SUCH_SIZES. */
typedef struct {{
{members}}} {id}_sizes;

#define {macro}_SIZES {len(model.variants)}
extern const {id}_sizes {id}_all_sizes[{macro}_SIZES];
"""


def comment(text: str) -> str:
    """``text`` where it cannot end a comment or a line."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("?", " ?").rstrip("\\")


def string(text: str) -> str:
    """A C string literal: what is not plain ASCII as UTF-8 in octal."""
    escaped = {ord("\\"): "\\\\", ord('"'): '\\"', ord("?"): "\\?"}
    plain = (escaped.get(b, chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in text.encode())
    return f'"{"".join(plain)}"'


def _rows(tensors: Sequence[Tensor]) -> str:
    rows = [f" *   {k}  {comment(t.name)}  {t}  {t.bytes} bytes" for k, t in enumerate(tensors)]
    return "\n".join(rows) or " *   none"


def _indices(prefix: str, tensors: Sequence[Tensor]) -> str:
    rows = [f"#define {prefix}_{tensor.id.upper()} {k}" for k, tensor in enumerate(tensors)]
    return "".join(f"{row}\n" for row in rows)


def weights_argument(model: Interface) -> str:
    """What the examples give for the file of weights."""
    return "NULL" if model.embedded else f'"{model.id}.bin"'


def source(model: Interface) -> str:
    """The C file behind the header: metadata, and what calls the runtime."""
    return "\n".join(_source(model))


def _source(model: Interface) -> Iterator[str]:
    id = model.id
    yield f'#include "{id}.h"\n'
    if model.embedded:
        yield f"extern const unsigned char {model.weights_symbol}[];"
    for number, variant in enumerate(model.programs):
        yield f"int {variant.entry}({entry_parameters()});"
        for side in ("inputs", "outputs", "constants"):
            yield from _table(f"{side}_{number}", getattr(variant, side))
        yield f"static const char *const checks_{number}[] = {{"
        yield from (f"    {string(marked(text))}," for text in variant.checks)
        yield "    NULL};"
    yield from _all_sizes(model)
    yield from _levels(model)
    yield from _package(model)
    sizes = "(const int64_t *)sizes" if model.dims else "NULL"  # a struct of int64_t alone
    first = f"const {id}_sizes *sizes, " if model.dims else ""
    yield f"""
tvmx_status {id}_create(tvmx_model **model, const char *weights) {{
  return tvmx_create(model, &PACKAGE, weights);
}}

void {id}_destroy(tvmx_model *model) {{ tvmx_destroy(model); }}

size_t {id}_workspace_bytes({first[:-2] or "void"}) {{
  return tvmx_workspace_bytes(&PACKAGE, {sizes});
}}

tvmx_status {id}_run(const tvmx_model *model, {first}const tvmx_input *inputs, size_t input_count,
    const tvmx_output *outputs, size_t output_count, void *workspace, size_t workspace_bytes) {{
  void *in[{max(1, len(model.inputs))}], *out[{max(1, len(model.outputs))}];
  return tvmx_run(&PACKAGE, model, {sizes}, inputs, input_count, in, outputs, output_count, out,
                  workspace, workspace_bytes);
}}"""
    for side in ("inputs", "outputs", "initializers"):
        yield f"""
const tvmx_tensor *{id}_{side}({first}size_t *count) {{
  return tvmx_tensors(&PACKAGE, {sizes}, TVMX_{side.upper()}, count);
}}

void {id}_print_{side}(void) {{ tvmx_print(&PACKAGE, TVMX_{side.upper()}); }}"""
    yield ""


def _all_sizes(model: Interface) -> Iterator[str]:
    if model.dims:
        rows = ", ".join(f"{{{', '.join(map(str, v.sizes))}}}" for v in model.variants)
        yield f"\nconst {model.id}_sizes {model.id}_all_sizes[{model.macro}_SIZES] = {{{rows}}};"
        names = ", ".join(string(dim.name) for dim in model.dims)
        yield f"static const char *const DIMS[] = {{{names}}};"


def _levels(model: Interface) -> Iterator[str]:
    yield ""
    for number, level in enumerate(model.levels):
        needs = "".join(f"{string(feature)}, " for feature in level.features)
        yield f"static const char *const NEEDS_{number}[] = {{{needs}NULL}};"
    all_needs = ", ".join(f"NEEDS_{number}" for number in range(len(model.levels)))
    yield f"static const char *const *const NEEDS[] = {{{all_needs}}};"
    yield "static int level = -1;"


def _package(model: Interface) -> Iterator[str]:
    yield "\nstatic const tvmx_program PROGRAMS[] = {"
    for k, variant in enumerate(model.programs):
        place = k % len(model.variants)
        sizes = f"(const int64_t *)&{model.id}_all_sizes[{place}]" if model.dims else "NULL"
        yield f"    {{{sizes}, inputs_{k}, outputs_{k}, constants_{k}, {len(variant.constants)},"
        yield f"     {variant.arena_bytes}, {variant.scratch_bytes}, {variant.entry}, checks_{k}}},"
    bytes_, total, sums = model.checksum
    sides = len(model.inputs), len(model.outputs)
    counts = len(model.dims), len(model.levels), len(model.variants), *sides
    yield f"""}};

static const tvmx_package PACKAGE = {{
    TVMX_VERSION,
    {string(model.name)}, {"DIMS" if model.dims else "NULL"}, PROGRAMS,
    {", ".join(map(str, counts))},
    {{UINT64_C({bytes_}), UINT64_C({total}), UINT64_C({sums})}},
    {model.weights_symbol if model.embedded else "NULL"}, NEEDS, &level,
}};"""


def marked(text: str) -> str:
    """The text of a check in C, where \\1 and \\2 stand for the numbers given and wanted."""
    marks = {"given": "\1", "wanted": "\2", None: ""}
    return "".join(plain + marks[number] for plain, number in parts(text))


def _table(name: str, tensors: Sequence[Tensor]) -> Iterator[str]:
    """The metadata of some tensors; C has no empty arrays."""
    rows = []
    for k, tensor in enumerate(tensors):
        shape = "NULL"
        if tensor.shape:
            shape = f"{name}_{k}"
            yield f"static const int64_t {shape}[] = {{{', '.join(map(str, tensor.shape))}}};"
        label, dtype = string(tensor.name), string(tensor.dtype)
        size = f"{len(tensor.shape)}, {shape}, {tensor.bytes}, {tensor.element}"
        rows.append(f"    {{{label}, {dtype}, {size}}},")
    yield f"static const tvmx_tensor {name}[] = {{"
    yield from rows or ['    {"", "", 0, NULL, 0, 1},']
    yield "};"


def weights_assembly(model: Interface, file: str) -> str:
    """Assembly that puts the bytes of ``file`` under the name that the source uses."""
    name = model.weights_symbol
    wasm = is_wasm(model.triple)
    section = f'.rodata.{name},"",@' if wasm else ".rodata"
    size = f".size {name}, {model.checksum[0] + 1}"
    end = size if wasm else '.section .note.GNU-stack,"",%progbits'
    return f"""\
    .section {section}
    .balign 64
    .globl {name}
{name}:
    .incbin "{file}"
    .byte 0
    {end}
"""
