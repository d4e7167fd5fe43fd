"""The command line: ``tvm-ext build``, ``run``, ``compare``, ``inspect``, ``new-op``, ...

Results go to stdout. One of our errors is one line on stderr and exit code 2; an interrupt is 130.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from .errors import ConversionError, TvmExtError
from .options import parser

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    args = parser().parse_args(argv)
    _write_any_text()
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # what it warns of is refused, or fine
    try:
        with _ended_by_interrupts(args):
            from . import commands  # imports TVM, for which --help and a wrong option do not wait

        commands.load_plugins(getattr(args, "plugin", ()))
        code = getattr(commands, args.command.replace("-", "_"))(args) or 0
        sys.stdout.flush()
        return code
    except TvmExtError as error:
        return _fail(args, _one_line(error))
    except KeyboardInterrupt:
        return _fail(args, "interrupted", 130)
    except BrokenPipeError:  # the reader of our stdout left, as in `tvm-ext ops | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # such as a full disk under our stdout
        return _fail(args, f"cannot write the output: {error.strerror or error}")


@contextmanager
def _ended_by_interrupts(args: argparse.Namespace) -> Iterator[None]:
    """Within it, an interrupt ends the process at once.

    C++ of packages that are imported, which imports others, forgets exceptions or aborts.
    """

    def end(_signal: int, _frame: FrameType | None) -> None:
        try:
            _fail(args, "interrupted")
            sys.stderr.flush()
        finally:
            os._exit(130)

    plain = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ours = plain and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _write_any_text() -> None:
    """Names of files and nodes that the terminal's encoding lacks are escaped."""
    for stream in sys.stdout, sys.stderr:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fail(args: argparse.Namespace, message: str, code: int = 2) -> int:
    print(f"tvm-ext {args.command}: {message}", file=sys.stderr)
    return code


def _one_line(error: TvmExtError) -> str:
    if isinstance(error, ConversionError) and len(error.nodes) > 1:
        return (
            f"cannot convert {len(error.nodes)} nodes (tvm-ext inspect lists them), "
            f"the first: {error.nodes[0]}"
        )
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())


if __name__ == "__main__":  # python -m tvm_ext.cli is tvm-ext, too
    sys.exit(main())
