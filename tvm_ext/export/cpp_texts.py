"""The C++ files of a package: one header with a class ``Session``, and its example."""

from __future__ import annotations

from collections.abc import Sequence

from .._version import __version__
from .interface import Interface, Tensor

__all__ = ["example", "header"]


def header(model: Interface) -> str:
    """``<id>.hxx``: the C interface as a class."""
    id, macro = model.id, model.macro
    weights = _weights(model)
    into = ", ".join([*_pointers(model.inputs, "const "), *_pointers(model.outputs, "", "out_")])
    return f"""\
// {id}: a model as a C++17 class, compiled by tvm_ext {__version__}. Link with lib{id}.
//
//   {id}::Session session;
//   auto {"result" if len(model.outputs) == 1 else "results"} = session.infer({_names(model)});
#ifndef {macro}_HXX
#define {macro}_HXX

#include "{id}.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace {id} {{

// What the C interface reports by a status.
class Error : public std::runtime_error {{
 public:
  Error(tvmx_status status, const std::string &text) : std::runtime_error(text), status(status) {{}}
  const tvmx_status status;
}};

struct Tensor {{
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::size_t bytes;
}};
{_results(model)}
// A session is for one thread at a time; copies share the weights and may run beside it.
class Session {{
 public:
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
  {_result_type(model)} infer({", ".join(_pointers(model.inputs, "const "))}) {{
{_infer(model)}
  }}

  // The same into the caller's memory: nothing is allocated after the first run.
  void run({into}) {{
    reserve();
    const tvmx_input tvmx_in[] = {{{_buffers(model.inputs, "")}}};
    const tvmx_output tvmx_out[] = {{{_buffers(model.outputs, "out_")}}};
    check({id}_run(model_.get(), tvmx_in, {macro}_INPUTS, tvmx_out, {macro}_OUTPUTS,
        workspace_.get(), bytes_));
  }}

  static std::vector<Tensor> inputs() {{ return tensors({id}_inputs); }}
  static std::vector<Tensor> outputs() {{ return tensors({id}_outputs); }}
  static std::vector<Tensor> initializers() {{ return tensors({id}_initializers); }}

 private:
  struct Free {{
    void operator()(void *memory) const {{ ::operator delete(memory, alignment()); }}
  }};

  static std::align_val_t alignment() {{ return std::align_val_t({macro}_WORKSPACE_ALIGNMENT); }}

  static void check(tvmx_status status) {{
    if (status != TVMX_OK) throw Error(status, tvmx_error());
  }}

  static tvmx_model *create(const char *weights) {{
    tvmx_model *model = nullptr;
    check({id}_create(&model, weights));
    return model;
  }}

  static std::vector<Tensor> tensors(const tvmx_tensor *(*get)(std::size_t *)) {{
    std::size_t count = 0;
    const tvmx_tensor *all = get(&count);
    std::vector<Tensor> result;
    for (std::size_t k = 0; k < count; k++) {{
      const tvmx_tensor &t = all[k];
      result.push_back({{t.name, t.dtype, {{t.shape, t.shape + t.rank}}, t.bytes}});
    }}
    return result;
  }}

  // More threads need more workspace.
  void reserve() {{
    const std::size_t bytes = {id}_workspace_bytes();
    if (workspace_ && bytes <= bytes_) return;
    workspace_.reset(::operator new(bytes, alignment()));
    bytes_ = bytes;
  }}

  std::shared_ptr<tvmx_model> model_;
  std::unique_ptr<void, Free> workspace_;
  std::size_t bytes_ = 0;
}};

}}  // namespace {id}
#endif
"""


def _weights(model: Interface) -> str:
    return "nullptr" if model.embedded else f'"{model.id}.bin"'


def _pointers(tensors: Sequence[Tensor], const: str, prefix: str = "") -> list[str]:
    return [f"{const}{_type(tensor)} *{prefix}{tensor.id}" for tensor in tensors]


def _type(tensor: Tensor) -> str:
    return tensor.c_type if tensor.c_type in ("float", "double") else f"std::{tensor.c_type}"


def _names(model: Interface) -> str:
    return ", ".join(tensor.id for tensor in model.inputs)


def _buffers(tensors: Sequence[Tensor], prefix: str) -> str:
    """Initializers of the C buffers; C++ has no empty arrays."""
    rows = [f"{{{prefix}{tensor.id}, {tensor.bytes}}}" for tensor in tensors]
    return ", ".join(rows) or "{nullptr, 0}"


def _results(model: Interface) -> str:
    """The struct of the outputs, where there are several."""
    if len(model.outputs) == 1:
        return ""
    fields = "".join(f"  std::vector<{_type(t)}> {t.id};\n" for t in model.outputs)
    return f"\nstruct Results {{\n{fields}}};\n"


def _result_type(model: Interface) -> str:
    return f"std::vector<{_type(model.outputs[0])}>" if len(model.outputs) == 1 else "Results"


def _infer(model: Interface) -> str:
    sizes = [tensor.bytes // tensor.element for tensor in model.outputs]
    if len(model.outputs) == 1:
        made = f"    {_result_type(model)} tvmx_results({sizes[0]});"
        places = ["tvmx_results.data()"]
    else:
        made = "    Results tvmx_results;"
        fields = [f"tvmx_results.{tensor.id}" for tensor in model.outputs]
        made += "".join(f"\n    {f}.resize({s});" for f, s in zip(fields, sizes, strict=True))
        places = [f"{field}.data()" for field in fields]
    arguments = ", ".join([*(tensor.id for tensor in model.inputs), *places])
    return f"{made}\n    run({arguments});\n    return tvmx_results;"


def example(model: Interface) -> str:
    """``session.cpp``: the class answers what the C interface does."""
    id, macro = model.id, model.macro
    inputs = "".join(
        f"  std::vector<{_type(t)}> in_{k}({max(1, t.bytes // t.element)}, 1);\n"
        for k, t in enumerate(model.inputs)
    )
    given = ", ".join(f"in_{k}.data()" for k in range(len(model.inputs)))
    single = len(model.outputs) == 1
    weights = _weights(model)
    answers = ["results" if single else f"results.{tensor.id}" for tensor in model.outputs]
    wanted = "".join(
        f"  std::vector<{_type(t)}> out_{k}({max(1, t.bytes // t.element)});\n"
        for k, t in enumerate(model.outputs)
    )
    pointers = ", ".join(
        [given] * bool(given) + [f"out_{k}.data()" for k in range(len(model.outputs))]
    )
    checks = "".join(
        f"  if (std::memcmp({answer}.data(), out_{k}.data(), {tensor.bytes})) return 1;\n"
        for k, (answer, tensor) in enumerate(zip(answers, model.outputs, strict=True))
    )
    return f"""\
// A session and its copy answer the same; inputs are all ones.
#include "{id}.hxx"

#include <cstring>
#include <iostream>

static_assert({macro}_INPUTS == {len(model.inputs)}, "the header belongs to this model");

int main(int argc, char **argv) try {{
  {id}::Session session(argc > 1 ? argv[1] : {weights});
  for (const auto &tensor : session.inputs())
    std::cout << tensor.name << " " << tensor.dtype << "\\n";
{inputs}{wanted}  auto results = session.infer({given});
  {id}::Session copy = session;
  copy.run({pointers});
{checks}  std::cout << "correct\\n";
  return 0;
}} catch (const {id}::Error &error) {{
  std::cerr << error.what() << "\\n";
  return 1;
}}
"""
