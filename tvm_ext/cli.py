"""The command line: ``tvm-ext build``, ``run``, ``compare``, ``inspect``, ``new-op``, ...

Results go to stdout. One of our errors is one line on stderr and exit code 2; an interrupt is 130.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ._version import __version__
from .errors import ConversionError, TvmExtError

__all__ = ["main"]

_EXAMPLES = {
    "build": """\
  tvm-ext build model.onnx -o model.tvmx
  tvm-ext build model.onnx -o model.tvmx --shape batch=8 --opt-level 2
  tvm-ext build model.onnx -o model.tvmx --target '{"kind": "llvm", "mcpu": "x86-64-v3"}'
  tvm-ext build model.onnx -o model.tvmx --tune records --tune-trials 32 --tune-seconds 600""",
    "export": """\
  tvm-ext export model.onnx -o resnet50 --shape batch=1
  tvm-ext export model.onnx -o resnet50 --format c++ --weights file
  tvm-ext export model.onnx -o resnet50 --target aarch64
  tvm-ext export model.onnx -o resnet50 --sizes batch=1,4,8
  tvm-ext export model.onnx -o resnet50 --shape batch=1 --format c-source""",
    "run": """\
  tvm-ext run model.onnx
  tvm-ext run model.tvmx --input image=image.npy --output-dir results""",
    "compare": """\
  tvm-ext compare model.onnx
  tvm-ext compare model.onnx --batch 8 --threads 1 --plot comparison.png""",
    "profile": "  tvm-ext profile model.onnx --shape batch=1",
    "inspect": """\
  tvm-ext inspect model.onnx --format json
  tvm-ext inspect model.so
  tvm-ext inspect model.onnx --passes
  tvm-ext inspect model.onnx --dump-after FuseTIR""",
    "cache": "  tvm-ext cache\n  tvm-ext cache --clear",
    "ops": "  tvm-ext ops\n  tvm-ext ops --format markdown > operators.md",
    "new-op": """\
  tvm-ext new-op ScaledTanh --domain com.acme
  tvm-ext new-op --compound acme.bias_relu""",
    "check-op": "  tvm-ext check-op my_op.py\n  tvm-ext check-op my_op.py --format json",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    args = _parser().parse_args(argv)
    _write_any_text()
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # what it warns of is refused, or fine
    try:
        from . import commands  # imports TVM, which --help and a wrong option need not wait for

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


class _Named(argparse.Action):
    """Collects NAME=VALUE pairs; a name is given once."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        pairs = getattr(namespace, self.dest)
        if values[0] in dict(pairs):
            raise argparse.ArgumentError(self, f"{values[0]!r} is given twice")
        setattr(namespace, self.dest, [*pairs, values])


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as for every other error."""
        self.exit(2, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "tvm-ext",
        description="Compile, run and examine ONNX models with TVM.",
        epilog="examples:\n" + "\n".join(text.splitlines()[0] for text in _EXAMPLES.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=f"examples:\n{_EXAMPLES[name]}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    build = command("build", "Compile a model and save the result.")
    export = command("export", "Write a model as a C or C++ package that needs nothing of ours.")
    run = command("run", "Run a model once and describe its outputs.")
    compare = command("compare", "Compare with onnxruntime: accuracy, latency, memory.")
    profile = command("profile", "Time every kernel of a model.")
    inspect = command("inspect", "Describe a model and name every unsupported node.")
    cache = command("cache", "Show the folder of compiled models, or clear it.")
    ops = command("ops", "Print which operators are supported, by version.")
    new_op = command("new-op", "Write a plugin for a new operator, and its test.")
    check_op = command("check-op", "Check what a plugin declares; exit code 1 where a check fails.")

    for sub in (build, export, run, compare, profile, inspect):
        takes = "an ONNX file" if sub in (build, compare) else "an ONNX or a built file"
        sub.add_argument("model", type=Path, metavar="MODEL", help=takes)
        sub.add_argument(
            "--opt-level",
            type=int,
            choices=range(4),
            default=3,
            help="0 (straight conversion) to 3 (default)",
        )
        sub.add_argument(
            "--precision",
            metavar="TYPE",
            help="fp32 (default), or bf16 in products and convolutions, on CPUs with AVX512_BF16",
        )
        sub.add_argument(
            "--shape",
            type=_shape,
            action=_Named,
            default=[],
            metavar="NAME=SIZES",
            help="size of a symbolic dim (batch=8) or shape of an input "
            "(x=1,3,224,224; ? keeps a dim; x=8, has rank 1)",
        )
    for sub in (build, export, run, compare, profile, inspect, ops):
        sub.add_argument(
            "--plugin",
            action="append",
            default=[],
            metavar="FILE",
            help="a Python file or module that declares operators or passes; it is run",
        )
    for sub in (build, export, run, compare, profile, inspect):
        sub.add_argument(
            "--target",
            type=_target,
            default="auto",
            help="auto, llvm, cuda, a machine (x86-64-v2, -v3, -v4, aarch64, armv7, riscv64, "
            "riscv64-v, wasm32), a TVM tag, or a TVM target in JSON",
        )
    for sub in (build, export, run, profile, inspect):
        sub.add_argument(
            "--without",
            action="append",
            default=[],
            metavar="NAME",
            help="leave out a compound operator or another pass",
        )
    for sub in (build, run, profile):
        sub.add_argument(
            "--no-cache",
            action="store_true",
            help="compile even if the cache has this model, and leave the cache alone",
        )
    for sub in (build, export):
        sub.add_argument(
            "--keep",
            type=Path,
            metavar="DIR",
            help="also write there what the build makes: Relax and TIR after each phase, LLVM IR, "
            "assembly, C, the memory plan as JSON and as a picture",
        )
    for sub in (run, profile):
        sub.add_argument(
            "--input",
            type=_file,
            action=_Named,
            default=[],
            metavar="NAME=FILE",
            help="a .npy, .npz or .pb file; inputs not given are random",
        )
        sub.add_argument("--seed", type=int, default=0, help="of the random inputs (default 0)")
    for sub, choices in (
        (compare, ("table", "json")),
        (profile, ("table", "json")),
        (inspect, ("text", "json")),
        (ops, ("text", "markdown", "json")),
        (check_op, ("table", "json")),
    ):
        sub.add_argument("--format", choices=choices, default=choices[0])

    build.add_argument(
        "--verify",
        choices=("each-pass",),
        help="run the program after every pass and stop at the first that changes the answer",
    )
    build.add_argument(
        "--tune",
        type=Path,
        metavar="DIR",
        help="build kernels as the records in DIR found them to be fastest, and say what that "
        "adds; the cache is left alone",
    )
    build.add_argument(
        "--tune-trials",
        type=int,
        default=0,
        metavar="N",
        help="measure N candidates of each kernel that DIR lacks, and keep the records there",
    )
    build.add_argument("--tune-seconds", type=float, metavar="S", help="measure so long at most")
    build.add_argument(
        "--tune-kernels", type=int, metavar="N", help="only the N kernels that take longest"
    )
    build.add_argument(
        "--tune-on",
        type=_device,
        metavar="KEY@HOST:PORT",
        help="measure on the machine KEY of TVM's RPC tracker at HOST:PORT, not here",
    )
    inspect.add_argument("--passes", action="store_true", help="print the passes in their order")
    inspect.add_argument(
        "--dump-after", metavar="PASS", help="print the model or module as PASS leaves it"
    )
    inspect.add_argument("--time-passes", action="store_true", help="print the time of each pass")
    cache.add_argument("--clear", action="store_true", help="remove all compiled models from it")
    new_op.add_argument("name", metavar="NAME", help="the operator's name, as in ScaledTanh")
    kind = new_op.add_mutually_exclusive_group(required=True)
    kind.add_argument("--domain", help="of the operator, as in com.acme")
    kind.add_argument(
        "--compound",
        action="store_true",
        help="of a compound operator: acme.bias_relu",
    )
    new_op.add_argument("--output-dir", type=Path, default=Path("."), help="where to write")
    check_op.add_argument("plugin_file", metavar="FILE", help="a Python file or module; it is run")
    export.add_argument("-o", "--output", type=Path, required=True, help="a new folder")
    export.add_argument("--format", choices=("c", "c++", "c-source"), default="c")
    export.add_argument(
        "--openmp", action="store_true", help="mark loops of c-source that threads may share"
    )
    export.add_argument(
        "--sizes",
        type=_sizes,
        action=_Named,
        default=[],
        metavar="NAME=SIZE,...",
        help="sizes of a symbolic dim (batch=1,4,8), of which callers choose at each run",
    )
    export.add_argument(
        "--weights",
        choices=("embedded", "file"),
        default="embedded",
        help="in the libraries (default), or in a file beside them",
    )
    export.add_argument(
        "--single-thread", action="store_true", help="do without pthreads, as wasm32 always does"
    )
    export.add_argument("--name", help="of the model in C (default: that of its file)")
    build.add_argument("-o", "--output", type=Path, required=True, help="where to save")
    run.add_argument(
        "--output-dir",
        type=Path,
        help="write each output there as NAME.npy; characters that a file cannot have become _",
    )
    compare.add_argument("--threads", type=int, help="threads of both sides (default: all cores)")
    compare.add_argument(
        "--against", default="onnxruntime", help="onnxruntime (default), or onnx's reference"
    )
    compare.add_argument("--batch", type=int, help="size of the first dim of every input")
    compare.add_argument("--plot", type=Path, help="also draw the comparison into this file")
    return parser


def _shape(text: str) -> tuple[str, int | list[int | None]]:
    name, _, sizes = text.rpartition("=")
    if not name or not re.fullmatch(r"(\d+|\?)(,(\d+|\?))*,?", sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SIZE or NAME=SIZE,SIZE,...")
    if sizes.isdigit():
        return name, int(sizes)
    return name, [None if size == "?" else int(size) for size in sizes.split(",") if size]


def _sizes(text: str) -> tuple[str, list[int]]:
    name, _, sizes = text.rpartition("=")
    if not name or not re.fullmatch(r"\d+(,\d+)*", sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SIZE,SIZE,...")
    return name, [int(size) for size in sizes.split(",")]


def _device(text: str) -> tuple[str, str]:
    key, _, tracker = text.rpartition("@")
    if not key or not re.fullmatch(r".+:\d+", tracker):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY@HOST:PORT")
    return tracker, key


def _target(text: str) -> object:
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not valid JSON: {error}") from error


def _file(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE")
    return name, Path(path)
