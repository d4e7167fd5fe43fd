"""What a C project needs to find the package: CMake, pkg-config."""

from .._version import __version__
from .interface import Interface

__all__ = ["cmake_lists", "pkg_config"]


def cmake_lists(model: Interface, sources: dict[str, str]) -> str:
    """``CMakeLists.txt``: a target to link with, and by itself the examples as tests.

    ``sources`` gives each example's language.
    """
    threads = "" if model.single_thread else _THREADS
    links = "m" if model.single_thread else '"m;Threads::Threads"'
    languages = " ".join(dict.fromkeys(["C", *sources.values()]))
    examples = "\n".join(
        f"""\
  add_executable({model.id}_{file.partition(".")[0]} {file})
  target_link_libraries({model.id}_{file.partition(".")[0]} PRIVATE {model.id})
  add_test(NAME {file} COMMAND {model.id}_{file.partition(".")[0]}
           WORKING_DIRECTORY ${{CMAKE_CURRENT_SOURCE_DIR}})"""
        for file in sources
    )
    return f"""\
cmake_minimum_required(VERSION 3.13)
project({model.id} {languages})
{threads}
add_library({model.id} STATIC IMPORTED GLOBAL)
set_target_properties({model.id} PROPERTIES
  IMPORTED_LOCATION ${{CMAKE_CURRENT_SOURCE_DIR}}/lib{model.id}.a
  INTERFACE_INCLUDE_DIRECTORIES ${{CMAKE_CURRENT_SOURCE_DIR}}
  INTERFACE_LINK_LIBRARIES {links})

if(CMAKE_PROJECT_NAME STREQUAL PROJECT_NAME)
  set(CMAKE_C_STANDARD 11)
  set(CMAKE_CXX_STANDARD 17)
  enable_testing()
{examples}
endif()
"""


_THREADS = """\
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
"""


def pkg_config(model: Interface) -> str:
    """``<id>.pc``; the package may be moved."""
    return f"""\
prefix=${{pcfiledir}}
Name: {model.id}
Description: a model compiled by tvm_ext
Version: {__version__}
Cflags: -I${{prefix}}
Libs: -L${{prefix}} -l{model.id}
Libs.private: -lm{"" if model.single_thread else " -lpthread"}
"""
