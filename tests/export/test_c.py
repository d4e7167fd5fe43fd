"""C packages: they compile without a warning, run, and refuse what is wrong."""

import pickle
import re
import shutil
import signal
import subprocess

import numpy as np
import onnx
import pytest
from onnx import parser

import tvm_ext
from tests.export.programs import CXX, compiled, ran
from tvm_ext import convert_and_build
from tvm_ext.cli import main
from tvm_ext.errors import BuildError, OptionError, OutputPathError
from tvm_ext.export import libraries
from tvm_ext.export.check import run_example
from tvm_ext.export.identifiers import identifier, identifiers

# Convolutions with padding need scratch memory, those of groups in each thread; the pooled sum is a
# reduction; two inputs and outputs.
NET = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
net (float[2, 5, 37, 41] x, int64[2] k) => (float[2, 24, 37, 41] y, float[2, 24] z)
<float[1] one = {1}> {
  shape = Constant<value_ints=[24, 5, 3, 3]>()
  w = ConstantOfShape<value=float[1] {0.01}>(shape)
  dense = Conv<pads=[1, 1, 1, 1]>(x, w)
  each = Constant<value_ints=[24, 24, 3, 3]>()
  v = ConstantOfShape<value=float[1] {0.1}>(each)
  c = Conv<pads=[1, 1, 1, 1]>(dense, v)
  y = Sigmoid(c)
  p = GlobalAveragePool(c)
  f = Flatten(p)
  ax = Constant<value_ints=[1]>()
  kf = Cast<to=1>(k)
  ku = Unsqueeze(kf, ax)
  z = Add(f, ku)
}""")
SUM = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
sum (float[7] x) => (float[7] y) <float[7] w = {1, 2, 3, 4, 5, 6, 7}> { y = Add(x, w) }""")


@pytest.fixture(scope="module", params=["embedded", "file"])
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "package"
    return tvm_ext.export(NET, folder, "c++", name="my net-1", weights=request.param)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return tvm_ext.export(SUM, tmp_path_factory.mktemp("small") / "sum", name="sum", weights="file")


@pytest.mark.parametrize("sanitizer", ["", "-fsanitize=address,undefined"])
def test_the_example_runs_and_checks_itself(package, sanitizer):
    text = ran(compiled(package, ["main.c"], *sanitizer.split()), package)
    assert text.splitlines()[-1] == "correct"
    assert "x  float32[2, 5, 37, 41]" in text and "z  float32[2, 24]" in text


def test_the_check_of_a_package(small, tmp_path):
    run_example(small)
    copy = tmp_path / "copy"
    shutil.copytree(small, copy)
    text = (copy / "main.c").read_text()
    (copy / "main.c").write_text(re.sub(r"(EXPECTED_0_0\[\] = \{\{0, )[^}]*", r"\g<1>1e9", text))
    with pytest.raises(BuildError, match=r"main failed: y, element 0.*expected 1e.09"):
        run_example(copy)
    (copy / "main.c").write_text("int main(void) { return unknown; }\n")
    with pytest.raises(BuildError, match="failed: "):
        run_example(copy)


def test_the_example_finds_other_answers_wrong(package):
    text = (package / "main.c").read_text()
    changed = re.sub(r"(EXPECTED_0_1\[\] = \{\{0, )[^}]*", r"\g<1>1e9", text)
    program = compiled(package, [changed])
    done = subprocess.run([program], cwd=package, capture_output=True, text=True)
    assert done.returncode == 1 and "WRONG" in done.stdout and "expected 1e+09" in done.stderr


def test_the_shared_library(package):
    program = compiled(package, ["main.c"], libraries=("libmy_net_1.so",))
    assert ran(program, package, LD_LIBRARY_PATH=str(package)).endswith("correct\n")
    needed = subprocess.run(
        ["readelf", "-d", package / "libmy_net_1.so"], capture_output=True, text=True, check=True
    )
    assert set(re.findall(r"NEEDED.*\[(\w+)", needed.stdout)) <= {
        "ld",
        "libc",
        "libm",
        "libpthread",
    }


