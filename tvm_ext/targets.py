"""Targets: from what a user writes to a ``tvm.target.Target`` with exact features."""

import tvm
from tvm.target import Target

from .errors import TargetError
from .executors.threads import threads

__all__ = ["host_target", "resolve"]


def host_target(cores: int | None = None) -> Target:
    """This CPU, with its exact features; ``cores`` are by default those that TVM's pool uses."""
    cpu = tvm.get_global_func("target.llvm_get_system_cpu", allow_missing=True)
    spec = {"kind": "llvm", "num-cores": cores or threads()}
    if cpu is not None:
        spec["mcpu"] = str(cpu())
    return Target(spec)


def resolve(target: object = "auto", cores: int | None = None) -> Target:
    """The TVM target that ``target`` means.

    ``"auto"`` is cuda where a GPU is, else this CPU; ``"llvm"`` is this CPU with its exact
    features; ``"cuda"`` is the GPU here, or sm_80 where there is none (it builds, it cannot
    run). Anything else is given to ``tvm.target.Target``: a tag, a kind, a JSON dict.

    Raises:
        TargetError: TVM does not know the target.
    """
    if isinstance(target, Target):
        return target if target.kind.name != "cuda" or target.host else _with_host(target)
    if target == "auto":
        target = "cuda" if tvm.cuda(0).exist else "llvm"
    if target == "llvm":
        return host_target(cores)
    if target == "cuda":
        arch = (
            f"sm_{tvm.cuda(0).compute_version.replace('.', '')}" if tvm.cuda(0).exist else "sm_80"
        )
        return _with_host(Target({"kind": "cuda", "arch": arch}))
    try:
        return resolve(Target(target), cores)
    except (ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise TargetError(
            f"unknown target {target!r}; use 'auto', 'llvm', 'cuda', or a TVM target "
            f"(tag, kind or dict): {str(error).strip().splitlines()[-1]}"
        ) from error


def _with_host(target: Target) -> Target:
    return target.with_host(host_target())
