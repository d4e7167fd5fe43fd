"""Targets as Relay gave them: as text with options, with the host as a second one."""

from collections.abc import Mapping

import tvm

from tvm_ext import targets

__all__ = ["Target", "cuda", "device_kind", "parse"]


def parse(target: object, host: object = None) -> tvm.target.Target:
    """The TVM target of whatever ``convert_and_build`` takes.

    Raises:
        TargetError: TVM does not know the target or one of its options.
    """
    if isinstance(target, Mapping) and len(target) == 1 and "kind" not in target:
        (target,) = target.values()  # as Relay took it: {"cpu": "llvm"}
    resolved = targets.resolve(target)
    return resolved if host is None else resolved.with_host(parse(host))


class Target:
    """``tvm.target.Target``: makes TVM's targets out of what Relay's scripts write."""

    current = staticmethod(tvm.target.Target.current)

    def __new__(cls, target: object, host: object = None) -> tvm.target.Target:
        return parse(target, host)


def cuda(model: str = "unknown", arch: str | None = None) -> tvm.target.Target:
    """``tvm.target.cuda()``; the model has no meaning any more."""
    return parse("cuda" if arch is None else f"cuda -arch={arch}")


def device_kind(name: object) -> str:
    """The kind of device of a device's name or of a target: "cpu" for llvm."""
    text = str(name)
    kind = parse(text).kind.name if text.startswith("{") else text.split()[0]
    return "cpu" if kind in ("llvm", "c") else kind
