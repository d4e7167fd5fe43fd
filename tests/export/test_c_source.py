"""C source: it compiles everywhere without a warning, answers what onnxruntime does, and reads."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import tvm_ext
from tests.export.programs import C, compiled, ran
from tvm_ext.cli import main
from tvm_ext.errors import BuildError, OptionError
from tvm_ext.executors.toolchain import compiler
from tvm_ext.export.check import run_example
from tvm_ext.export.source.c_types import constant
from tvm_ext.export.source.layout import WIDTH, wrapped
from tvm_ext.export.source.naming import free_name, function_name, value_name

SANITIZED = "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
# A padded convolution with its epilogue, pooling, a product, a softmax, a table; hostile names.
NET = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
net (float[2, 3, 13, 12] image, int64[2] exp) => (float[2, 7] y, int64[2] best, float[2, 4, 1, 1] i)
<float[4] bias = {0.5, -0.25, 0.125, 3.0}, float[3, 7] table = {
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21}> {
  shape = Constant<value_ints=[4, 3, 3, 3]>()
  ones = ConstantOfShape<value = float[1] {0.25}>(shape)
  c = Conv<pads=[1, 1, 1, 1], strides=[2, 1]>(image, ones, bias)
  r = Sigmoid(c)
  p = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(r)
  i = GlobalAveragePool(p)
  f = Flatten(i)
  wide = Constant<value_ints=[4, 7]>()
  half = ConstantOfShape<value = float[1] {0.5}>(wide)
  m = MatMul(f, half)
  rows = Gather(table, exp)
  s = Add(m, rows)
  y = Softmax(s)
  best = ArgMax<keepdims=0, axis=1>(s)
}""")
FEEDS = {
    "image": np.random.default_rng(0).standard_normal((2, 3, 13, 12)).astype("float32"),
    "exp": np.array([2, -3]),
}