def test_cmake_and_pkg_config(package, tmp_path):
    if not (shutil.which("cmake") and shutil.which("pkg-config")):
        pytest.skip("needs cmake and pkg-config")
    for step in (["-S", package, "-B", tmp_path], ["--build", tmp_path]):
        subprocess.run(["cmake", *step], check=True, capture_output=True)
    subprocess.run(["ctest"], cwd=tmp_path, check=True, capture_output=True)
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", package / "my_net_1.pc"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"-I{package}" in flags and "-lmy_net_1" in flags


def test_the_class_answers_what_the_c_interface_does(package):
    if not shutil.which("g++"):
        pytest.skip("needs g++")
    program = compiled(package, ["session.cpp"], "-fsanitize=address,undefined", language=CXX)
    assert ran(program, package).endswith("correct\n")


def test_without_exceptions_an_error_is_a_text_and_an_abort(package):
    if not shutil.which("g++"):
        pytest.skip("needs g++")
    program = compiled(package, ["session.cpp"], "-fno-exceptions", language=CXX)
    assert ran(program, package).endswith("correct\n")
    done = subprocess.run([program, "nowhere.bin"], cwd=package, capture_output=True, text=True)
    assert done.returncode == -signal.SIGABRT
    assert "nowhere.bin" in done.stderr and done.stdout == ""


CLASS = r"""
#include "my_net_1.hxx"
#include <cstdio>
#include <cstring>
using my_net_1::Session;
int main() {
  try {
    Session missing("nowhere.bin");
    return 1;
  } catch (const my_net_1::Error &error) {
    if (error.status != TVMX_NO_WEIGHTS || !std::strstr(error.what(), "nowhere.bin")) return 2;
  }
  std::vector<float> x(2 * 5 * 37 * 41, 0.25f);
  std::vector<std::int64_t> k = {3, -4};
  Session first, second = first, third;
  third = second;
  Session moved = std::move(first);
  my_net_1::Results a = moved.infer(x.data(), k.data()), b = third.infer(x.data(), k.data());
  if (a.y != b.y || a.z != b.z || a.y.size() != 2 * 24 * 37 * 41) return 3;
  for (float value : a.z) std::printf("%.6f ", value);
  if (Session::inputs()[1].name != "k" || Session::outputs()[0].shape[3] != 41) return 4;
  return 0;
}
"""


def test_sessions_are_values_and_errors_are_thrown(package):
    if not shutil.which("g++"):
        pytest.skip("needs g++")
    program = compiled(package, [CLASS], "-fsanitize=address,undefined", language=CXX)
    z = np.array(ran(program, package).split(), "float32").reshape(2, 24)
    x = np.full((2, 5, 37, 41), 0.25, "float32")
    np.testing.assert_allclose(z, convert_and_build(NET, "llvm")(x, np.array([3, -4]))[1], 1e-5)


