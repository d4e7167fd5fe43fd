"""Builds for cuda on a machine without a GPU."""

import re
import shutil
import subprocess

import onnx
import pytest
import tvm

from examples.export import EXPORTERS, to_onnx
from examples.registry import EXAMPLES, SIZES
from tests.small_examples import small_example
from tvm_ext import convert_and_build, schedules
from tvm_ext.errors import BuildError, TargetError
from tvm_ext.executors import cuda, cuda_compile
from tvm_ext.schedules.cuda import TiledMatmul

from .networks import GRAPHS, NETWORKS, feeds_of, parse

NO_GPU = pytest.mark.skipif(tvm.cuda(0).exist, reason="this machine has a GPU")


def sources(text, **options):
    """The CUDA C that ``text`` builds to."""
    return cuda.cuda_sources(convert_and_build(parse(text), "cuda", **options)._executor.executable)


def left_on_host(compiled):
    """The kernels that a build calls, but has no CUDA C of."""
    program = compiled._executor.executable
    called = re.findall(r"^@(\w+) packed_func;", program.as_text(), re.MULTILINE)
    kernels = [name for name in called if not name.startswith("shape_func")]
    assert kernels
    return [name for name in kernels if f" {name}_kernel" not in cuda.cuda_sources(program)]


@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
def test_a_network_builds_to_cuda_text(opt_level):
    text = sources(NETWORKS["classifier"], opt_level=opt_level)
    assert "__global__" in text
    assert "threadIdx.x" in text


@pytest.mark.parametrize("exporter, opt_level", [("torchscript", 0), ("dynamo", 3)])
@pytest.mark.parametrize("name", EXAMPLES)
def test_small_examples_build(name, exporter, opt_level):
    check_example(small_example(name, exporter), opt_level)


@pytest.mark.slow
@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_build(name, size, exporter, opt_level):
    check_example(to_onnx(name, exporter=exporter, size=size), opt_level)


def check_example(model, opt_level):
    compiled = convert_and_build(model, "cuda", opt_level=opt_level)
    assert not left_on_host(compiled)
    text = cuda.cuda_sources(compiled._executor.executable)
    assert text.count("__global__") > 10
    # Unrolled by the compiler of the GPU, not by ours: megabytes take it minutes.
    assert len(text) < 1 << 20


def test_a_recurrent_network_runs_on_a_block_of_threads():
    text = sources(GRAPHS["serial"], opt_level=3)
    kernels = re.findall(
        r"void [^\n]*\blstm\d*_kernel\w*\([^)]*\) {.*?^}", text, re.DOTALL | re.MULTILINE
    )
    # The units of a step are shared among threads, which wait for each other.
    assert any("threadIdx.x" in kernel and "__syncthreads" in kernel for kernel in kernels)


def test_each_step_of_a_large_recurrent_network_is_launched():
    # A block for each panel of 16 units.
    text = sources(GRAPHS["recurrent"], opt_level=3)
    step = r"void [^\n]*\blstm\d*_kernel\w*\([^)]*int64_t v\) {.*?blockIdx.x"
    assert re.search(step, text, re.DOTALL)


@pytest.mark.parametrize("channels, size", [(16, 224), (64, 192), (3, 112)])
def test_a_window_is_one_thread_s_whatever_the_sizes_are(channels, size):
    # TVM writes what is moved into a fused loop in other ways where extents share factors.
    text = sources(
        f"g (float[1, {channels}, {size}, {size}] x) => (float[1, {channels}, m, n] y)"
        "{ y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }",
        opt_level=3,
    )
    assert "__global__" in text and "__sync" not in text


def test_the_seed_failure_matmul_relu_without_threads():
    # At opt_level 3 the two linear layers without bias fuse with relu and sigmoid; TVM left the
    # kernel unbound: "Memory verification failed ... Did you forget to bind?". Newer versions
    # say nothing and leave it on the host.
    compiled = convert_and_build(parse(NETWORKS["se_block"]), "cuda", opt_level=3)
    assert not left_on_host(compiled)
    assert "matmul_relu" in cuda.cuda_sources(compiled._executor.executable)


def test_kernels_left_on_the_host_are_noticed(monkeypatch):
    monkeypatch.setattr(schedules, "rules", lambda *_: (TiledMatmul(),))
    compiled = convert_and_build(parse(NETWORKS["se_block"]), "cuda", opt_level=3)
    assert any("multiply" in name for name in left_on_host(compiled))


@NO_GPU
def test_running_without_a_gpu_is_one_clear_error():
    model = parse(NETWORKS["se_block"])
    compiled = convert_and_build(model, "cuda")
    for _ in range(2):
        with pytest.raises(TargetError, match="no CUDA device"):
            compiled.run(None, feeds_of(model))


def test_text_of_a_cpu_build_is_empty():
    compiled = convert_and_build(
        parse("g (float[n] x) => (seq(float[n]) y) { y = SequenceConstruct (x) }"), "llvm"
    )
    assert cuda.cuda_sources(compiled._executor.executable) == ""