def nodes(body, inputs, outputs, **initializers):
    """The model of a few nodes in ONNX's text form."""
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => ({outputs}) {{ {body} }}'
    model = parser.parse_model(text)
    for name, array in initializers.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def called(folder, feeds, outputs, *flags):
    """What the model in ``folder`` answers, compiled as a library with integers that trap."""
    (header,) = folder.glob("*.h")
    library = folder.parent / f"{folder.name}.so"
    command = [*compiler(), *C, "-O1", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
    sources = [path for path in folder.glob("*.c") if path.name != "main.c"]
    done = subprocess.run(
        [*map(str, (*command, *flags, *sources)), "-shared", "-fPIC", "-lm", "-o", str(library)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    size = int(re.search(r"WORKSPACE_BYTES (\d+)", header.read_text())[1])
    arrays = [*map(np.ascontiguousarray, feeds), *(np.full(s, 77).astype(t) for s, t in outputs)]
    places = [*arrays, np.full(size // 8 + 1, np.nan)]
    run = getattr(ctypes.CDLL(str(library)), f"{header.stem}_run")
    assert run(*(ctypes.c_void_p(array.ctypes.data) for array in places)) == 0
    return arrays[len(feeds) :]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "net"
    return tvm_ext.export(NET, folder, "c-source", name="net", openmp=True)


def texts(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("by", ["gcc", "clang"])
@pytest.mark.parametrize("flags", [("-O3",), SANITIZED], ids=["fast", "sanitized"])
def test_the_example_compiles_without_a_warning_and_checks_itself(package, by, flags):
    if not shutil.which(by):
        pytest.skip(f"needs {by}")
    sources = ["main.c", "net.c", "net_weights.c"]
    assert ran(compiled(package, sources, *flags, by=by, libraries=()), package) == "correct\n"


@pytest.mark.parametrize(
    "machine, short", [("aarch64-linux-gnu", "aarch64"), ("arm-linux-gnueabihf", "arm")]
)
def test_it_runs_on_other_machines(package, tmp_path, machine, short):
    gcc, emulator = shutil.which(f"{machine}-gcc"), shutil.which(f"qemu-{short}")
    if not (gcc and emulator):
        pytest.skip(f"needs {machine}-gcc and qemu-{short}")
    program = compiled(
        package, ["main.c", "net.c", "net_weights.c"], "-static", by=gcc, libraries=()
    )
    done = subprocess.run([emulator, program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "correct\n")


def test_it_answers_what_onnxruntime_does(package):
    session = onnxruntime.InferenceSession(NET.SerializeToString())
    expected = session.run(None, FEEDS)
    kinds = [(array.shape, array.dtype) for array in expected]
    for got, want in zip(called(package, FEEDS.values(), kinds), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_it_needs_four_headers_and_allocates_nothing(package):
    allowed = {"<stdint.h>", "<stddef.h>", "<string.h>", "<math.h>", '"net.h"'}
    for name in "net.c", "net.h", "net_weights.c":
        text = (package / name).read_text()
        assert set(re.findall(r"#include (\S+)", text)) <= allowed
        assert not re.search(
            r"alloc\(|tvm/|TVM|static [^(]*;", re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        )


def test_it_reads(package):
    source = (package / "net.c").read_text()
    assert all(len(line) <= WIDTH for text in texts(package).values() for line in text.splitlines())
    heads = re.findall(r"/\*\n( \* [^/]*?) \*/\nstatic void (\w+)\(", source)
    (convolution,) = (name for comment, name in heads if "Conv c" in comment)
    assert convolution == "conv_sigmoid"
    assert {name.partition(" ")[0] for comment, _ in heads for name in comment[3:].split(", ")} >= {
        *"Conv MaxPool MatMul Gather Softmax ArgMax GlobalAveragePool".split()
    }
    assert "const float image[2][3][13][12]," in source
    assert "extern const float net_table[3][7];" in source
    assert re.search(r"/\* MaxPool \w+ \*/\n  max_pool\(r, p", source)
    assert " = float32[" not in source and "[0 + " not in source and "* 1 " not in source


def test_sums_of_a_convolution_are_vectorised(package):
    if not shutil.which("gcc") or os.uname().machine != "x86_64":
        pytest.skip("needs gcc for x86-64")
    lines = (package / "net.c").read_text().splitlines()
    (inner,) = (
        k
        for k, line in enumerate(lines)
        if re.search(r"\] \+= pad_temp\[.* \* w", line) or "+= pad_temp" in line
    )
    flags = ["-O2", "-ftree-vectorize", "-mavx2", "-std=c11", "-fopt-info-vec-optimized", "-c"]
    done = subprocess.run(
        ["gcc", *flags, package / "net.c", "-o", os.devnull], capture_output=True, text=True
    )
    assert re.search(rf"net\.c:({inner}|{inner + 1}):.*loop vectorized", done.stderr), done.stderr


BUILD = """
import sys, tvm_ext, onnx
for k, flag in enumerate((True, False)):
    tvm_ext.export(onnx.load(sys.argv[1]), f"{sys.argv[2]}{k}", "c-source", name="net", openmp=flag)
"""


def test_every_build_writes_the_same(package, tmp_path):
    """Here, and in a process that orders sets otherwise."""
    onnx.save(NET, tmp_path / "net.onnx")
    subprocess.run(
        [sys.executable, "-c", BUILD, tmp_path / "net.onnx", tmp_path / "out"],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        check=True,
    )
    assert texts(tmp_path / "out0") == texts(package)
    plain = (tmp_path / "out1" / "net.c").read_text()
    marked = re.sub(
        r"#ifdef _OPENMP.*?#endif\n\n| *PARALLEL_FOR\n", "", texts(package)["net.c"], flags=re.S
    )
    assert marked == plain != texts(package)["net.c"]


def test_openmp_shares_loops(tmp_path):
    model = nodes(
        "y = MatMul(x, w)", "float[64, 50] x", "float[64, 48] y", w=np.ones((50, 48), "f")
    )
    folder = tvm_ext.export(model, tmp_path / "out", "c-source", name="product", openmp=True)
    assert (folder / "product.c").read_text().count("\n  PARALLEL_FOR\n  for (") == 1
    a = np.random.default_rng(1).standard_normal((64, 50)).astype("float32")
    (got,) = called(folder, [a], [((64, 48), "float32")], "-fopenmp")
    np.testing.assert_allclose(got, a @ np.ones((50, 48), "f"), rtol=1e-4, atol=1e-5)


def test_weights_in_a_file(tmp_path):
    folder = tvm_ext.export(NET, tmp_path / "net", "c-source", name="net", weights="file")
    assert not (folder / "net_weights.c").exists()
    run_example(folder)
    program = compiled(folder, ["main.c", "net.c"], *SANITIZED, libraries=())
    assert ran(program, folder) == "correct\n"
    done = subprocess.run([program, "nowhere"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and "cannot read the weights from nowhere" in done.stderr


MISUSE = """
#include "net.h"
#include <stdio.h>
static float image[NET_IMAGE_ELEMENTS], y[NET_Y_ELEMENTS], i[NET_I_ELEMENTS];
static int64_t exp_[2], best[2];
static _Alignas(8) unsigned char workspace[NET_WORKSPACE_BYTES + 8];
int main(void) {
  if (net_run(NULL, exp_, y, best, i, workspace) != NET_NULL_ARGUMENT) return 1;
  if (net_run(image, exp_, y, NULL, i, workspace) != NET_NULL_ARGUMENT) return 2;
  if (net_run(image, exp_, y, best, i, NULL) != NET_NULL_ARGUMENT) return 3;
  if (net_run(image, exp_, y, best, i, workspace + 4) != NET_UNALIGNED) return 4;
  if (net_run(image, exp_, y, best, i, workspace + 8) != NET_OK) return 5;
  puts("fine");
  return 0;
}
"""


def test_misuse_is_a_code(package):
    sources = [MISUSE, "net.c", "net_weights.c"]
    assert ran(compiled(package, sources, *SANITIZED, libraries=()), package) == "fine\n"


def test_cmake_builds_and_tests_it(package, tmp_path):
    if not shutil.which("cmake"):
        pytest.skip("needs cmake")
    for step in (["-S", package, "-B", tmp_path], ["--build", tmp_path]):
        subprocess.run(["cmake", *step], check=True, capture_output=True)
    subprocess.run(["ctest"], cwd=tmp_path, check=True, capture_output=True)


TYPES = {
    "wraps": ("y = Mul(x, x)", "int32", np.array([[46341, -(2**31), 7]])),
    "wraps_long": ("c = Constant<value_int=9>() \n y = Sub(x, c)", "int64", None),
    "half": ("a = Mul(x, x) \n b = Exp(x) \n y = Sub(a, b)", "float16", None),
    "bfloat": ("a = Mul(x, x) \n y = Add(a, x)", "bfloat16", None),
    "double": ("a = Tanh(x) \n y = Sinh(a)", "float64", None),
    "modulus": ("k = Constant<value=int64[3] {3, -3, 5}>() \n y = Mod(x, k)", "int64", None),
    "shifts": (
        'k = Constant<value=uint8[1] {3}>() \n y = BitShift<direction="LEFT">(x, k)',
        "uint8",
        None,
    ),
    "masks": ("k = Constant<value=int16[1] {1365}>() \n y = BitwiseXor(x, k)", "int16", None),
    "bool": ("a = Not(x) \n y = And(a, a)", "bool", None),
}
SPECIAL = [[np.nan, np.inf, -np.inf], [0.0, -0.0, 65504.0], [6e-8, -3.1415, 0.333]]


@pytest.mark.parametrize("case", TYPES)
def test_types(case, tmp_path):
    body, dtype, values = TYPES[case]
    if values is None and "float" in dtype:
        values = np.array(SPECIAL)
    elif values is None:
        values = np.random.default_rng(2).integers(-(2**40), 2**40, (4, 3))
        values[0, 0] = -(2**63)
    onnx_type = {"float64": "double"}.get(dtype, dtype)
    with np.errstate(over="ignore"):
        x = values.astype(dtype)
    rows = f"{onnx_type}[{x.shape[0]}, 3]"
    model = nodes(body, f"{rows} x", f"{rows} y")
    folder = tvm_ext.export(model, tmp_path / "m", "c-source", name="m")
    (got,) = called(folder, [x], [(x.shape, dtype)])
    with np.errstate(all="ignore"):
        (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    if dtype == "float64":  # two libraries' tanh
        np.testing.assert_allclose(got, want, rtol=1e-14)
    else:
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got.astype("float64"), want.astype("float64"))


def test_every_half_is_converted_exactly(tmp_path):
    model = nodes(
        "a = Cast<to=1>(x) \n y = Cast<to=10>(a)",
        "float16[65536] x",
        "float16[65536] y, float[65536] a",
    )
    folder = tvm_ext.export(model, tmp_path / "m", "c-source", name="m")
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    y, a = called(folder, [x], [(65536, "float16"), (65536, "float32")])
    np.testing.assert_array_equal(a, x.astype("float32"))
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("to", ["float16", "bfloat16", "int32", "uint8", "int64"])
def test_floats_are_rounded_as_numpy_does(to, tmp_path):
    number = {"float16": 10, "bfloat16": 16, "int32": 6, "uint8": 2, "int64": 7}[to]
    model = nodes(f"y = Cast<to={number}>(x)", "float[5000] x", f"{to}[5000] y")
    folder = tvm_ext.export(model, tmp_path / "m", "c-source", name="m")
    bits = np.random.default_rng(3).integers(0, 2**32, 5000, dtype=np.uint32)
    x = bits.view(np.float32) if "float" in to else (bits % 512).astype("float32") - 255.5
    if to == "uint8":
        x = np.abs(x)
    if to == "float16":  # near its subnormal numbers and its ties
        x[:2500] = (bits[:2500] % 8192).astype("float32") * np.float32(2.0**-26)
    x[:5] = 65519.9, 65520, np.inf, -0.0, 2.0**-25
    if "int" in to:
        x[:5] = 1.9, 0.5, 77, 3, 0
    (got,) = called(folder, [x], [(5000, to)])
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(to)
    np.testing.assert_array_equal(got.astype("float64"), want.astype("float64"))


def test_float8(tmp_path):
    """Every code of every kind: what it is worth, and there and back beside codes that move."""
    kinds = {"e4m3fn": 17, "e4m3fnuz": 18, "e5m2": 19, "e5m2fnuz": 20}
    body = " ".join(
        f"f{k} = Cast<to=1>(x{k}) q{k} = Cast<to={n}, saturate=0>(f{k}) "
        f"y{k} = Concat<axis=0>(one{k}, q{k}, x{k})"
        for k, n in enumerate(kinds.values())
    )
    codes = np.arange(256, dtype=np.uint8)
    feeds = [codes.view(getattr(ml_dtypes, f"float8_{kind}")) for kind in kinds]
    ones = {f"one{k}": np.ones(1, x.dtype) for k, x in enumerate(feeds)}
    types = [f"float8{kind}" for kind in kinds]
    inputs = ", ".join(f"{t}[256] x{k}" for k, t in enumerate(types))
    outputs = ", ".join(f"{t}[513] y{k}, float[256] f{k}" for k, t in enumerate(types))
    folder = tvm_ext.export(
        nodes(body, inputs, outputs, **ones), tmp_path / "m", "c-source", name="m"
    )
    wanted = [form for x in feeds for form in ((513, x.dtype), (256, "float32"))]
    results = called(folder, feeds, wanted)
    for x, y, f in zip(feeds, results[::2], results[1::2], strict=True):
        np.testing.assert_array_equal(f, x.astype("float32"))
        both = np.concatenate([np.ones(1, x.dtype), x, x])
        np.testing.assert_array_equal(y.astype("float32"), both.astype("float32"))
    run_example(folder)


REFUSED = {
    "sort": (
        "k = Constant<value_ints=[2]>() \n y, i = TopK(x, k)",
        "int64[2] i, float[2] y",
        "TopK",
    ),
    "size": ("y = NonZero(x)", "int64[1, n] y", "NonZero"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_c_says_which_node_and_why(case, tmp_path):
    body, outputs, named = REFUSED[case]
    with pytest.raises((OptionError, BuildError), match=f"no C source.*{named}"):
        tvm_ext.export(nodes(body, "float[9] x", outputs), tmp_path / "m", "c-source")
    assert not list(tmp_path.iterdir())


def test_options_that_do_not_fit(tmp_path):
    wrong = [
        ({"target": "cuda"}, "no target"),
        ({"sizes": {"n": [1, 2]}}, "one size"),
        ({"keep": tmp_path / "kept"}, "nothing else to keep"),
        ({"format": "c", "openmp": True}, "threads of its own"),
    ]
    for options, reason in wrong:
        with pytest.raises(OptionError, match=reason):
            tvm_ext.export(NET, tmp_path / "m", **({"format": "c-source"} | options))
    built = tvm_ext.convert_and_build(nodes("y = Neg(x)", "float[9] x", "float[9] y"), "llvm")
    with pytest.raises(OptionError, match="printed from the ONNX model"):
        tvm_ext.export(built, tmp_path / "m", "c-source")
    symbolic = nodes("y = Neg(x)", "float[n] x", "float[n] y")
    with pytest.raises(OptionError, match=r"static shapes.*x: float32\[n\]"):
        tvm_ext.export(symbolic, tmp_path / "m", "c-source")
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path, capsys):
    model = nodes("y = Add(x, x)", "float[n] x", "float[n] y")
    onnx.save(model, tmp_path / "twice.onnx")
    command = ["export", str(tmp_path / "twice.onnx"), "-o", str(tmp_path / "out")]
    assert main([*command, "--format", "c-source", "--openmp", "--shape", "n=9"]) == 0
    files = "CMakeLists.txt, main.c, twice.c, twice.h, twice_weights.c"
    assert capsys.readouterr().out.endswith(f"out: {files}\n")
    run_example(Path(tmp_path, "out"))


def test_names():
    assert free_name("exp", []) == "exp_value" and free_name("memcpy", []) == "memcpy_value"
    assert free_name("a b", ["A_B", "a_b_2"]) == "a_b_3"
    assert function_name(["Conv a", "BatchNormalization b", "Relu"], "k") == (
        "conv_batch_normalization_relu"
    )
    assert function_name(["Exp e"], "k") == "exp_kernel" and function_name([], "fused") == "fused"
    assert value_name("/stages/stages.0/branch/branch.2/Relu_output_0") == "stages.0/branch.2/Relu"


def test_literals_are_exact():
    for value in (0.1, 1e-45, 3.4028235e38, 16777217.0, -0.0):
        text = constant(float(np.float32(value)), "float32")
        assert text[-1] == "f" and np.float32(text[:-1]) == np.float32(value)
    assert constant(-(2**63), "int64") == "INT64_MIN" and constant(2**40, "int64").startswith(
        "INT64_C"
    )
    assert constant(float("-inf"), "float32") == "-INFINITY" and constant(3, "uint32") == "3u"


def test_long_lines_are_broken_between_words():
    text = f"y[i] = {' + '.join(f'some_function({k}, other[{k}])' for k in range(20))};"
    lines = wrapped(text, 4)
    assert all(len(line) <= WIDTH for line in lines)
    assert " ".join(line.strip() for line in lines) == text


CONTROL_FLOW = """<ir_version: 10, opset_import: ["": 21]>
g (float[9] x, bool c, int64 n) => (float[9] y, float[9] last, float[4, 9] all, int64 k) {
  y = If (c) <then_branch = t () => (float[9] p) { p = Softmax (x) },
              else_branch = e () => (float[9] q) { q = Abs (x) }>
  four = Constant <value = int64 {4}> ()
  true = Constant <value = bool {1}> ()
  zero = Constant <value = int64 {0}> ()
  most = Constant <value = float {2.5}> ()
  last, all = Loop (four, true, x) <
    body = trip (int64 i, bool g, float[9] v) => (bool g1, float[9] v1, float[9] o) {
      g1 = Identity (g)
      s = Softmax (v)
      v1 = Add (s, y)
      o = Exp (v)
    }>
  two, k = Loop (n, true, last, zero) <
    body = trip (int64 i, bool g, float[9] v, int64 m) => (bool g1, float[9] w, int64 m1) {
      w = Add (v, v)
      m1 = Add (m, i)
      r = ReduceMax <keepdims = 0> (w)
      g1 = Less (r, most)
    }>
}"""


def test_branches_and_loops(tmp_path):
    model = parser.parse_model(CONTROL_FLOW)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    folder = tvm_ext.export(model, tmp_path / "m", "c-source", name="m")
    outputs = [((9,), "float32"), ((9,), "float32"), ((4, 9), "float32"), ((), "int64")]
    for taken, trips in ((True, 7), (False, 7), (True, 0)):
        feeds = {"x": np.linspace(-1, 1, 9, dtype="float32"), "c": taken, "n": trips}
        feeds = {name: np.array(value) for name, value in feeds.items()}
        got = called(folder, feeds.values(), outputs)
        for ours, theirs in zip(got, session.run(None, feeds), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_branches_and_loops_with_weights_in_a_file(tmp_path):
    model = parser.parse_model(CONTROL_FLOW)
    folder = tvm_ext.export(model, tmp_path / "m", "c-source", name="m", weights="file")
    program = compiled(folder, ["main.c", "m.c"], *SANITIZED, libraries=())
    assert ran(program, folder) == "correct\n"


def test_empty_tensors(tmp_path):
    model = nodes(
        "a = ReduceSum(x) \n y = Softmax(x) \n z = Sub(x, a)",
        "float[2, 0] x",
        "float[1, 1] a, float[2, 0] y, float[2, 0] z",
    )
    folder = tvm_ext.export(model, tmp_path / "m", "c-source", name="m")
    kinds = [((1, 1), "float32"), ((2, 0), "float32"), ((2, 0), "float32")]
    total, *empty = called(folder, [np.zeros((2, 0), "float32")], kinds)
    assert total == 0 and all(array.size == 0 for array in empty)
    run_example(folder)
