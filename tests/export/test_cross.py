"""Packages for other machines: run under qemu or Node, they answer what onnxruntime does."""

import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import tvm_ext
from tests.onnxruntime_oracle import run_onnxruntime
from tvm_ext import targets
from tvm_ext.cli import main
from tvm_ext.errors import BuildError, TargetError
from tvm_ext.executors import cpu, toolchain

STRICT = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror"]
RVV = ["qemu-riscv64", "-cpu", "rv64,v=true,vlen=128,vext_spec=v1.0"]


@dataclass(frozen=True)
class Machine:
    """How programs for a target are compiled and run here."""

    target: str
    compiler: str
    emulator: tuple[str, ...] = ()

    def need_tools(self):
        for tool in (self.compiler, *self.emulator[:1]):
            if not (find_spec(tool) if tool == "ziglang" else shutil.which(tool)):
                pytest.skip(f"needs {tool}")

    @property
    def wasm(self):
        return self.target == "wasm32"

    def compile(self, folder, source):
        """The program that ``source`` of ``folder`` makes with the static library there."""
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-wasi"]
        links = [] if self.wasm else ["-lpthread", "-static"]
        program = source.replace(".c", ".wasm" if self.wasm else "")
        command = [*(zig if self.wasm else [self.compiler]), *STRICT, "-I.", source]
        library = next(path.name for path in folder.glob("lib*.a"))
        subprocess.run([*command, library, "-lm", *links, "-o", program], cwd=folder, check=True)
        return program

    def run(self, folder, program, *arguments, feed=b""):
        command = [*self.emulator, f"./{program}", *arguments]
        return subprocess.run(command, cwd=folder, input=feed, capture_output=True, timeout=120)


NODE = Machine("wasm32", "ziglang", ("node", "--no-warnings", "main.mjs"))
MACHINES = [
    Machine("aarch64", "aarch64-linux-gnu-gcc", ("qemu-aarch64",)),
    Machine("armv7", "arm-linux-gnueabihf-gcc", ("qemu-arm",)),
    Machine("riscv64", "riscv64-linux-gnu-gcc", ("qemu-riscv64",)),
    Machine("x86-64-v2", "x86_64-linux-gnu-gcc"),
    NODE,
]
AARCH64, ARMV7, RISCV64 = MACHINES[:3]
VECTORS = Machine("riscv64-v", "riscv64-linux-gnu-gcc", tuple(RVV))
each_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.target)

# Reads the inputs from stdin, one after the other, and writes the outputs to stdout.
PIPE = r"""
#include "net.h"
#include <stdio.h>
#include <stdlib.h>

static void *memory(size_t bytes) { return aligned_alloc(64, bytes / 64 * 64 + 64); }

int main(int argc, char **argv) {
  tvmx_model *model;
  if (net_create(&model, argc > 1 ? argv[1] : NULL) != TVMX_OK) {
    fprintf(stderr, "%s\n", tvmx_error());
    return 1;
  }
  tvmx_input in[NET_INPUTS + 1];
  tvmx_output out[NET_OUTPUTS + 1];
  for (size_t k = 0; k < NET_INPUTS; k++) {
    size_t bytes = net_inputs(NULL)[k].bytes;
    void *data = memory(bytes);
    if (fread(data, 1, bytes, stdin) != bytes) return 2;
    in[k] = (tvmx_input){data, bytes};
  }
  for (size_t k = 0; k < NET_OUTPUTS; k++) {
    size_t bytes = net_outputs(NULL)[k].bytes;
    out[k] = (tvmx_output){memory(bytes), bytes};
  }
  size_t bytes = net_workspace_bytes();
  void *workspace = memory(bytes);
  if (net_run(model, in, NET_INPUTS, out, NET_OUTPUTS, workspace, bytes) != TVMX_OK) return 3;
  for (size_t k = 0; k < NET_OUTPUTS; k++) fwrite(out[k].data, 1, out[k].bytes, stdout);
  return 0;
}
"""
SUM = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
sum (float[7] x) => (float[7] y) <float[7] w = {1, 2, 3, 4, 5, 6, 7}> { y = Add(x, w) }""")

DOUBLE = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
double (float[n] x) => (float[n] y) { y = Add(x, x) }""")