def test_registers_belong_to_threads():
    # TVM's scans declare them before the launch: as arrays in memory, which all threads share.
    text = sources("g (float[m, n] x, int64 k) => (float[m, n] y) { y = CumSum (x, k) }")
    parameters = re.findall(r"\* __restrict__ (\w+)", text)
    assert parameters and not [name for name in parameters if name.startswith("_ptr")]
    assert re.search(r"int _ptr\[1\];", text)


class Gpu:
    """What compilation asks of the GPU here."""

    compute_version = "9.0"


FORMULAS = """
extern "C" __global__ void f(float* a) { a[0] = a[1] / a[2] + sqrtf(a[3]) + sinf(a[4]); }
"""

COMPILERS = {
    "nvcc": pytest.mark.skipif(cuda_compile._nvcc() is None, reason="needs nvcc"),
    "nvrtc": pytest.mark.skipif(cuda_compile._nvrtc() is None, reason="needs nvrtc"),
}
each_compiler = pytest.mark.parametrize(
    "compiler", [pytest.param(name, marks=mark) for name, mark in COMPILERS.items()]
)


@each_compiler
def test_kernels_are_compiled_without_fast_math(compiler, monkeypatch):
    monkeypatch.setattr(tvm, "cuda", lambda _: Gpu)
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", compiler)
    assert cuda_compile.compile_cuda(FORMULAS, "sm_90").startswith(b"\x7fELF")
    text = cuda_compile.compile_cuda(FORMULAS, "sm_80").decode()  # for another GPU: PTX
    assert ".target sm_80" in text
    assert "div.rn.f32" in text and "sqrt.rn.f32" in text
    assert not re.search(r"\b(div|sqrt|sin)\.approx", text)


def test_without_a_compiler_of_cuda_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(cuda_compile, "_nvcc", lambda: None)
    monkeypatch.setattr(cuda_compile, "_nvrtc", lambda: None)
    with pytest.raises(BuildError, match=r"tvm_ext\[cuda\]"):
        cuda_compile.compile_cuda(FORMULAS, "sm_90")


@each_compiler
def test_refused_text_has_a_reason(compiler, monkeypatch):
    monkeypatch.setattr(tvm, "cuda", lambda _: Gpu)
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", compiler)
    with pytest.raises(BuildError, match="error"):
        cuda_compile.compile_cuda("no text", "sm_90")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_nvcc_accepts_the_text(tmp_path):
    families = "rows", "reductions", "contractions", "half", "serial"
    graphs = [*(GRAPHS[family] for family in families), NETWORKS["classifier"]]
    files = [tmp_path / f"{k}.cu" for k in range(len(graphs))]
    for file, text in zip(files, graphs, strict=True):
        file.write_text(sources(text))
    code = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in (80, 90)]
    command = ["nvcc", "--fatbin", *code, *map(str, files)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    assert len(list(tmp_path.glob("*.fatbin"))) == len(files)


def test_values_named_by_numbers_give_identifiers():
    # As exporters name them: "1_ptr" is no identifier of C.
    add = onnx.helper.make_node("Add", ["0", "1"], ["2"])
    infos = [onnx.helper.make_tensor_value_info(name, 1, ["7n", 4]) for name in "012"]
    graph = onnx.helper.make_graph([add], "g", infos[:2], infos[2:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    text = cuda.cuda_sources(convert_and_build(model, "cuda")._executor.executable)
    assert not re.search(r"\b\d+[a-z]*_ptr", text)
    assert "v0_ptr" in text


@pytest.mark.parametrize("kind", ["float8e4m3fn", "float8e5m2fnuz"])
def test_no_address_of_a_constant_is_taken(kind):
    to = onnx.TensorProto.DataType.Value(kind.replace("float8", "FLOAT8").upper())
    text = sources(f"g (float[9] x) => ({kind}[9] y) {{ y = Cast <to = {to}> (x) }}")
    assert "&(v" in text and not re.search(r"&\(-?[\d.]", text)


def test_the_bits_of_a_constant_are_a_constant():
    text = sources("""g (float[3, 0] x) => (float[3] y) {
                        axis = Constant <value_ints = [1]> ()
                        y = ReduceMax <keepdims = 0> (x, axis)
                      }""")
    assert "CUDART_INF_F)" not in text


@pytest.mark.parametrize(
    "text",
    [
        "g (int32[5, 3] x, int32[3] y) => (int32[5, 3] z) { z = Pow (x, y) }",
        "g (float[5, 3] x) => (float[5, 3] z) { z = Bernoulli <seed = 2.0> (x) }",
        "g (float[n] x) => (float[n] z) { y = Cast <to = 18> (x) z = Cast <to = 1> (y) }",
    ],
)
def test_indices_of_threads_are_narrow_and_what_is_computed_of_them_is_not(text):
    assert "__global__" in sources(text)
    convert_and_build(parse(text), {"kind": "cuda", "arch": "sm_90"})
