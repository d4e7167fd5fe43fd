"""Which folder may import which: the direction of dependencies is the architecture."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Folder -> the parts of tvm_ext that its files may import, beside their own folder.
ALLOWED = {
    "frontend": {"ops", "errors"},
    "patches": {"frontend", "ops", "errors", "passes"},
    "tvm_ext/ops": set(),
    "tvm_ext/schedules": set(),
    "tvm_ext/passes": {"ops", "schedules"},
    "tvm_ext/executors": {"errors", "schedules"},
    "tvm_ext/emulator": {"build", "errors"},
    "tvm_ext/extend": {
        "build",
        "display",
        "emulator",
        "errors",
        "frontend",
        "passes",
        "pipeline",
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


@pytest.mark.parametrize("heavy", ["torch", "onnxruntime", "matplotlib", "psutil"])
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
