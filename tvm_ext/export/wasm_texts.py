"""What a package for WebAssembly has besides C: what runs the compiled example."""

__all__ = ["runner"]


def runner() -> str:
    """``main.mjs``: runs ``main.wasm``, or the program that its argument names, under Node."""
    return _RUNNER


_RUNNER = """\
// Runs the example, compiled as main.wasm or as the first argument says, in this folder:
//   node main.mjs
import { readFile } from "node:fs/promises";
import { argv, exit } from "node:process";
import { WASI } from "node:wasi";

const program = argv[2] ?? "main.wasm";
const wasi = new WASI({
  version: "preview1",
  args: [program, ...argv.slice(3)],
  preopens: { ".": "." },
  returnOnExit: true,
});
const module = await WebAssembly.compile(await readFile(program));
const instance = await WebAssembly.instantiate(module, wasi.getImportObject());
exit(wasi.start(instance));
"""
