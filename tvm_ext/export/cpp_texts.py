"""The C++ file of a package: one header with a class ``Session``."""

from __future__ import annotations

from collections.abc import Sequence

from .._version import __version__
from .interface import Interface, Tensor

__all__ = ["header", "type_of", "weights_argument"]


def header(model: Interface) -> str:
    """``<id>.hxx``: the C interface as a class."""
    return f"""\
{_opening(model)}
namespace {model.id} {{

{_TYPES}{_results(model)}{_alias(model)}
// A session is for one thread at a time; copies share the weights and may run beside it.
class Session {{
 public:
{_public(model)}
 private:
{_private(model)}}};

}}  // namespace {model.id}
#endif
"""


def _opening(model: Interface) -> str:
    """How the class is used, and what it includes."""
    id, macro = model.id, model.macro
    return f"""\
// {id}: a model as a C++17 class, compiled by tvm_ext {__version__}. Link with lib{id}.
// Where exceptions are off (-fno-exceptions), what would throw prints its text and aborts.
//
//   {id}::Session session;
//   auto {_answer(model)} = session.infer({_example_call(model)});
#ifndef {macro}_HXX
#define {macro}_HXX

#include "{id}.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>
"""


_TYPES = """\
// What the C interface reports by a status.
class Error : public std::runtime_error {
 public:
  Error(tvmx_status status, const std::string &text) : std::runtime_error(text), status(status) {}
  const tvmx_status status;
};

struct Tensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::size_t bytes;
};
"""


def _public(model: Interface) -> str:
    """What callers see: sessions are made and copied, run, and describe the model."""
    id, macro, choice = model.id, model.macro, _choice(model)
    given = [*_sizes(model), *_pointers(model.inputs, "const ")]
    into = ", ".join([*given, *_pointers(model.outputs, "", "out_")])
    weights = weights_argument(model)
    return f"""\
  // Throws Error: no weights, weights of another model, a CPU that lacks instructions.
  explicit Session(const char *weights = {weights}) : model_(create(weights), {id}_destroy) {{}}
  Session(const Session &other) : model_(other.model_) {{}}
  Session(Session &&) = default;
  Session &operator=(Session other) {{
    model_.swap(other.model_);
    workspace_.swap(other.workspace_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }}

  // Dense tensors in, new vectors out; inputs()[k].bytes says how much is read.
  {_result_type(model)} infer({", ".join(given)}) {{
{_infer(model)}
  }}

  // The same into the caller's memory: nothing is allocated after the first run.
  void run({into}) {{
    const tvmx_tensor *const tvmx_given = {id}_inputs({choice}nullptr);
    const tvmx_tensor *const tvmx_made = {id}_outputs({choice}nullptr);
    if (!tvmx_given || !tvmx_made) check(TVMX_NO_SUCH_SIZES);
    const tvmx_input tvmx_in[] = {{{_buffers(model.inputs, "", "tvmx_given")}}};
    const tvmx_output tvmx_out[] = {{{_buffers(model.outputs, "out_", "tvmx_made")}}};
    reserve({choice[1:-2]});
    check({id}_run(model_.get(), {choice}tvmx_in, {macro}_INPUTS, tvmx_out, {macro}_OUTPUTS,
        workspace_.get(), bytes_));
  }}

{_metadata(model)}"""


def _private(model: Interface) -> str:
    """What the public functions are written with, and what a session holds."""
    id, macro = model.id, model.macro
    return f"""\
  struct Free {{
    void operator()(void *memory) const {{ ::operator delete(memory, alignment()); }}
  }};

  static std::align_val_t alignment() {{ return std::align_val_t({macro}_WORKSPACE_ALIGNMENT); }}

  static void check(tvmx_status status) {{
    if (status == TVMX_OK) return;
#ifdef __cpp_exceptions
    throw Error(status, tvmx_error());
#else
    std::fprintf(stderr, "%s\\n", tvmx_error());
    std::abort();
#endif
  }}

  static tvmx_model *create(const char *weights) {{
    tvmx_model *model = nullptr;
    check({id}_create(&model, weights));
    return model;
  }}

  static std::vector<Tensor> tensors(const tvmx_tensor *all, std::size_t count) {{
    std::vector<Tensor> result;
    for (std::size_t k = 0; k < count; k++) {{
      const tvmx_tensor &t = all[k];
      result.push_back({{t.name, t.dtype, {{t.shape, t.shape + t.rank}}, t.bytes}});
    }}
    return result;
  }}

  // More threads need more workspace.
  void reserve({", ".join(_sizes(model))}) {{
    const std::size_t bytes = {id}_workspace_bytes({_choice(model)[:-2]});
    if (workspace_ && bytes <= bytes_) return;
    workspace_.reset(::operator new(bytes, alignment()));
    bytes_ = bytes;
  }}

  std::shared_ptr<tvmx_model> model_;
  std::unique_ptr<void, Free> workspace_;
  std::size_t bytes_ = 0;
"""


