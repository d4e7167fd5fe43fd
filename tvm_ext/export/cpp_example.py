"""``session.cpp`` of a package: the class answers what the C interface does."""

from __future__ import annotations

from .cpp_texts import type_of, weights_argument
from .interface import Interface

__all__ = ["example"]


def example(model: Interface) -> str:
    """``session.cpp``: a session and its copy answer the same, for all sizes."""
    id = model.id
    loop = f"for (const auto &sizes : {id}::Session::all_sizes()) " if model.dims else ""
    return f"""\
// A session and its copy answer the same; inputs are all ones.
#include "{id}.hxx"

#include <algorithm>
#include <cstring>
#include <iostream>

static_assert({model.macro}_INPUTS == {len(model.inputs)}, "the header belongs to this model");

// At least one: data() of an empty vector may be null.
template <class T> static std::size_t elements(const {id}::Tensor &tensor) {{
  return std::max<std::size_t>(1, tensor.bytes / sizeof(T));
}}

{_agrees(model)}
static int run(int argc, char **argv) {{
  {id}::Session session(argc > 1 ? argv[1] : {weights_argument(model)});
  {loop}if (!agrees(session{", sizes" if model.dims else ""})) return 1;
  std::cout << "correct\\n";
  return 0;
}}

#ifdef __cpp_exceptions
int main(int argc, char **argv) try {{
  return run(argc, argv);
}} catch (const {id}::Error &error) {{
  std::cerr << error.what() << "\\n";
  return 1;
}}
#else
int main(int argc, char **argv) {{ return run(argc, argv); }}
#endif
"""


def _agrees(model: Interface) -> str:
    """The function that compares the two."""
    first, sizes = (["sizes"], "sizes") if model.dims else ([], "")
    inputs = "".join(
        f"  std::vector<{type_of(t)}> in_{k}(elements<{type_of(t)}>(given[{k}]), 1);\n"
        for k, t in enumerate(model.inputs)
    )
    wanted = "".join(
        f"  std::vector<{type_of(t)}> out_{k}(elements<{type_of(t)}>(made[{k}]));\n"
        for k, t in enumerate(model.outputs)
    )
    given = [*first, *(f"in_{k}.data()" for k in range(len(model.inputs)))]
    pointers = [*given, *(f"out_{k}.data()" for k in range(len(model.outputs)))]
    single = len(model.outputs) == 1
    answers = ["results" if single else f"results.{tensor.id}" for tensor in model.outputs]
    checks = "".join(
        f"  if (std::memcmp({answer}.data(), out_{k}.data(), made[{k}].bytes)) return false;\n"
        for k, answer in enumerate(answers)
    )
    id = model.id
    choice = [f"const {id}::Sizes &sizes"] if model.dims else []
    return f"""\
static bool agrees({", ".join([f"{id}::Session session", *choice])}) {{
  const auto given = session.inputs({sizes}), made = session.outputs({sizes});
  for (const auto &tensor : given) std::cout << tensor.name << " " << tensor.dtype << "\\n";
{inputs}{wanted}  auto results = session.infer({", ".join(given)});
  {id}::Session copy = session;
  copy.run({", ".join(pointers)});
{checks}  return true;
}}
"""
