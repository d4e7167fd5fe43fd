"""Packages with several sizes of symbolic dims: chosen at each run, constants shared."""

import shutil

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import tvm_ext
from tests.export.programs import CXX, compiled, ran
from tvm_ext.cli import main
from tvm_ext.errors import ModelError, OptionError
from tvm_ext.export.check import run_example
from tvm_ext.export.sizes import choices

# Softmax and mean see all of `length`: what is padded to another size answers otherwise.
NET = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
net (float[batch, length, 6] x) => (float[batch, length, 40] y, float[batch, 1, 40] m) {
  shape = Constant<value_ints=[6, 40]>()
  w = ConstantOfShape<value: tensor = float[1] {0.25}>(shape)
  p = MatMul(x, w)
  y = Softmax<axis=1>(p)
  m = ReduceMean<axes=[1]>(p)
}""")
SIZES = [(1, 4), (3, 4), (3, 9)]  # of batch and length


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sizes") / "package"
    sizes = [{"batch": batch, "length": length} for batch, length in SIZES]
    return tvm_ext.export(NET, folder, "c++", name="net", weights="file", sizes=sizes)


MAIN = r"""
#include "net.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(int condition, const char *what) {
  if (!condition) {
    printf("wrong: %s (%s)\n", what, tvmx_error());
    exit(1);
  }
}

int main(int argc, char **argv) {
  tvmx_model *model;
  expect(net_create(&model, argc > 1 ? argv[1] : NULL) == TVMX_OK, "create");
  size_t bytes = net_workspace_bytes(NULL);
  for (int k = 0; k < NET_SIZES; k++)
    expect(net_workspace_bytes(&net_all_sizes[k]) <= bytes, "the most of all");
  char *workspace = aligned_alloc(64, bytes / 64 * 64 + 64);
  static float x[3 * 9 * 6], y[3 * 9 * 40], m[3 * 40];
  for (size_t k = 0; k < sizeof x / sizeof *x; k++) x[k] = (float)(k % 23) / 8 - 1;

  for (int k = NET_SIZES; k-- > 0;) {
    net_sizes sizes = net_all_sizes[k];
    size_t rows = (size_t)(sizes.batch * sizes.length);
    tvmx_input in = {x, rows * 6 * 4};
    tvmx_output out[] = {{y, rows * 40 * 4}, {m, (size_t)sizes.batch * 40 * 4}};
    expect(net_outputs(&sizes, NULL)[1].shape[0] == sizes.batch, "metadata");
    expect(net_run(model, &sizes, &in, 1, out, 2, workspace, bytes) == TVMX_OK, "run");
    printf("%d %d", (int)sizes.batch, (int)sizes.length);
    for (size_t i = 0; i < rows * 40; i++) printf(" %.7g", y[i]);
    for (size_t i = 0; i < (size_t)sizes.batch * 40; i++) printf(" %.7g", m[i]);
    puts("");
    in.bytes += 4;
    expect(net_run(model, &sizes, &in, 1, out, 2, workspace, bytes) == TVMX_WRONG_SIZE, "size");
  }

  net_sizes none = {.batch = 1, .length = 9};
  tvmx_input in = {x, 9 * 6 * 4};
  tvmx_output out[] = {{y, 9 * 40 * 4}, {m, 40 * 4}};
  expect(net_run(model, &none, &in, 1, out, 2, workspace, bytes) == TVMX_NO_SUCH_SIZES, "none");
  expect(!strcmp(tvmx_error(), "net: no code for batch = 1, length = 9, only for batch = 1, "
                               "length = 4; batch = 3, length = 4; batch = 3, length = 9"),
         "the sizes there are");
  size_t count = 7;
  expect(!net_inputs(&none, &count) && count == 0, "no tensors");
  expect(net_workspace_bytes(&none) == 0, "no workspace");
  expect(net_run(model, NULL, &in, 1, out, 2, workspace, bytes) == TVMX_NULL_ARGUMENT, "NULL");
  expect(!net_inputs(NULL, NULL), "NULL");
  free(workspace);
  net_destroy(model);
  return 0;
}
"""


@pytest.mark.parametrize("sanitizer", ["", "-fsanitize=address,undefined"])
def test_each_size_answers_as_the_reference(package, sanitizer):
    program = compiled(package, [MAIN], *sanitizer.split())
    lines = ran(program, package, "net.bin").splitlines()
    reference = ReferenceEvaluator(NET)
    assert [tuple(map(int, line.split()[:2])) for line in lines] == SIZES[::-1]
    for line, (batch, length) in zip(lines, SIZES[::-1], strict=True):
        x = (np.arange(batch * length * 6) % 23 / 8 - 1).reshape(batch, length, 6)
        y, m = reference.run(None, {"x": x.astype("float32")})
        np.testing.assert_allclose(
            np.array(line.split()[2:], float), np.concatenate([y.ravel(), m.ravel()]), 2e-5
        )


def test_the_examples_check_every_size(package):
    run_example(package)
    text = ran(compiled(package, ["main.c"]), package)
    assert "batch = 3, length = 9:\ny  float32[3, 9, 40]" in text
    if shutil.which("g++"):
        program = compiled(package, ["session.cpp"], language=CXX)
        assert ran(program, package).count("x float32") == len(SIZES)


CLASS = r"""
#include "net.hxx"
#include <cstdio>
#include <cstring>
int main() {
  net::Session session;
  std::vector<float> x(3 * 9 * 6, 0.5f);
  if (net::Session::all_sizes().size() != 3) return 1;
  if (session.infer({3, 9}, x.data()).y.size() != 3 * 9 * 40) return 2;
  if (session.infer({1, 4}, x.data()).m.size() != 40) return 3;
  if (net::Session::outputs({3, 4})[0].shape[1] != 4) return 4;
  try {
    session.infer({2, 2}, x.data());
    return 5;
  } catch (const net::Error &error) {
    if (error.status != TVMX_NO_SUCH_SIZES || !std::strstr(error.what(), "batch = 2")) return 6;
  }
  return 0;
}
"""


def test_a_session_takes_the_sizes_at_each_call(package):
    if not shutil.which("g++"):
        pytest.skip("needs g++")
    sanitizer = "-fsanitize=address,undefined"
    ran(compiled(package, [CLASS], sanitizer, language=CXX), package)


def test_equal_constants_are_there_once(tmp_path):
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    big (float[n, 3000] x) => (float[n, 3000] y) { y = Add(x, w) }""")
    w = np.random.default_rng(0).standard_normal(3000).astype("float32")
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    folder = tvm_ext.export(model, tmp_path / "p", sizes={"n": [1, 2, 5]}, weights="file")
    assert (folder / "model.bin").stat().st_size < 1.1 * w.nbytes
    run_example(folder)


