"""Targets as Relay gave them: with the host as a second one."""

from collections.abc import Mapping

from tvm.target import Target

from tvm_ext import targets

__all__ = ["parse"]


def parse(target: object, host: object = None) -> Target:
    """The TVM target of whatever ``convert_and_build`` takes.

    Raises:
        TargetError: TVM does not know the target or one of its options.
    """
    if isinstance(target, Mapping) and len(target) == 1 and "kind" not in target:
        (target,) = target.values()  # as Relay took it: {"cpu": "llvm"}
    resolved = targets.resolve(target)
    return resolved if host is None else resolved.with_host(parse(host))
