"""The commands of ``tvm-ext`` and their options; nothing here waits for TVM."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ._version import __version__

__all__ = ["parser"]

_EXAMPLES = {
    "build": """\
  tvm-ext build model.onnx -o model.tvmx
  tvm-ext build model.onnx -o model.tvmx --shape batch=8 --opt-level 2
  tvm-ext build model.onnx -o model.tvmx --target '{"kind": "llvm", "mcpu": "x86-64-v3"}'
  tvm-ext build model.onnx -o model.tvmx --shape batch=1 --tune records --tune-trials 32""",
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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as for every other error."""
        self.exit(2, f"{self.prog}: {message}\n")


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


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; ``command`` is the name of the command."""
    whole = _Parser(
        "tvm-ext",
        description="Compile, run and examine ONNX models with TVM.",
        epilog="examples:\n" + "\n".join(text.splitlines()[0] for text in _EXAMPLES.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (summary, add_options) in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=f"examples:\n{_EXAMPLES[name]}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_options(command)
    return whole


# --- the options of each command ---------------------------------------------------------------


def _build(command: argparse.ArgumentParser) -> None:
    _add_model(command, "an ONNX file")
    _add_without(command)
    _add_no_cache(command)
    _add_keep(command)
    command.add_argument(
        "--verify",
        choices=("each-pass",),
        help="run the program after every pass and stop at the first that changes the answer",
    )
    _add_tuning(command)
    command.add_argument("-o", "--output", type=Path, required=True, help="where to save")


def _export(command: argparse.ArgumentParser) -> None:
    _add_model(command, "an ONNX or a built file")
    _add_without(command)
    _add_keep(command)
    command.add_argument("-o", "--output", type=Path, required=True, help="a new folder")
    _add_format(command, "c", "c++", "c-source")
    command.add_argument(
        "--openmp", action="store_true", help="mark loops of c-source that threads may share"
    )
    command.add_argument(
        "--sizes",
        type=_sizes,
        action=_Named,
        default=[],
        metavar="NAME=SIZE,...",
        help="sizes of a symbolic dim (batch=1,4,8), of which callers choose at each run",
    )
    command.add_argument(
        "--weights",
        choices=("embedded", "file"),
        default="embedded",
        help="in the libraries (default), or in a file beside them",
    )
    command.add_argument(
        "--single-thread", action="store_true", help="do without pthreads, as wasm32 always does"
    )
    command.add_argument("--name", help="of the model in C (default: that of its file)")


def _run(command: argparse.ArgumentParser) -> None:
    _add_model(command, "an ONNX or a built file")
    _add_without(command)
    _add_no_cache(command)
    _add_inputs(command)
    command.add_argument(
        "--output-dir",
        type=Path,
        help="write each output there as NAME.npy; characters that a file cannot have become _",
    )


def _compare(command: argparse.ArgumentParser) -> None:
    _add_model(command, "an ONNX file")
    _add_format(command, "table", "json")
    command.add_argument("--threads", type=int, help="threads of both sides (default: all cores)")
    command.add_argument(
        "--against",
        default="onnxruntime",
        metavar="ENGINE",
        help="onnxruntime (default), openvino, openvino-bf16, or reference, which is onnx's",
    )
    command.add_argument("--batch", type=int, help="size of the first dim of every input")
    command.add_argument("--plot", type=Path, help="also draw the comparison into this file")


def _profile(command: argparse.ArgumentParser) -> None:
    _add_model(command, "an ONNX or a built file")
    _add_without(command)
    _add_no_cache(command)
    _add_inputs(command)
    _add_format(command, "table", "json")


def _inspect(command: argparse.ArgumentParser) -> None:
    _add_model(command, "an ONNX or a built file")
    _add_without(command)
    _add_format(command, "text", "json")
    command.add_argument("--passes", action="store_true", help="print the passes in their order")
    command.add_argument(
        "--dump-after", metavar="PASS", help="print the model or module as PASS leaves it"
    )
    command.add_argument("--time-passes", action="store_true", help="print the time of each pass")


def _cache(command: argparse.ArgumentParser) -> None:
    command.add_argument("--clear", action="store_true", help="remove all compiled models from it")


def _ops(command: argparse.ArgumentParser) -> None:
    _add_plugin(command)
    _add_format(command, "text", "markdown", "json")


def _new_op(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the operator's name, as in ScaledTanh")
    kind = command.add_mutually_exclusive_group(required=True)
    kind.add_argument("--domain", help="of the operator, as in com.acme")
    kind.add_argument(
        "--compound", action="store_true", help="of a compound operator: acme.bias_relu"
    )
    command.add_argument("--output-dir", type=Path, default=Path("."), help="where to write")


def _check_op(command: argparse.ArgumentParser) -> None:
    _add_format(command, "table", "json")
    command.add_argument("plugin_file", metavar="FILE", help="a Python file or module; it is run")


_COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "build": ("Compile a model and save the result.", _build),
    "export": ("Write a model as a C or C++ package that needs nothing of ours.", _export),
    "run": ("Run a model once and describe its outputs.", _run),
    "compare": ("Compare with onnxruntime: accuracy, latency, memory.", _compare),
    "profile": ("Time every kernel of a model.", _profile),
    "inspect": ("Describe a model and name every unsupported node.", _inspect),
    "cache": ("Show the folder of compiled models, or clear it.", _cache),
    "ops": ("Print which operators are supported, by version.", _ops),
    "new-op": ("Write a plugin for a new operator, and its test.", _new_op),
    "check-op": ("Check what a plugin declares; exit code 1 where a check fails.", _check_op),
}


# --- options that several commands have --------------------------------------------------------


def _add_model(command: argparse.ArgumentParser, takes: str) -> None:
    """The model, and how it is compiled."""
    command.add_argument("model", type=Path, metavar="MODEL", help=takes)
    command.add_argument(
        "--opt-level",
        type=int,
        choices=range(4),
        default=3,
        help="0 (straight conversion) to 3 (default)",
    )
    command.add_argument(
        "--precision",
        metavar="TYPE",
        help="fp32 (default); bf16 in products and convolutions, on CPUs with AVX512_BF16; a8: "
        "what weights of few bits are multiplied with is rounded to 8 bits, on CPUs with VNNI",
    )
    command.add_argument(
        "--shape",
        type=_shape,
        action=_Named,
        default=[],
        metavar="NAME=SIZES",
        help="size of a symbolic dim (batch=8) or shape of an input "
        "(x=1,3,224,224; ? keeps a dim, a name renames it; x=8, has rank 1)",
    )
    _add_plugin(command)
    command.add_argument(
        "--target",
        type=_target,
        default="auto",
        help="auto, llvm, cuda, a machine (x86-64-v2, -v3, -v4, aarch64, armv7, riscv64, "
        "riscv64-v, wasm32), a TVM tag, or a TVM target in JSON",
    )


def _add_plugin(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file or module that declares operators or passes; it is run",
    )


def _add_without(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="leave out a compound operator or another pass",
    )


def _add_no_cache(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--no-cache",
        action="store_true",
        help="compile even if the cache has this model, and leave the cache alone",
    )


def _add_keep(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="also write there what the build makes: Relax and TIR after each phase, LLVM IR, "
        "assembly, C, the memory plan as JSON and as a picture",
    )


def _add_inputs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--input",
        type=_file,
        action=_Named,
        default=[],
        metavar="NAME=FILE",
        help="a .npy, .npz or .pb file; inputs not given are random",
    )
    command.add_argument("--seed", type=int, default=0, help="of the random inputs (default 0)")


def _add_format(command: argparse.ArgumentParser, *choices: str) -> None:
    command.add_argument("--format", choices=choices, default=choices[0])


def _add_tuning(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--tune",
        type=Path,
        metavar="DIR",
        help="build kernels as the records in DIR found them to be fastest, and say what that "
        "adds; the cache is left alone",
    )
    command.add_argument(
        "--tune-trials",
        type=int,
        default=0,
        metavar="N",
        help="measure N candidates of each kernel that DIR lacks, and keep the records there",
    )
    command.add_argument("--tune-seconds", type=float, metavar="S", help="measure so long at most")
    command.add_argument(
        "--tune-kernels", type=int, metavar="N", help="only the N kernels that take longest"
    )
    command.add_argument(
        "--tune-on",
        type=_device,
        metavar="KEY@HOST:PORT",
        help="measure on the machine KEY of TVM's RPC tracker at HOST:PORT, not here",
    )


# --- the values of options ---------------------------------------------------------------------


def _shape(text: str) -> tuple[str, int | list[int | str | None]]:
    name, _, sizes = text.rpartition("=")
    one = r"(\d+|\?|[A-Za-z_]\w*)"
    if not name or not re.fullmatch(rf"{one}(,{one})*,?", sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SIZE or NAME=SIZE,SIZE,...")
    if sizes.isdigit():
        return name, int(sizes)
    given = (size for size in sizes.split(",") if size)
    return name, [None if s == "?" else int(s) if s.isdigit() else s for s in given]


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
