"""Targets as Relay wrote them: ``"llvm -mcpu=core-avx2 -mattr=+fma"``."""

import json

from tvm.target import Target

from tvm_ext import targets
from tvm_ext.errors import TargetError

__all__ = ["parse"]

_LISTS = ("keys", "libs", "mattr")


def parse(target: object, host: object = None) -> Target:
    """The TVM target of a string of that era, or of anything ``convert_and_build`` takes.

    Raises:
        TargetError: TVM does not know the target or one of its options.
    """
    resolved = targets.resolve(_described(target))
    return resolved if host is None else resolved.with_host(parse(host))


def _described(target: object) -> object:
    """A target string with options as the dict that TVM reads now."""
    if not isinstance(target, str):
        return target
    if target.startswith("{"):
        return json.loads(target)
    kind, *options = target.split()
    if not options:
        return target
    spec: dict[str, object] = {"kind": kind}
    for option in options:
        name, _, value = option.lstrip("-").partition("=")
        if not option.startswith("-") or not name:
            raise TargetError(f"cannot read {option!r} in target {target!r}")
        spec[name] = _value(name, value)
    return spec


def _value(name: str, text: str) -> object:
    if name in _LISTS:
        return text.split(",")
    if text in ("", "true", "false", "True", "False"):
        return text in ("", "true", "True")
    return int(text) if text.lstrip("-").isdigit() else text