def test_lists_are_combined():
    combined = [{"a": 1, "b": 3}, {"a": 1, "b": 4}, {"a": 2, "b": 3}, {"a": 2, "b": 4}]
    assert choices({"a": [1, 2], "b": (3, 4)}) == combined
    assert choices({"a": 1}) == [{"a": 1}] and choices(None) == [{}]


@pytest.mark.parametrize(
    "sizes",
    [
        *({}, [], [{}], 5, {"batch": []}, {"batch": [1, 1]}, {"batch": [0]}),
        *({"batch": ["x"]}, {"batch": 1.5}, [{"batch": 1}, {"length": 1}]),
    ],
    ids=str,
)
def test_wrong_sizes_are_refused(tmp_path, sizes):
    with pytest.raises(OptionError, match=r"sizes (are|map)"):
        tvm_ext.export(NET, tmp_path / "p", sizes=sizes)


def test_dims_that_are_not_there_or_stay_symbolic(tmp_path):
    with pytest.raises(ModelError, match="no symbolic dim 'width'"):
        tvm_ext.export(NET, tmp_path / "p", sizes={"batch": [1, 2], "width": [3]})
    with pytest.raises(OptionError, match=r"one size of each .* or several by sizes="):
        tvm_ext.export(NET, tmp_path / "p", sizes={"batch": [1, 2]})
    built = tvm_ext.convert_and_build(NET, "llvm", shapes={"batch": 1, "length": 2})
    with pytest.raises(OptionError, match=r"built already: no \['sizes'\]"):
        tvm_ext.export(built, tmp_path / "p", sizes={"batch": [1, 2]})


def test_the_command(tmp_path, capsys):
    onnx.save(NET, tmp_path / "net.onnx")
    command = ["export", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "out")]
    assert main([*command, "--sizes", "batch=1,2", "--sizes", "length=5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": arena")[0] for line in lines[:2]] == [
        "batch=1,length=5",
        "batch=2,length=5",
    ]
    assert "#define NET_SIZES 2\n" in (tmp_path / "out" / "net.h").read_text()
    run_example(tmp_path / "out")
