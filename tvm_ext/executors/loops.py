"""The driver of loops in the VM: one call of the body per trip, in constant memory."""

import json
from collections.abc import Sequence

import numpy as np
import tvm
import tvm_ffi

from ..errors import RunError
from .host import given, seen

__all__ = ["loop"]


@tvm_ffi.register_global_func("tvm_ext.loop", override=True)
def loop(context, first, body, trips, condition, state, empty, constant, node, without):
    """Run ``body(iteration, condition, *state, *constant)`` up to ``trips`` times, at first
    ``first``.

    A body returns (condition, *state, *results). Returns the final state, then each result
    stacked over the trips; ``empty`` holds what a result is after no trip. Errors name ``node``;
    ``without``, where it is not empty, is the error of no trip.
    """
    invoke = tvm.get_global_func("vm.builtin.invoke_closure")
    device = condition.device
    state, constant, empty = list(state), list(constant), list(empty)
    gathered: list[list[np.ndarray]] = [[] for _ in empty]
    going, limit, iteration = condition, int(seen(trips)), 0
    while iteration < limit and bool(seen(going)):
        position = given(np.array(iteration, "int64"), device)
        trip = body if iteration else first
        going, *values = invoke(context, trip, position, going, *state, *constant)
        state = values[: len(state)]
        for parts, value in zip(gathered, values[len(state) :], strict=True):
            parts.append(seen(value))
        iteration += 1
    if iteration == 0 and json.loads(without):
        raise RunError(json.loads(without))
    stacked = [
        given(_stacked(parts, json.loads(node)), device) if parts else none
        for parts, none in zip(gathered, empty, strict=True)
    ]
    return [*state, *stacked]


def _stacked(parts: Sequence[np.ndarray], node: str) -> np.ndarray:
    for trip, part in enumerate(parts):
        if part.shape != parts[0].shape:
            first, other = list(parts[0].shape), list(part.shape)
            raise RunError(f"{node}trip 0 gives {first} to be stacked, trip {trip} {other}")
    return np.stack(parts)
