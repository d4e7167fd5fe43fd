"""Which folder may import which: the direction of dependencies is the architecture."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Folder -> the parts of tvm_ext that its files may import, beside their own folder.
ALLOWED = {
    "frontend": {"checks", "errors", "ops", "interface", "strings"},
    "patches": {"frontend", "ops", "errors", "passes"},
    "tvm_ext/ops": set(),
    "tvm_ext/schedules": set(),
    "tvm_ext/passes": {"ops", "schedules"},
    "tvm_ext/executors": {"_version", "checks", "errors", "schedules", "strings"},
    "tvm_ext/export": {
        "_version",
        "build",
        "checks",
        "errors",
        "executors",
        "frontend",
        "interface",
        "keep",
        "model",
        "ops",
        "pipeline",
        "provenance",
        "targets",
    },
    "tvm_ext/tuning": {"_version", "display", "errors", "executors", "passes", "schedules"},
    "tvm_ext/emulator": {"build", "errors", "pipeline"},
    "tvm_ext/extend": {
        "build",
        "deadline",
        "display",
        "emulator",
        "errors",
        "export",
        "frontend",
        "passes",
        "pipeline",
        "places",
        "schedules",
        "targets",
        "verify",
    },
}
PACKAGE = {"frontend": "tvm_ext.frontend", "patches": "tvm_ext.patches"}


def modules(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path, package):
    """The absolute names of what a file imports from tvm_ext."""
    inside = path.relative_to(ROOT).with_suffix("").parts
    root = PACKAGE.get(inside[0], inside[0]).split(".")
    here = [*root, *inside[1:]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == package)


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_follow_the_architecture(folder):
    own = PACKAGE.get(folder, folder.replace("/", ".")).split(".")[1]
    found = modules(folder)
    assert found
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in found
        for name in imports(path, "tvm_ext")
        if name.split(".")[1] not in ALLOWED[folder] | {own}
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("heavy", ["torch", "onnxruntime", "matplotlib", "psutil", "re2", "PIL"])
def test_optional_packages_are_imported_where_used(heavy):
    """No module imports an extra when it is itself imported; a patch may import what it patches."""
    wrong = []
    for path in [*modules("tvm_ext"), *modules("frontend")]:
        tree = ast.parse(path.read_text())
        for node in tree.body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong += [str(path) for name in names if name.split(".")[0] == heavy]
    assert not wrong


# What a saved model must load without: the compiler, and what reads ONNX.
COMPILER = {"tvm", "tvm_ffi", "onnx", "onnx_ir", "onnxscript", "torch", "rich"}


def imported_with(path):
    """What is imported when the module at ``path`` is: absolute names, ours with all packages."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.parse(path.read_text()).body:  # not within functions, nor for type checkers
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def file_of(name):
    path = ROOT.joinpath(*name.split("."))
    found = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return found if found.exists() else None


def test_loading_a_saved_model_imports_no_compiler():
    seen, pending, wrong = set(), ["tvm_ext", "tvm_ext.model", "tvm_ext.executors.artifact"], []
    while pending:
        name = pending.pop()
        path = file_of(name)
        if path is None or path in seen:
            continue
        seen.add(path)
        for imported in imported_with(path):
            parts = imported.split(".")
            pending += [".".join(parts[:k]) for k in range(1, len(parts) + 1)]
            if parts[0] in COMPILER:
                wrong.append(f"{path.relative_to(ROOT)} imports {imported}")
    assert ROOT / "tvm_ext/executors/static.py" in seen
    assert not wrong, "\n".join(wrong)