def kernels():
    """Odd shapes of what schedules tile: convolutions, products, attention, reductions."""
    random = np.random.default_rng(0)
    nodes, constants = [], []

    def node(op_type, *inputs, **attributes):
        nodes.append(helper.make_node(op_type, inputs, [f"v{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def const(*shape):
        array = (random.standard_normal(shape) / np.sqrt(shape[-1])).astype("float32")
        constants.append(numpy_helper.from_array(array, f"c{len(constants)}"))
        return constants[-1].name

    same = {"pads": [1, 1, 1, 1]}
    conv = node("Relu", node("Conv", "image", const(17, 5, 3, 3), const(17), **same))
    depth = node("Conv", conv, const(17, 1, 3, 3), group=17, strides=[2, 2], **same)
    wide = node("Sigmoid", node("Conv", depth, const(32, 17, 1, 1), const(32)))
    again = node("Add", node("Conv", wide, const(32, 32, 3, 3), **same), wide)
    pooled = node("Flatten", node("GlobalAveragePool", again))
    classes = node("Softmax", node("Gemm", pooled, const(11, 32), const(11), transB=1))
    keys = node("Gather", const(13, 24), "tokens")
    scaled = node("Mul", keys, node("Cast", node("Unsqueeze", "tokens", "last"), to=1))
    scores = node("MatMul", scaled, node("Transpose", keys, perm=[0, 2, 1]))
    mixed = node("MatMul", node("Softmax", scores), keys)
    normal = node("LayerNormalization", mixed, const(24), const(24), axis=-1)
    hidden = node("Tanh", node("MatMul", normal, const(24, 33)))
    whole = node("Cast", node("Mul", hidden, const(1)), to=7)
    constants.append(numpy_helper.from_array(np.array([-1]), "last"))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "kernels",
        [value("image", 1, [1, 5, 15, 13]), value("tokens", 7, [2, 7])],
        [
            value(again, 1, [1, 32, 8, 7]),
            value(classes, 1, [1, 11]),
            value(hidden, 1, [2, 7, 33]),
            value(whole, 7, [2, 7, 33]),
        ],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds_of(model, largest=13):
    random = np.random.default_rng(1)
    feeds = {}
    for info in model.graph.input:
        shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        floats = info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        array = random.standard_normal(shape) if floats else random.integers(largest, size=shape)
        feeds[info.name] = array.astype("float32" if floats else "int64")
    return feeds


def check(machine, model, folder, **options):
    """Export ``model``, let the package check itself, and compare it with onnxruntime."""
    machine.need_tools()
    tvm_ext.export(model, folder, target=machine.target, name="net", **options)
    done = machine.run(folder, machine.compile(folder, "main.c"))
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.endswith(b"correct\n")
    (folder / "pipe.c").write_text(PIPE)
    feeds = feeds_of(model)
    weights = [path.name for path in folder.glob("net.bin")]
    program = machine.compile(folder, "pipe.c")
    feed = b"".join(array.tobytes() for array in feeds.values())
    done = machine.run(folder, program, *weights, feed=feed)
    assert done.returncode == 0, done.stderr.decode()
    output = done.stdout
    for want in run_onnxruntime(model, feeds):
        got, output = np.frombuffer(output[: want.nbytes], want.dtype), output[want.nbytes :]
        np.testing.assert_allclose(got.reshape(want.shape), want, 1e-4, 1e-4)
    assert output == b""


@pytest.fixture(autouse=True)
def zig_cache(monkeypatch):
    """Where ziglang keeps what it built of libc, which takes it half a minute."""
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(Path.home() / ".cache" / "zig"))


@each_machine
def test_answers_are_those_of_onnxruntime(machine, tmp_path):
    check(machine, kernels(), tmp_path / "out", weights="file")


@each_machine
def test_batches_in_strips(machine, tmp_path):
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        pools (float[4, 16, 1, 98] x) => (float[4, 16, 1, 1] y) {
            r = Concat <axis = 2> (x, x, x, x, x, x, x, x, x, x)
            a = Concat <axis = 2> (r, r, r, r, r, r, r, r, r, r)
            b = MaxPool <kernel_shape = [3, 3]> (a)
            c = MaxPool <kernel_shape = [3, 3]> (b)
            y = GlobalMaxPool (c)
        }""")
    built = tvm_ext.convert_and_build(model, machine.target)
    assert sum("_strip" in kernel.symbol for kernel in built.executor.plan.kernels) >= 3
    check(machine, model, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("machine", [*MACHINES, VECTORS], ids=lambda machine: machine.target)
@pytest.mark.parametrize(
    "name", ["resnet50", "mobilenetv2", "bert_base", "vit_b16", "fast_neural_style", "lstm"]
)
def test_examples_on_other_machines(machine, name, tmp_path):
    to_onnx = pytest.importorskip("examples.export").to_onnx
    check(machine, to_onnx(name, size="small"), tmp_path / "out")


# A target that needs more than the emulated CPU has, what it lacks, and a CPU that has it.
LACKING = {
    "aarch64": (AARCH64, ["+dotprod"], ["-cpu", "cortex-a53"], "dotprod", ["-cpu", "max"]),
    "armv7": (ARMV7, ["+vfp4"], ["-cpu", "cortex-a9"], "vfp4", ["-cpu", "cortex-a15"]),
    "riscv64": (RISCV64, ["+v"], [], "v", VECTORS.emulator[1:]),
    "x86-64": (Machine("x86-64-v3", "gcc", ("qemu-x86_64",)), [], ["-cpu", "Nehalem"], "avx", []),
}


@pytest.mark.parametrize("name", LACKING)
def test_a_cpu_that_lacks_instructions_is_told(name, tmp_path):
    machine, more, old, lacks, new = LACKING[name]
    machine.need_tools()
    spec = targets.MACHINES[machine.target]
    spec = {"kind": "llvm", **spec, **({"mattr": [*spec["mattr"], *more]} if more else {})}
    folder = tvm_ext.export(SUM, tmp_path / "out", target=spec, name="net")
    program = machine.compile(folder, "main.c")
    told = replace(machine, emulator=(*machine.emulator, *old)).run(folder, program)
    assert told.returncode == 1
    assert told.stderr.decode() == f"net: built for a CPU with {lacks}, which this one lacks\n"
    if name != "x86-64":  # the emulator has no AVX2 before version 7.2
        done = replace(machine, emulator=(*machine.emulator, *new)).run(folder, program)
        assert done.returncode == 0, done.stderr


def test_the_c_runtime_sees_what_linux_lists(tmp_path):
    listed = cpu._host_features()
    if not listed:
        pytest.skip("needs Linux on a known machine")
    asked = "".join(f'"{name}", ' for name in listed)
    (tmp_path / "asks.c").write_text(f"""
#include "tvmx_model.h"
#include <stdio.h>
int main(void) {{
  const char *names[] = {{{asked}}};
  for (size_t k = 0; k < sizeof names / sizeof *names; k++) {{
    const char *const one[] = {{names[k], NULL}};
    printf("%s %d\\n", names[k], !tvmx_cpu_lacks(one));
  }}
  return 0;
}}""")
    folder = Path(tvm_ext.export.__file__).parent / "runtime"
    command = [*toolchain.compiler(), *STRICT, f"-I{folder}", f"-I{toolchain.RUNTIME}"]
    sources = [tmp_path / "asks.c", folder / "tvmx_cpu.c"]
    subprocess.run([*command, *sources, "-o", tmp_path / "asks"], check=True)
    text = subprocess.run([tmp_path / "asks"], capture_output=True, text=True, check=True).stdout
    seen = {name: flag == "1" for name, flag in map(str.split, text.splitlines())}
    always = "sse", "sse2", "cmov"  # which no x86-64 lacks
    assert {name: there for name, there in seen.items() if name not in always} == {
        name: there for name, there in listed.items() if name not in always
    }


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "arm", "riscv64"])
def test_the_c_runtime_knows_what_python_does(machine):
    """What it does not know it takes to be there."""
    text = (Path(tvm_ext.export.__file__).parent / "runtime" / "tvmx_cpu.c").read_text()
    always = {"sse", "sse2", "cmov"}
    assert {name for name in cpu._FLAGS[machine] if f'{{"{name}",' not in text} <= always


@pytest.mark.parametrize(
    "machine, text, has, lacks",
    [
        ("aarch64", "Features\t: fp asimd atomics asimddp sve", "neon dotprod sve lse", "bf16"),
        ("arm", "Features\t: half thumb neon vfpv3 vfpv4 vfpd32", "neon vfp4 d32", ""),
        ("arm", "Features\t: half thumb vfpv3 vfpv3d16", "vfp3", "neon vfp4 d32"),
        ("riscv64", "hart\t: 0\nisa\t\t: rv64imafdcv_zicsr", "a c d f m v", ""),
        ("riscv64", "isa : rv64imafdc_zvkb", "m c", "v"),
    ],
)
def test_what_other_machines_list(machine, text, has, lacks):
    listed = cpu._listed(f"processor\t: 0\n{text}\n", machine)
    assert all(listed[name] for name in has.split())
    assert not any(listed[name] for name in lacks.split())


@pytest.mark.parametrize("machine", [AARCH64, ARMV7, RISCV64], ids=lambda machine: machine.target)
def test_a_saved_model_of_another_machine(machine, tmp_path):
    machine.need_tools()
    model = tvm_ext.convert_and_build(SUM, f"{machine.target}-linux")
    model.save(tmp_path / "m.so")
    kinds = {"aarch64": 183, "armv7": 40, "riscv64": 243}  # ELF's e_machine
    kind = int.from_bytes((tmp_path / "m.so").read_bytes()[18:20], "little")
    assert kind == kinds[machine.target]
    with pytest.raises(TargetError, match=r"was built for .*-linux-gnu.*; this machine is"):
        tvm_ext.load(tmp_path / "m.so")
    with pytest.raises(TargetError, match="build it for target='llvm' here, or run it there"):
        tvm_ext.export(model, tmp_path / "out")


def test_a_saved_model_with_symbolic_dims_of_another_machine(tmp_path):
    AARCH64.need_tools()
    tvm_ext.convert_and_build(DOUBLE, "aarch64").save(tmp_path / "m.so")
    assert (tmp_path / "m.so").read_bytes()[18:20] == bytes([183, 0])
    with pytest.raises(TargetError, match=r"was built for aarch64-.*; this machine is"):
        tvm_ext.load(tmp_path / "m.so")


def compile_the_class(folder, *options):
    """Compile the example of a C++ package of ``SUM``, where there are no exceptions."""
    NODE.need_tools()
    tvm_ext.export(SUM, folder, "c++", target="wasm32", name="net")
    command = [sys.executable, "-m", "ziglang", "c++", "-target", "wasm32-wasi", "-fno-exceptions"]
    subprocess.run([*command, "-I.", "session.cpp", *options], cwd=folder, check=True)


def test_the_class_compiles_for_webassembly(tmp_path):
    """How it runs without exceptions, ``test_c.py`` sees on this machine."""
    compile_the_class(tmp_path / "out", "-c", "-o", "session.o")
    assert (tmp_path / "out" / "session.o").read_bytes().startswith(b"\0asm")


@pytest.mark.slow  # ziglang builds its C++ library first
def test_the_class_in_webassembly(tmp_path):
    folder = tmp_path / "out"
    compile_the_class(folder, "libnet.a", "-lm", "-o", "session.wasm")
    run = [*NODE.emulator, "./session.wasm"]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.endswith("correct\n"), done.stderr


@pytest.mark.parametrize("model", ["static", "symbolic"])
def test_webassembly_has_no_shared_libraries(model, tmp_path):
    model = tvm_ext.convert_and_build({"static": SUM, "symbolic": DOUBLE}[model], "wasm32")
    with pytest.raises(BuildError, match="no shared libraries: export the model as a C package"):
        model.save(tmp_path / "m.so")


def test_shared_libraries_of_another_machine(tmp_path):
    AARCH64.need_tools()
    folder = tvm_ext.export(SUM, tmp_path / "out", target="aarch64", name="net")
    command = [AARCH64.compiler, *STRICT, "main.c", "-L.", "-lnet", "-o", "main"]
    subprocess.run(command, cwd=folder, check=True)
    sysroot = ["-L", "/usr/aarch64-linux-gnu", "-E", f"LD_LIBRARY_PATH={folder}"]
    done = replace(AARCH64, emulator=("qemu-aarch64", *sysroot)).run(folder, "main")
    assert done.stdout.endswith(b"correct\n"), done.stderr


@pytest.mark.slow  # ziglang builds glibc's stubs first
def test_ziglang_takes_the_place_of_the_systems_compiler(tmp_path, monkeypatch):
    AARCH64.need_tools()
    pytest.importorskip("ziglang")
    monkeypatch.setattr(toolchain, "_system_tool", lambda *_: None)
    check(AARCH64, kernels(), tmp_path / "out")


@pytest.mark.parametrize(
    "target, text",
    [
        ("aarch64", r"install aarch64-linux-gnu-gcc .*or ziglang \(pip install 'tvm_ext\[cross\]'"),
        ("armv7", "arm-linux-gnueabihf-gcc"),
        ("riscv64-linux", "gcc-riscv64-linux-gnu"),
        ("wasm32", r"wasi: install ziglang \(pip"),
    ],
)
def test_a_missing_compiler_is_named(target, text, tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, "_system_tool", lambda *_: None)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BuildError, match=text):
        tvm_ext.export(SUM, tmp_path / "out", target=target)
    if target != "wasm32":
        with pytest.raises(BuildError, match=text):
            tvm_ext.convert_and_build(SUM, target).save(tmp_path / "m.so")
    assert not list(tmp_path.iterdir())


def test_triples_name_a_vendor():
    """LLVM takes the second part for it: then 32-bit ARM would call what libgcc lacks."""
    arm = targets.resolve("llvm -mtriple=armv7a-linux-gnueabihf -mfloat-abi=hard -num-cores=2")
    assert arm.attrs["mtriple"] == "armv7a-unknown-linux-gnueabihf"
    assert (arm.attrs["mfloat-abi"], int(arm.attrs["num-cores"])) == ("hard", 2)
    whole = targets.resolve({"kind": "llvm", "mtriple": "aarch64-pc-linux-gnu"})
    assert whole.attrs["mtriple"] == "aarch64-pc-linux-gnu"


def test_names_of_machines():
    assert targets.resolve("aarch64-linux").attrs == targets.resolve("aarch64").attrs
    assert int(targets.resolve("aarch64", cores=2).attrs["num-cores"]) == 2
    assert int(targets.resolve("wasm32").attrs["num-cores"]) == 1
    with pytest.raises(TargetError, match="aarch64, armv7, riscv64, riscv64-v, wasm32, or a TVM"):
        targets.resolve("aarch65")


def convolution():
    weight = np.random.default_rng(2).standard_normal((32, 5, 3, 3)).astype("float32")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "convolution",
        [value("x", 1, [1, 5, 9, 9])],
        [value("y", 1, [1, 32, 7, 7])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


PACKED = r"""
#include "net.h"
#include <stdio.h>
int main(void) {
  tvmx_model *model;
  if (net_create(&model, "net.bin") != TVMX_OK) return puts(tvmx_error()), 1;
  net_print_initializers();
  return 0;
}
"""


def test_a_library_for_several_levels_picks_one_where_it_runs(tmp_path):
    if platform.machine() != "x86_64":
        pytest.skip("needs an x86-64 machine")
    folder = tmp_path / "out"
    old, new, older = (
        Machine("x86-64-v2+v3", "gcc", ("qemu-x86_64", "-cpu", name))
        for name in ("Nehalem", "Haswell", "core2duo")
    )
    check(old, convolution(), folder, weights="file")
    (folder / "packed.c").write_text(PACKED)
    program = old.compile(folder, "packed.c")
    lines = [machine.run(folder, program).stdout.decode() for machine in (old, new, older)]
    assert lines[0].endswith(", 8]\n"), lines  # two vectors of four channels
    assert lines[1].endswith(", 16]\n"), lines  # two of eight
    assert lines[2] == "net: built for a CPU with popcnt, which this one lacks\n"
    assert targets.levels("x86-64-v2+v3+v4") == ["x86-64-v4", "x86-64-v3", "x86-64-v2"]
    assert targets.levels("x86-64-v3") == ["x86-64-v3"]
    with pytest.raises(TargetError, match="for packages"):
        tvm_ext.convert_and_build(SUM, "x86-64-v2+v3")


def test_without_threads(tmp_path):
    onnx.save(SUM, tmp_path / "net.onnx")
    folder = tmp_path / "out"
    command = ["export", str(tmp_path / "net.onnx"), "-o", str(folder), "--single-thread"]
    assert main(command) == 0
    assert "Threads" not in (folder / "CMakeLists.txt").read_text()
    assert "pthread" not in (folder / "net.pc").read_text()
    names = subprocess.run(
        ["nm", folder / "libnet.a"], capture_output=True, text=True, check=True
    ).stdout
    assert "tvmx_set_threads" in names and "pthread" not in names
    build = [*toolchain.compiler(), *STRICT, "main.c", "libnet.a", "-lm", "-o", "main"]
    subprocess.run(build, cwd=folder, check=True)
    done = subprocess.run([folder / "main"], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("correct\n")
