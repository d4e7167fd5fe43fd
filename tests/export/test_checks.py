"""Values that operators do not allow, in packages: a code and a sentence; the next run is right."""

import pytest
from onnx import parser

import tvm_ext
from tests.export.programs import CXX, C, compiled, ran

SANITIZED = "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
NET = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
net (float[n, 2] x, int64[3] i) => (float[3, 2] y)
{ r = Relu(x)  y = Gather<axis = 0>(r, i) }""")
NET.graph.node[1].name = '50% "of" {it}'  # hostile to formats and literals
TOLD = "Gather-13 '50%% \"of\" {it}' (opset 17): an index on axis 0 is %s, not -5..4"
RUNS = [0, "5", 0, "-6", "-9223372036854775808", 0]  # which index, if any, is wrong
MAIN = """
#include "net.h"
#include <stdio.h>
#include <string.h>

int main(void) {
  static const int64_t wrong[] = {0, 5, 0, -6, INT64_MIN, 0};
  float x[10], y[6];
  for (int k = 0; k < 10; k++) x[k] = (float)k;
  PREPARE
  for (int k = 0; k < 6; k++) {
    int64_t i[3] = {-5, wrong[k], 4};
    char text[200] = "";
    memset(y, 0, sizeof y);
    RUN
    puts(code ? text : y[0] == 0 && y[2] == 0 && y[3] == 1 && y[5] == 9 ? "right" : "WRONG");
  }
  END
  return 0;
}
"""
LIBRARY = """
    tvmx_input in[] = {{x, sizeof x}, {i, sizeof i}};
    tvmx_output out[] = {{y, sizeof y}};
    tvmx_status code = net_run(model, GIVEN in, 2, out, 1, workspace, sizeof workspace);
    if (code) strcpy(text, tvmx_error());
    if (code && code != TVMX_WRONG_VALUE) return 1;
"""
PREPARED = """
  tvmx_model *model;
  static _Alignas(64) unsigned char workspace[4096];
  if (net_create(&model, NULL) != TVMX_OK) return 2;
"""
SOURCE = """
    int code = net_run(x, i, y, workspace);
    if (code && code < NET_WRONG_VALUE) return 1;
    if (code) net_explain(code, workspace, text, sizeof text);
"""
EXPECTED = "".join(f"{TOLD % index}\n" if index else "right\n" for index in RUNS)


def program(prepare, run, end=""):
    return MAIN.replace("PREPARE", prepare).replace("RUN", run).replace("END", end)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_library_returns_a_status_and_tells(tmp_path, loaded):
    model = tvm_ext.convert_and_build(NET, "llvm", shapes={"n": 5})
    if loaded:
        model.save(tmp_path / "saved.so")
        model = tvm_ext.load(tmp_path / "saved.so")
    package = tvm_ext.export(model, tmp_path / "net", name="net")
    text = program(PREPARED, LIBRARY.replace("GIVEN ", ""), "net_destroy(model);")
    printed = ran(compiled(package, [text], *SANITIZED), package)
    assert printed == EXPECTED.replace("Gather", "net: Gather")


def test_each_of_several_sizes_has_its_own(tmp_path):
    package = tvm_ext.export(NET, tmp_path / "net", name="net", sizes={"n": [3, 5]})
    sizes = "  const net_sizes five = {.n = 5};\n"
    text = program(PREPARED + sizes, LIBRARY.replace("GIVEN", "&five,"), "net_destroy(model);")
    printed = ran(compiled(package, [text]), package)
    assert printed == EXPECTED.replace("Gather", "net: Gather")


def test_a_session_throws(tmp_path):
    package = tvm_ext.export(NET, tmp_path / "net", "c++", name="net", shapes={"n": 5})
    text = """
    #include "net.hxx"
    #include <cstdio>
    int main() {
      net::Session session;
      float x[10] = {};
      std::int64_t i[3] = {0, 5, 0};
      try {
        session.infer(x, i);
      } catch (const net::Error &error) {
        std::printf("%d %s\\n", error.status == TVMX_WRONG_VALUE, error.what());
      }
      i[1] = 4;
      std::printf("%zu\\n", session.infer(x, i).size());
    }
    """
    told = TOLD.replace("Gather", "net: Gather") % 5
    assert ran(compiled(package, [text], language=CXX), package) == f"1 {told}\n6\n"


def test_c_source_returns_a_code_that_it_explains(tmp_path):
    package = tvm_ext.export(NET, tmp_path / "net", "c-source", name="net", shapes={"n": 5})
    prepare = "  static _Alignas(8) unsigned char workspace[NET_WORKSPACE_BYTES];"
    sources = [program(prepare, SOURCE), "net.c", "net_weights.c"]
    assert (
        ran(compiled(package, sources, *SANITIZED, libraries=(), language=C), package) == EXPECTED
    )