MISUSE = r"""
#include "my_net_1.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(tvmx_status got, tvmx_status want, const char *text) {
  if (got != want || (want != TVMX_OK && !strstr(tvmx_error(), text))) {
    printf("got %d (%s), wanted %d (%s)\n", got, tvmx_error(), want, text);
    exit(1);
  }
}

int main(int argc, char **argv) {
  const char *weights = argc > 1 ? argv[1] : NULL;
  tvmx_model *model = NULL;
  expect(my_net_1_create(NULL, weights), TVMX_NULL_ARGUMENT, "no place");
  expect(my_net_1_create(&model, "nowhere.bin"), TVMX_NO_WEIGHTS, "nowhere.bin: No such file");
  expect(my_net_1_create(&model, "/"), TVMX_NO_WEIGHTS, "/: Invalid");
  if (model) return 1;
  expect(my_net_1_create(&model, weights), TVMX_OK, "");

  size_t bytes = my_net_1_workspace_bytes();
  unsigned char *workspace = aligned_alloc(64, bytes / 64 * 64 + 128);
  tvmx_input in[2];
  tvmx_output out[2];
  for (int k = 0; k < 2; k++) {
    size_t a = my_net_1_inputs(NULL)[k].bytes, b = my_net_1_outputs(NULL)[k].bytes;
    in[k] = (tvmx_input){calloc(1, a), a};
    out[k] = (tvmx_output){calloc(1, b), b};
  }
#define RUN(model, in, n, out, m, w, bytes) my_net_1_run(model, in, n, out, m, w, bytes)
  expect(RUN(NULL, in, 2, out, 2, workspace, bytes), TVMX_NULL_ARGUMENT, "model is NULL");
  expect(RUN(model, NULL, 2, out, 2, workspace, bytes), TVMX_NULL_ARGUMENT, "inputs or");
  expect(RUN(model, in, 2, NULL, 2, workspace, bytes), TVMX_NULL_ARGUMENT, "inputs or");
  expect(RUN(model, in, 1, out, 2, workspace, bytes), TVMX_WRONG_COUNT, "1 inputs and 2");
  expect(RUN(model, in, 2, out, 3, workspace, bytes), TVMX_WRONG_COUNT, "has 2 and 2");
  expect(RUN(model, in, 2, out, 2, NULL, bytes), TVMX_NULL_ARGUMENT, "workspace is NULL");
  expect(RUN(model, in, 2, out, 2, workspace, bytes - 1), TVMX_WORKSPACE_TOO_SMALL, "needs");
  expect(RUN(model, in, 2, out, 2, workspace + 8, bytes), TVMX_UNALIGNED, "multiple of 64");
  tvmx_input good = in[0];
  in[0].bytes--;
  expect(RUN(model, in, 2, out, 2, workspace, bytes), TVMX_WRONG_SIZE, "input x has");
  in[0] = (tvmx_input){NULL, good.bytes};
  expect(RUN(model, in, 2, out, 2, workspace, bytes), TVMX_NULL_ARGUMENT, "input x is NULL");
  in[0] = (tvmx_input){(const char *)good.data + 1, good.bytes};
  expect(RUN(model, in, 2, out, 2, workspace, bytes), TVMX_UNALIGNED, "elements of 4 bytes");
  in[0] = good;
  out[1].bytes += 4;
  expect(RUN(model, in, 2, out, 2, workspace, bytes), TVMX_WRONG_SIZE, "output z has");
  out[1].bytes -= 4;
  expect(RUN(model, in, 2, out, 2, workspace, bytes), TVMX_OK, "");
  int threads = tvmx_threads();
  if (MY_NET_1_SCRATCH_BYTES == 0) return 2;
  tvmx_set_threads(threads + 1);
  expect(RUN(model, in, 2, out, 2, workspace, bytes), TVMX_WORKSPACE_TOO_SMALL, "threads");
  tvmx_set_threads(1);
  expect(RUN(model, in, 2, out, 2, workspace, bytes), TVMX_OK, "");

  for (int k = 0; k < 2; k++) free((void *)(uintptr_t)in[k].data), free(out[k].data);
  free(workspace);
  my_net_1_destroy(model);
  my_net_1_destroy(NULL);
  puts("fine");
  return 0;
}
"""


def weights_of(package):
    return ["my_net_1.bin"] if (package / "my_net_1.bin").exists() else []


def test_misuse_is_an_error_and_a_text(package):
    program = compiled(package, [MISUSE], "-fsanitize=address,undefined")
    assert ran(program, package, *weights_of(package)) == "fine\n"


THREADS = r"""
#include "my_net_1.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tvmx_model *model;
static float *wanted;

static void *many(void *number) {
  size_t bytes = my_net_1_workspace_bytes();
  void *workspace = aligned_alloc(64, bytes / 64 * 64 + 64);
  const tvmx_tensor *given = my_net_1_inputs(NULL), *made = my_net_1_outputs(NULL);
  float *x = malloc(given[0].bytes);
  for (size_t k = 0; k < given[0].bytes / 4; k++) x[k] = (float)(k % 11) / 7;
  int64_t k[2] = {5, 6};
  float *y = malloc(made[0].bytes), *z = malloc(made[1].bytes);
  tvmx_input in[] = {{x, given[0].bytes}, {k, given[1].bytes}};
  tvmx_output out[] = {{y, made[0].bytes}, {z, made[1].bytes}};
  for (int run = 0; run < 30; run++) {
    if (my_net_1_run(model, in, 2, out, 2, workspace, bytes) != TVMX_OK) exit(2);
    if (number && memcmp(y, wanted, made[0].bytes) != 0) exit(3);
  }
  if (!number) memcpy(wanted, y, made[0].bytes);
  free(x), free(y), free(z), free(workspace);
  return NULL;
}

int main(int argc, char **argv) {
#ifndef ALONE
  tvmx_set_threads(3);
#else
  tvmx_set_threads(1);
#endif
  if (my_net_1_create(&model, argc > 1 ? argv[1] : NULL) != TVMX_OK) return 1;
  wanted = malloc(my_net_1_outputs(NULL)[0].bytes);
  many(NULL);
  pthread_t threads[2];
  for (int k = 0; k < 2; k++) pthread_create(&threads[k], NULL, many, &model);
  for (int k = 0; k < 2; k++) pthread_join(threads[k], NULL);
  my_net_1_destroy(model);
  free(wanted);
  puts("fine");
  return 0;
}
"""


