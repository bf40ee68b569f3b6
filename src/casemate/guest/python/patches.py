"""Pictures of matplotlib and IPython reach the control pipe: patched when they are imported, never before."""

import sys

import _casemate  # type: ignore[import-not-found]
from _casemate.channel import is_open  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def patched_spec(name: str, path: "Sequence[str] | None", target: object, asking: object) -> "ModuleSpec | None":
    """What the other finders say of ``name``; its loader will patch the module once, after running it."""
    spec = _found(name, path, target, asking)
    loader: Any = getattr(spec, "loader", None)
    if loader is None or not hasattr(loader, "exec_module"):
        return spec
    run = loader.exec_module

    def run_and_patch(module: "ModuleType") -> None:
        del loader.exec_module
        run(module)
        try:
            _PATCHES[name](module)
        except Exception as error:
            print(f"casemate: pictures of {name} cannot be shown: {error!r}", file=sys.stderr)

    loader.exec_module = run_and_patch
    return spec


def _found(name: str, path: "Sequence[str] | None", target: object, asking: object) -> "ModuleSpec | None":
    for finder in sys.meta_path:
        find: Any = getattr(finder, "find_spec", None)
        if finder is asking or find is None:
            continue
        spec: ModuleSpec | None = find(name, path, target)
        if spec is not None:
            return spec
    return None


def _patch_pyplot(pyplot: "Any") -> None:
    """``plt.show()`` and ``figure.show()`` send what they show and close it, as a window is closed."""
    show_windows = pyplot.show
    show_window = pyplot.Figure.show

    def show(*args: "Any", **kwargs: "Any") -> "Any":
        if not is_open():
            return show_windows(*args, **kwargs)
        managers = sys.modules["matplotlib._pylab_helpers"].Gcf.get_all_fig_managers()
        _casemate.display(*(manager.canvas.figure for manager in managers))
        return pyplot.close("all")

    def show_one(figure: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        if figure.canvas.manager is None or not is_open():
            return show_window(figure, *args, **kwargs)
        _casemate.display(figure)
        return pyplot.close(figure)

    pyplot.show = _like(show, show_windows)
    pyplot.Figure.show = _like(show_one, show_window)


def _patch_display_functions(module: "Any") -> None:
    """IPython's ``display`` shows things here, unless the program runs an IPython shell of its own."""
    show_in_shell = module.display

    def show(*objects: "Any", **options: "Any") -> "Any":
        shell = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
        if (shell is not None and shell.initialized()) or not is_open():
            return show_in_shell(*objects, **options)
        return _casemate.display(*objects, **options)

    module.display = _like(show, show_in_shell)


def _like(function: "Callable[..., Any]", original: "Any") -> "Callable[..., Any]":
    from functools import update_wrapper

    return update_wrapper(function, original)


_PATCHES: "dict[str, Callable[[Any], None]]" = {
    "matplotlib.pyplot": _patch_pyplot,
    "IPython.core.display_functions": _patch_display_functions,
}
