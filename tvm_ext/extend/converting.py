"""Calls of a plugin's converter: what it may return, and whose fault a failure is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx.defs import OpSchema
from tvm import relax

from ..errors import TvmExtError
from ..frontend.builder import Builder
from ..frontend.refusal import summary
from ..places import place, raised_at

__all__ = ["converted"]


def converted(
    function: Callable[..., object],
    bb: Builder,
    inputs: Sequence[relax.Expr | None],
    attributes: Mapping[str, object],
    schema: OpSchema,
) -> tuple[relax.Expr, ...]:
    """What the converter ``function`` emits, one expression per output.

    It may return a call that it has not emitted, and a tensor of TVM's tuples for several outputs.

    Raises:
        NotImplementedError: its own reason; or what else it raised, or returned, with the line.
    """
    where = place(function.__code__)
    try:
        results = function(bb, *inputs, **attributes)
    except (NotImplementedError, TvmExtError):
        raise
    except (Exception, SystemExit) as error:
        reason = summary(error) if isinstance(error, Exception) else repr(error)
        raise NotImplementedError(f"{raised_at(error, where)}: {reason}") from error
    given: list[relax.Expr] = []
    for result in results if isinstance(results, tuple | list) else [results]:
        if not isinstance(result, relax.Expr):
            raise NotImplementedError(f"{where}: the converter returned {type(result).__name__}")
        given.append(bb.emit(result) if isinstance(result, relax.Call) else result)
    if len(given) == 1 and schema.max_output > 1 and isinstance(given[0].ty, relax.TupleType):
        count = len(given[0].ty.fields)
        given = [bb.emit(relax.TupleGetItem(given[0], k)) for k in range(count)]
    if not schema.min_output <= len(given) <= schema.max_output:
        wanted = f"{schema.min_output} to {schema.max_output}"
        wanted = str(schema.min_output) if schema.min_output == schema.max_output else wanted
        raise NotImplementedError(
            f"{where}: the converter returned {len(given)} outputs, the schema has {wanted}"
        )
    return tuple(given)