@pytest.mark.parametrize("sanitizer", ["", "-fsanitize=thread"])
def test_threads_share_a_model(package, sanitizer):
    # A runtime that is compiled without the sanitizer hides how workers and callers take turns.
    flags = [sanitizer, "-DALONE"] if sanitizer else []
    program = compiled(package, [THREADS], *flags)
    assert ran(program, package, *weights_of(package)) == "fine\n"


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
@pytest.mark.parametrize("by", ["gcc", "clang"])
@pytest.mark.parametrize("package", ["embedded"], indirect=True)
def test_the_runtime_itself_is_clean(package, tmp_path, by, sanitizer):
    """The model's object with the runtime compiled anew, so that all of it is watched."""
    if not shutil.which(by):
        pytest.skip(f"needs {by}")
    version = f"-DTVMX_VERSION=UINT64_C(0x{libraries.runtime_version([])})"
    subprocess.run(["ar", "x", package / "libmy_net_1.a", "my_net_1.o"], cwd=tmp_path, check=True)
    runtime = [*libraries.RUNTIME_SOURCES, tmp_path / "my_net_1.o"]
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-Wno-pedantic", version]
    for text in MISUSE, THREADS:
        program = compiled(package, [text], *flags, libraries=runtime, by=by)
        assert ran(program, package, *weights_of(package)) == "fine\n"


COUNTED = r"""
#include "my_net_1.h"
#include <stdio.h>
#include <stdlib.h>

static int counting, allocations;
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t n) { return allocations += counting, __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t m) { return allocations += counting, __real_calloc(n, m); }
void *__wrap_aligned_alloc(size_t a, size_t n) {
  return allocations += counting, __real_aligned_alloc(a, n);
}

int main(int argc, char **argv) {
  tvmx_model *model;
  tvmx_set_threads(2);
  if (my_net_1_create(&model, argc > 1 ? argv[1] : NULL) != TVMX_OK) return 1;
  size_t bytes = my_net_1_workspace_bytes();
  void *workspace = aligned_alloc(64, bytes / 64 * 64 + 64);
  tvmx_input in[2];
  tvmx_output out[2];
  for (int k = 0; k < 2; k++) {
    size_t a = my_net_1_inputs(NULL)[k].bytes, b = my_net_1_outputs(NULL)[k].bytes;
    in[k] = (tvmx_input){calloc(1, a), a};
    out[k] = (tvmx_output){calloc(1, b), b};
  }
  counting = 1;
  if (my_net_1_run(model, in, 2, out, 2, workspace, bytes) != TVMX_OK) return 2;
  counting = 0;
  printf("%d\n", allocations);
  return 0;
}
"""


def test_the_first_run_allocates_nothing(package):
    wraps = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "aligned_alloc")]
    assert ran(compiled(package, [COUNTED], *wraps), package, *weights_of(package)) == "0\n"


TWO = r"""
#include "my_net_1.h"
#include "sum.h"
#include <stdio.h>

int main(int argc, char **argv) {
  tvmx_model *net, *sum;
  if (argc < 3 || my_net_1_create(&net, argv[1][0] ? argv[1] : NULL) != TVMX_OK) return 1;
  if (sum_create(&sum, argv[2]) != TVMX_OK) return 2;
  float x[7] = {0}, y[7];
  tvmx_input in = {x, sizeof x};
  tvmx_output out = {y, sizeof y};
  if (sum_run(net, &in, 1, &out, 1, NULL, 0) != TVMX_WRONG_MODEL) return 3;
  if (sum_run(sum, &in, 1, &out, 1, NULL, 0) != TVMX_OK) return 4;
  if (my_net_1_create(&net, argv[2]) != TVMX_WRONG_WEIGHTS) return 5;
  printf("%g %g %s\n", y[0], y[6], tvmx_error());
  sum_print_initializers();
  return 0;
}
"""


