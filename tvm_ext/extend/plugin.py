"""Loading plugins: all of a file is registered, or nothing.

Whatever a plugin registers puts its undoing on the plugin's stack. A file that raises is rolled
back by that stack; :meth:`Plugin.unload` does the same later.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import PluginError
from ..frontend import TABLE
from ..frontend.table import Converter, Key

if TYPE_CHECKING:
    from .compound import Compound
    from .operator import Operator

__all__ = [
    "INTERACTIVE",
    "PLUGINS",
    "Plugin",
    "current",
    "load",
    "load_installed",
    "restore",
    "unload",
]

_GROUP = "tvm_ext.plugins"


class Plugin:
    """What one file or package registers: operators, compounds, steps of the pipeline."""

    def __init__(self, name: str, content: str = ""):
        self.name = name
        self.content = content
        self.operators: list[Operator] = []
        self.compounds: list[Compound] = []
        self.steps: dict[str, ExitStack] = {}  # name -> what takes it back
        self.undo = ExitStack()

    def unload(self) -> None:
        """Take back everything; models that are built keep working."""
        self.undo.close()
        self.operators.clear()
        self.compounds.clear()
        self.steps.clear()

    def __repr__(self) -> str:
        declared = [*map(str, self.operators), *map(str, self.compounds), *self.steps]
        return f"Plugin({self.name}: {', '.join(declared) or 'nothing'})"


#: What is loaded, by resolved path or module name.
PLUGINS: dict[str, Plugin] = {}

#: Declarations outside of any load, as in a notebook or a test, belong to this one.
INTERACTIVE = Plugin("interactive")
_loading: list[Plugin] = []
_loaded_groups: set[str] = set()


def current() -> Plugin:
    """The plugin that is being loaded; the interactive one where none is."""
    return _loading[-1] if _loading else INTERACTIVE


def load(source: object) -> Plugin:
    """Load a plugin: the path of a Python file, a module's dotted name, or an entry point's name.

    A second load of the same content gives the plugin that is there. Plugins are code: load only
    what you would run.

    Raises:
        PluginError: the file is missing, raises, contradicts what is registered, or has changed
            since it was loaded. Nothing of it stays registered.
    """
    if not isinstance(source, str | os.PathLike) or not str(source):
        raise PluginError(f"a plugin is a path, a module or an entry point, not {source!r}")
    installed = {point.name: point for point in entry_points(group=_GROUP)}
    name = str(source)
    if name in installed:
        return _load_module(installed[name].module)
    if Path(name).suffix == ".py" or Path(name).exists() or os.sep in name:
        return _load_file(Path(name))
    return _load_module(name)


def unload(source: object) -> None:
    """Take back what :func:`load` registered for ``source``; models that are built keep working.

    Raises:
        PluginError: it is not loaded.
    """
    name = str(source)
    for known in (name, str(Path(name).resolve())):
        if known in PLUGINS:
            PLUGINS[known].unload()
            return
    raise PluginError(f"plugin {name} is not loaded; there are {', '.join(PLUGINS) or 'none'}")


def load_installed() -> None:
    """Load, once, the plugins of installed packages (entry points ``tvm_ext.plugins``).

    One that fails is a warning: it must not stop the models that do not need it.
    """
    if _GROUP in _loaded_groups:
        return
    _loaded_groups.add(_GROUP)  # first, because a plugin may ask for a pipeline
    for point in sorted(entry_points(group=_GROUP), key=_name):
        try:
            _load_module(point.module)
        except PluginError as error:
            warnings.warn(f"installed plugin {point.name!r} is left out: {error}", stacklevel=2)


def _name(point: EntryPoint) -> str:
    return point.name


def _load_file(path: Path) -> Plugin:
    path = path.resolve()
    try:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise PluginError(f"cannot read plugin {path}: {error.strerror or error}") from error
    if str(path) in PLUGINS:
        return _unchanged(PLUGINS[str(path)], content)
    name = f"tvm_ext_plugin_{path.stem}_{content[:8]}"
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # a loader is given

    def execute() -> None:
        module = sys.modules[name] = module_from_spec(spec)
        loader.exec_module(module)

    plugin = Plugin(str(path), content)
    _execute(plugin, execute, name)
    return plugin


def _load_module(name: str) -> Plugin:
    if name in PLUGINS:
        return PLUGINS[name]
    if not all(part.isidentifier() for part in name.split(".")):
        raise PluginError(f"{name!r} is neither a file nor the name of a module")
    if name in sys.modules:
        raise PluginError(f"module {name} was imported before it was loaded as a plugin")
    plugin = Plugin(name)
    _execute(plugin, lambda: importlib.import_module(name), name)
    return plugin


def _unchanged(plugin: Plugin, content: str) -> Plugin:
    if plugin.content != content:
        raise PluginError(
            f"{plugin.name} has changed since it was loaded: "
            "first tvm_ext.extend.unload() what is there"
        )
    return plugin


def _execute(plugin: Plugin, execute: Callable[[], object], module: str) -> None:
    """Run the plugin's code; register ``plugin``, or take back what it did and say why."""
    plugin.undo.callback(PLUGINS.pop, plugin.name, None)
    plugin.undo.callback(_forget, module)
    before = dict(TABLE)
    _loading.append(plugin)
    try:
        execute()
        PLUGINS[plugin.name] = plugin
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a file may raise SystemExit, too
        raise PluginError(f"plugin {_blame(plugin, module, error)}") from error
    finally:
        _loading.pop()
        # Converters may have been registered without :func:`~tvm_ext.extend.operator`.
        changed = [key for key, value in TABLE.items() if before.get(key) is not value]
        plugin.undo.callback(restore, {key: before.get(key) for key in changed})
        if plugin.name not in PLUGINS:
            plugin.unload()


def restore(converters: Mapping[Key, Converter | None]) -> None:
    """Put rows of the converter table back to what they were; None: there was none."""
    for key, previous in converters.items():
        if previous is None:
            TABLE.pop(key, None)
        else:
            TABLE[key] = previous


def _forget(module: str) -> None:
    for name in [n for n in sys.modules if n == module or n.startswith(f"{module}.")]:
        del sys.modules[name]


def _blame(plugin: Plugin, module: str, error: BaseException) -> str:
    """The last line of the plugin that was running, and the error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] == module.partition(".")[0]
    ]
    where = lines[-1] if lines else plugin.name
    reason = str(error).strip().split("\n")[0]
    if isinstance(error, PluginError):  # which may name the line itself
        return f"{where}: {reason.removeprefix(f'{where}: ')}"
    return f"{where}: {type(error).__name__}{f': {reason}' if reason else ''}"
