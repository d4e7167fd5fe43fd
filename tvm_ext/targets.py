"""Targets: from what a user writes to a ``tvm.target.Target`` with exact features."""

import json
import re

import tvm
from tvm.target import Target, codegen
from tvm_ffi import Array

from .errors import TargetError
from .executors.cpu import CpuNeeds
from .executors.cpu_features import masked_features, triple_of
from .executors.threads import threads

__all__ = ["MACHINES", "host_target", "levels", "resolve"]

_KINDS = "llvm", "cuda"
_LISTS = "keys", "libs", "mattr"
_SYSTEMS = "linux", "none", "wasi"

# The least that Linux on such a machine has; -v adds vectors of 128 bits or more.
_RISCV = {"mtriple": "riscv64-unknown-linux-gnu", "mabi": "lp64d"}
_RISCV_FEATURES = ["+m", "+a", "+f", "+d", "+c"]
_X86 = "x86_64-unknown-linux-gnu"
_WASM = {"mtriple": "wasm32-unknown-wasi", "num-cores": 1}
_ARMV7 = {"mtriple": "armv7a-unknown-linux-gnueabihf", "mfloat-abi": "hard"}

# Machines by name, as TVM knows them; schedules share loops among so many cores.
MACHINES: dict[str, dict[str, object]] = {
    **{f"x86-64-v{k}": {"mtriple": _X86, "mcpu": f"x86-64-v{k}"} for k in (2, 3, 4)},
    "aarch64": {"mtriple": "aarch64-unknown-linux-gnu", "mattr": ["+neon"]},
    "armv7": {**_ARMV7, "mattr": ["+neon"]},
    "riscv64": {**_RISCV, "mattr": _RISCV_FEATURES},
    "riscv64-v": {**_RISCV, "mattr": [*_RISCV_FEATURES, "+v"]},
    "wasm32": {**_WASM, "mattr": ["+simd128"], "vector-width": 128},
}
_CORES = 4


def host_target(cores: int | None = None) -> Target:
    """This CPU, with its exact features; ``cores`` are by default those that TVM's pool uses."""
    cpu = tvm.get_global_func("target.llvm_get_system_cpu", allow_missing=True)
    spec = {"kind": "llvm", "num-cores": cores or threads()}
    if cpu is not None:
        spec["mcpu"] = str(cpu())
    masked = masked_features(Target(spec))
    return Target(spec | {"mattr": [f"-{name}" for name in masked]} if masked else spec)


def levels(target: object) -> list[object]:
    """The targets that ``target`` stands for, the best first.

    >>> levels("x86-64-v2+v3+v4")
    ['x86-64-v4', 'x86-64-v3', 'x86-64-v2']
    """
    if not isinstance(target, str) or not re.fullmatch(r"x86-64-v\d(\+v\d)+", target):
        return [target]
    wanted = target.removeprefix("x86-64-").split("+")
    return [f"x86-64-{level}" for level in sorted(set(wanted), reverse=True)]