def test_two_models_in_one_program(package, small):
    libraries = ["libmy_net_1.a", small / "libsum.a"]
    program = compiled(package, [TWO], f"-I{small}", libraries=libraries)
    embedded = not weights_of(package)
    text = ran(program, package, "" if embedded else "my_net_1.bin", small / "sum.bin")
    assert text.startswith("1 7 my net-1: ") and "the weights of another model" in text
    assert text.splitlines()[1] == "Add y [1]  float32[7]"
    names = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    assert names.count(" tvmx_set_threads") == names.count(" launch") == 1  # one pool


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "magic"])
def test_damaged_weights_are_refused(small, tmp_path, damage):
    program = r"""
    #include "sum.h"
    #include <stdio.h>
    int main(int argc, char **argv) {
      tvmx_model *model;
      if (argc < 2 || sum_create(&model, argv[1]) != TVMX_WRONG_WEIGHTS) return 1;
      puts(tvmx_error());
      return 0;
    }
    """
    data = bytearray((small / "sum.bin").read_bytes())
    flipped = bytearray(data)
    flipped[64 + 9] ^= 4
    bad = {"cut": data[:-8], "flipped": flipped, "empty": b"", "magic": b"x" + data[1:]}[damage]
    (tmp_path / "bad.bin").write_bytes(bad)
    program = compiled(small, [program], "-fsanitize=address", libraries=("libsum.a",))
    text = ran(program, small, tmp_path / "bad.bin")
    assert re.search({"cut": "truncated", "flipped": "damaged"}.get(damage, "no file"), text)


def test_the_header_says_what_the_arena_needs(package):
    memory = convert_and_build(NET, "llvm").memory
    line = f" * Arena: {memory.arena_bytes} bytes, of which {memory.live_bytes} are alive"
    assert line in (package / "my_net_1.h").read_text()


def test_names_become_identifiers():
    assert identifier("my net-1") == "my_net_1"
    assert identifier("9lives") == "m_9lives"
    assert identifier("string") == "string_model"
    assert identifier("for") == "for_model"
    assert identifier("Größe/宽") == "Gr_e"
    assert identifier("") == identifier("///") == "model"
    assert identifier("tvmx_run").startswith("m_")
    assert identifiers(["a b", "a-b", "A.B", "a_b_2"]) == ["a_b", "a_b_2", "A_B_3", "a_b_2_2"]


@pytest.mark.parametrize("name", ['a "b" \\ ??/', "*/ int x; /*", "\n#error", "int"])
def test_hostile_names_compile(tmp_path, name):
    model = onnx.ModelProto()
    model.CopyFrom(SUM)
    model.graph.input[0].name = model.graph.node[0].input[0] = name
    folder = tvm_ext.export(model, tmp_path / "out", "c++", name=name)
    (library,) = (path.name for path in folder.glob("*.a"))
    program = compiled(folder, ["main.c"], libraries=(library,))
    assert ran(program, folder).endswith("correct\n")


@pytest.mark.parametrize(
    "dtype, op", [(10, "Neg"), (16, "Neg"), (11, "Neg"), (9, "Not"), (2, "Identity"), (6, "Neg")]
)
def test_every_kind_of_element(tmp_path, dtype, op):
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, ["x"], ["y"])],
        "g",
        [value("x", dtype, [3, 5])],
        [value("y", dtype, [3, 5])],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    folder = tvm_ext.export(onnx.helper.make_model(graph, opset_imports=opset), tmp_path / "out")
    program = compiled(folder, ["main.c"], libraries=("libmodel.a",))
    assert ran(program, folder).endswith("correct\n")


