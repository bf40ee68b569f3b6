"""Prepares a one-shot Python program's process. The site module runs it before the program starts.

The interpreter runs the program itself, so it is ``__main__`` in every respect, and no frame of casemate is on its
stack. This file adds ``display``, makes matplotlib and IPython show pictures when they are imported, puts the working
directory on ``sys.path`` (casemate starts Python with ``-P``), and reports an uncaught exception at exit. Expensive
modules are imported only when needed.
"""

import atexit
import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_MODULES = os.path.join(os.path.dirname(_HERE), "modules")
_CONTROL = 3
_PATCHED_WHEN_IMPORTED = frozenset(("matplotlib.pyplot", "IPython.core.display_functions", "comm", "pandas"))


def display(*objects: object, **options: object) -> None:
    """Show each object in its richest forms (picture, HTML, Markdown and so on) and as text.

    The options are IPython's; ``raw=True`` means that the objects already are MIME bundles.
    """
    from _casemate.displays import show  # type: ignore[import-not-found]

    show(objects, options)


class LazyPatches:
    """A finder that only patches modules whose pictures must be shown."""

    @staticmethod
    def find_spec(name: str, path: "Sequence[str] | None" = None, target: object = None) -> "ModuleSpec | None":
        """Return the real finder's spec with a patch attached, for the few modules that need one, and casemate's own
        modules."""
        if name == "mcptools":
            return _spec_of_tools(name)
        if name not in _PATCHED_WHEN_IMPORTED:
            return None
        from _casemate.displays import patched_spec

        spec: ModuleSpec | None = patched_spec(name, path, target, LazyPatches)
        return spec


class PreloadedTools:
    """Loads the tools package that the warm interpreter has already imported."""

    def __init__(self, modules: "dict[str, ModuleType]") -> None:
        self._modules = modules

    def create_module(self, spec: "ModuleSpec") -> "ModuleType":
        """Return the preloaded package."""
        package = self._modules[spec.name]
        self._spec = package.__spec__
        return package

    def exec_module(self, module: "ModuleType") -> None:
        """Register the package's modules; other submodules come from the host."""
        module.__spec__ = self._spec
        sys.modules.update(self._modules)
        sys.modules[f"{module.__name__}._finding"].install()


def _spec_of_tools(name: str) -> "ModuleSpec | None":
    """Return the spec of the tools package.

    The preloaded package is handed out once. A program that imports it again gets it from its file.
    """
    ready = vars(sys.modules["_casemate"]).pop("ready", None)
    if ready is None:
        plain_spec: ModuleSpec | None = sys.modules["_frozen_importlib_external"].PathFinder.find_spec(name, [_MODULES])
        return plain_spec
    make: Any = type(sys.__spec__)  # ModuleSpec, without importing importlib
    spec: ModuleSpec = make(name, PreloadedTools(ready), origin=ready[name].__file__, is_package=True)
    return spec


def _leave_the_search_path() -> None:
    """Hide from the program and its children how this file was found."""
    if _HERE in sys.path:
        sys.path.remove(_HERE)
    if _MODULES in sys.path:
        sys.path.remove(_MODULES)  # only children need it
    for place in (_HERE, _MODULES):
        sys.path_importer_cache.pop(place, None)
    rest = [entry for entry in os.environ.pop("PYTHONPATH", "").split(os.pathsep) if entry and entry != _HERE]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)


def _open_package() -> None:
    """Make this folder importable as ``_casemate``, and remember which process owns the control pipe.

    A warm interpreter has the package already, with modules that were loaded before there was a pipe.
    """
    package = sys.modules.get("_casemate") or type(sys)("_casemate")
    package.__path__ = [_HERE]
    try:
        os.set_inheritable(_CONTROL, False)
        status = os.fstat(_CONTROL)
        control: object = (_CONTROL, status.st_dev, status.st_ino, os.getpid())
    except OSError:
        control = None
    vars(package).update(control=control, display=display)
    sys.modules["_casemate"] = package


def _report_uncaught() -> None:
    """Report the exception that ended the program, which the interpreter keeps."""
    error = vars(sys).get("last_value")
    if error is not None:
        try:
            from _casemate.channel import report_error  # type: ignore[import-not-found]

            report_error(error)
        except Exception:
            return  # the program may have broken what this needs; it still ends as in plain Python


def _prefer_workspace() -> None:
    """Make the run's input files importable, and send lines to the host as they are printed."""
    try:
        sys.path.insert(0, os.getcwd())
    except OSError:
        pass
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _use_installed_packages() -> None:
    if os.path.islink(os.environ.get("CASEMATE_CELL", "") + "/packages/python/current"):
        from _casemate.packages import use_installed  # type: ignore[import-not-found]

        use_installed()


def _run_the_environments_own() -> None:
    """Run the sitecustomize that this file hid, if any, since Python finds only one."""
    finder = sys.modules["_frozen_importlib_external"].PathFinder
    if finder.find_spec("sitecustomize") is not None:
        del sys.modules["sitecustomize"]
        __import__("sitecustomize")


_leave_the_search_path()
_open_package()
builtins.display = display  # type: ignore[attr-defined]
sys.meta_path.insert(0, LazyPatches)
atexit.register(_report_uncaught)
_use_installed_packages()
_run_the_environments_own()
_prefer_workspace()