def resolve(target: object = "auto", cores: int | None = None) -> Target:
    """The TVM target that ``target`` means.

    ``"auto"`` is cuda where a GPU is, else this CPU; ``"llvm"`` is this CPU with its exact
    features, and so is a TVM target that names no CPU; ``"cuda"`` is the GPU here, or sm_80 where
    there is none (it builds, it cannot run); one of :data:`MACHINES` is any such machine, with
    Linux where that is not WebAssembly (``"aarch64"`` or ``"aarch64-linux"``). Anything else is
    given to ``tvm.target.Target``: a tag, a kind, a JSON dict, or options as TVM once wrote them
    (``"llvm -mcpu=core-avx2"``). Loops are shared among its ``num-cores``; where it has none, among
    ``cores``, or as many as TVM's pool uses here.

    Raises:
        TargetError: TVM does not know the target, or tvm_ext has no kernels for its kind.
    """
    if len(levels(target)) > 1:
        raise TargetError(f"{target!r} is for packages (tvm-ext export): choose one level")
    if target == "auto":
        target = "cuda" if tvm.cuda(0).exist else "llvm"
    if target == "llvm":
        return host_target(cores)
    if target == "cuda":
        arch = (
            f"sm_{tvm.cuda(0).compute_version.replace('.', '')}" if tvm.cuda(0).exist else "sm_80"
        )
        target = {"kind": "cuda", "arch": arch}
    if isinstance(target, str) and target.removesuffix("-linux") in MACHINES:
        machine = MACHINES[target.removesuffix("-linux")]
        target = {"kind": "llvm", "num-cores": cores or _CORES, **machine}
    try:
        resolved = target if isinstance(target, Target) else Target(_described(target))
    except (ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise TargetError(
            f"unknown target {target!r}; use 'auto', 'llvm', 'cuda', {', '.join(MACHINES)}, or a "
            f"TVM target (tag, kind or dict): {str(error).strip().splitlines()[-1]}"
        ) from error
    if resolved.kind.name not in _KINDS:
        raise TargetError(
            f"no kernels for targets of kind {resolved.kind.name!r}; use one of {list(_KINDS)}"
        )
    if resolved.kind.name == "cuda" and not resolved.host:
        return resolved.with_host(host_target())
    cpu = _completed(resolved if resolved.kind.name == "llvm" else resolved.host, cores)
    _check_cpu(cpu, target)
    return cpu if resolved.kind.name == "llvm" else resolved.with_host(cpu)


def _completed(cpu: Target, cores: int | None) -> Target:
    """``cpu`` with what was left open: which CPU, how many cores, and a vendor in its triple."""
    spec = {name: _plain(v) for name, v in cpu.attrs.items() if not name.startswith("feature.")}
    triple = triple_of(cpu)
    if triple == codegen.llvm_get_system_triple():
        spec.pop("mtriple", None)  # TVM adds it to "llvm" alone
        if spec.get("mcpu", "native") == "native" and "mattr" not in spec:
            host = host_target(cores).attrs
            spec |= {name: _plain(host[name]) for name in ("mcpu", "mattr") if name in host}
    elif len(parts := triple.split("-")) > 1 and parts[1] in _SYSTEMS:
        # LLVM takes the second part for the vendor. With the system in that place, 32-bit ARM
        # calls functions by a convention that libgcc's lack.
        spec["mtriple"] = "-".join([parts[0], "unknown", *parts[1:]])
    spec.setdefault("num-cores", cores or _cores(triple))
    return Target({"kind": "llvm", "keys": list(cpu.keys), **spec})


def _cores(triple: str) -> int:
    """How many cores a machine has, where nobody says."""
    if CpuNeeds(triple, ()).foreign:
        return 1 if {"none", "wasi"} & set(triple.split("-")) else _CORES
    return threads()


def _plain(value: object) -> object:
    return list(value) if isinstance(value, Array) else value


def _check_cpu(cpu: Target, given: object) -> None:
    """LLVM answers what it does not know with a warning and other code, or with a crash."""
    name, triple = str(cpu.attrs.get("mcpu", "generic")), triple_of(cpu)
    if not tvm.get_global_func("target.llvm_is_valid_cpu")(name, triple):
        raise TargetError(f"unknown target {given!r}: LLVM has no CPU {name!r} for {triple!r}")
    wanted = {str(f).lstrip("+-") for f in cpu.attrs.get("mattr", ())}
    # LLVM lists what is on: features that are to be off are turned on for the question.
    asked = {"kind": "llvm", "mcpu": name, "mtriple": triple, "mattr": [f"+{f}" for f in wanted]}
    unknown = sorted(wanted - codegen.llvm_get_cpu_features(Target(asked)))
    if unknown:
        raise TargetError(f"unknown target {given!r}: {triple!r} has no features {unknown}")
    if int(cpu.attrs.get("num-cores", 1)) < 1:
        raise TargetError(f"unknown target {given!r}: num-cores is at least 1")


def _described(target: object) -> object:
    """A target string with options as the dict that TVM reads now."""
    if not isinstance(target, str):
        return target
    if target.startswith("{"):
        return json.loads(target)
    kind, *options = target.split() or [""]
    if not options:
        return target
    spec: dict[str, object] = {"kind": kind}
    for option in options:
        name, _, value = option.lstrip("-").partition("=")
        if not option.startswith("-") or not name:
            raise ValueError(f"cannot read the option {option!r}")
        spec[name] = _value(name, value)
    return spec


def _value(name: str, text: str) -> object:
    if name in _LISTS:
        return text.split(",")
    if text in ("", "true", "false", "True", "False"):
        return text in ("", "true", "True")
    return int(text) if text.lstrip("-").isdigit() else text