def test_the_example_checks_floats_that_c_lacks(tmp_path):
    kinds = {"float16": 10, "bfloat16": 16, "float8e4m3fn": 17, "float8e5m2": 19}
    body = " ".join(f"y{k} = Cast<to={number}>(x)" for k, number in enumerate(kinds.values()))
    outputs = ", ".join(f"{kind}[9] y{k}" for k, kind in enumerate(kinds))
    model = f'<ir_version: 10, opset_import: ["": 21]> g (float[9] x) => ({outputs}) {{ {body} }}'
    folder = tvm_ext.export(parser.parse_model(model), tmp_path / "out")
    run_example(folder)
    text = (folder / "main.c").read_text()
    changed = re.sub(r"(EXPECTED_0_\d\[\] = \{\{0, )[^}]*", r"\g<1>7", text)
    changed = changed.replace("_OUTPUTS && !wrong", "_OUTPUTS")  # go on to the others
    done = subprocess.run(
        [compiled(folder, [changed], libraries=("libmodel.a",))], capture_output=True, text=True
    )
    assert re.findall(r"(y\d), element 0: .*, expected 7", done.stderr) == ["y0", "y1", "y2", "y3"]


def test_what_cannot_be_exported_says_why(tmp_path):
    symbolic = onnx.ModelProto()
    symbolic.CopyFrom(SUM)
    symbolic.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    symbolic.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones(1, "float32"), "w"))
    symbolic.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with pytest.raises(OptionError, match=r"one size .* by shapes= .*x: float32\[n\]"):
        tvm_ext.export(symbolic, tmp_path / "out")
    built = convert_and_build(SUM, "llvm")
    with pytest.raises(OptionError, match=r"built already: no \['opt_level'\]"):
        tvm_ext.export(built, tmp_path / "out", opt_level=1)
    for wrong in {"format": "cobol"}, {"weights": "nowhere"}:
        with pytest.raises(OptionError, match="not '"):
            tvm_ext.export(built, tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kept", ["file", "pickle", "cache"])
def test_a_loaded_model_is_exported_as_the_one_that_was_built(tmp_path, kept):
    built = convert_and_build(NET, "llvm", cache=tmp_path / "cache")
    built.save(tmp_path / "m.so")
    loaded = {
        "file": lambda: tvm_ext.load(tmp_path / "m.so"),
        "pickle": lambda: pickle.loads(pickle.dumps(built)),
        "cache": lambda: convert_and_build(NET, "llvm", cache=tmp_path / "cache"),
    }[kept]()
    folders = [tmp_path / "a", tmp_path / "b"]
    for model, folder in zip((built, loaded), folders, strict=True):
        tvm_ext.export(model, folder, "c++", name="net", weights="file")
    run_example(folders[1])
    names = sorted(path.name for path in folders[0].iterdir())
    assert names == sorted(path.name for path in folders[1].iterdir())
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def test_a_folder_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    built = convert_and_build(SUM, "llvm")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("kept")
    (tmp_path / "empty").mkdir()
    with pytest.raises(OutputPathError, match="is there already"):
        tvm_ext.export(built, tmp_path / "full")
    with pytest.raises(OutputPathError, match="not a folder"):
        tvm_ext.export(built, tmp_path / "none" / "out")
    tvm_ext.export(built, tmp_path / "empty")
    assert (tmp_path / "empty" / "libmodel.a").exists()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tvm_ext.export.package._write_texts", full)
    with pytest.raises(OutputPathError, match="No space left"):
        tvm_ext.export(built, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]


def test_the_command(tmp_path, capsys):
    onnx.save(SUM, tmp_path / "adder.onnx")
    command = ["export", str(tmp_path / "adder.onnx"), "-o", str(tmp_path / "out")]
    assert main([*command, "--format", "c++", "--weights", "file"]) == 0
    printed = capsys.readouterr().out
    assert "adder.bin, adder.h, adder.hxx, adder.pc" in printed
    assert "arena 0 bytes (at least 0), scratch 0 a thread, weights 64\n" in printed
    assert main(command) == 2
    assert "is there already" in capsys.readouterr().err
    convert_and_build(SUM, "llvm").save(tmp_path / "built.so")
    command = ["export", str(tmp_path / "built.so"), "-o", str(tmp_path / "again")]
    assert main(command) == 0
    run_example(tmp_path / "again")
    for option in ["--opt-level", "1"], ["--shape", "n=1"], ["--sizes", "n=1"]:
        assert main([*command[:-1], str(tmp_path / "none"), *option]) == 2
        assert "built already" in capsys.readouterr().err