def _answer(model: Interface) -> str:
    return "result" if len(model.outputs) == 1 else "results"


def weights_argument(model: Interface) -> str:
    """What a session is made with by default."""
    return "nullptr" if model.embedded else f'"{model.id}.bin"'


def _pointers(tensors: Sequence[Tensor], const: str, prefix: str = "") -> list[str]:
    return [f"{const}{type_of(tensor)} *{prefix}{tensor.id}" for tensor in tensors]


def type_of(tensor: Tensor) -> str:
    """The C++ type of an element."""
    return tensor.c_type if tensor.c_type in ("float", "double") else f"std::{tensor.c_type}"


def _example_call(model: Interface) -> str:
    sizes = ", ".join(map(str, model.variants[0].sizes))
    return ", ".join([f"{{{sizes}}}"] * bool(sizes) + [tensor.id for tensor in model.inputs])


def _sizes(model: Interface) -> list[str]:
    """The parameter by which callers choose."""
    return ["const Sizes &sizes"] if model.dims else []


def _choice(model: Interface) -> str:
    """The argument that passes it on to C, in front of others."""
    return "&sizes, " if model.dims else ""


def _alias(model: Interface) -> str:
    if not model.dims:
        return ""
    members = ", ".join(f".{dim.id}" for dim in model.dims)
    return (
        f"\n// Of the symbolic dims: {members}, in this order.\nusing Sizes = {model.id}_sizes;\n"
    )


def _metadata(model: Interface) -> str:
    """The functions that describe tensors, and list the sizes there are."""
    sizes, choice = ", ".join(_sizes(model)), _choice(model)
    functions = "".join(
        f"""\
  static std::vector<Tensor> {side}({sizes}) {{
    std::size_t count = 0;
    const tvmx_tensor *const all = {model.id}_{side}({choice}&count);
    if (!all) check(TVMX_NO_SUCH_SIZES);
    return tensors(all, count);
  }}
"""
        for side in ("inputs", "outputs", "initializers")
    )
    if not model.dims:
        return functions
    all_sizes = f"{model.id}_all_sizes"
    return (
        f"{functions}  static std::vector<Sizes> all_sizes() {{\n"
        f"    return {{{all_sizes}, {all_sizes} + {model.macro}_SIZES}};\n  }}\n"
    )


def _buffers(tensors: Sequence[Tensor], prefix: str, known: str) -> str:
    """Initializers of the C buffers; C++ has no empty arrays."""
    rows = [f"{{{prefix}{tensor.id}, {known}[{k}].bytes}}" for k, tensor in enumerate(tensors)]
    return ", ".join(rows) or "{nullptr, 0}"


def _results(model: Interface) -> str:
    """The struct of the outputs, where there are several."""
    if len(model.outputs) == 1:
        return ""
    fields = "".join(f"  std::vector<{type_of(t)}> {t.id};\n" for t in model.outputs)
    return f"\nstruct Results {{\n{fields}}};\n"


def _result_type(model: Interface) -> str:
    return f"std::vector<{type_of(model.outputs[0])}>" if len(model.outputs) == 1 else "Results"


def _infer(model: Interface) -> str:
    single = len(model.outputs) == 1
    fields = ["tvmx_results" if single else f"tvmx_results.{t.id}" for t in model.outputs]
    first = ["sizes"] if model.dims else []
    lines = [
        f"{_result_type(model)} tvmx_results;",
        f"const tvmx_tensor *const tvmx_made = {model.id}_outputs({_choice(model)}nullptr);",
        "if (!tvmx_made) check(TVMX_NO_SUCH_SIZES);",
    ]
    lines += [
        f"{field}.resize(tvmx_made[{k}].bytes / tvmx_made[{k}].element);"
        for k, field in enumerate(fields)
    ]
    places = [f"{field}.data()" for field in fields]
    lines.append(f"run({', '.join([*first, *(t.id for t in model.inputs), *places])});")
    return "\n".join(f"    {line}" for line in [*lines, "return tvmx_results;"])
