"""Implements ``display``: sends the MIME bundle of any object to the host.

matplotlib and IPython are patched when they are imported, never before.
"""

import binascii
import builtins
import sys

import _casemate  # type: ignore[import-not-found]
from _casemate.channel import FRAME_LIMIT, encode, is_open, send  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_METHODS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("application/pdf", "_repr_pdf_"),
    ("application/json", "_repr_json_"),
    ("application/javascript", "_repr_javascript_"),
)
# An object with this method has every attribute (a mock or a proxy), so its methods mean nothing.
_CANARY = "_repr_of_no_object_"


def bundle_of(value: object) -> "dict[str, object]":
    """Collect all representations of ``value``, ``text/plain`` among them. Failures are reported on stderr."""
    own = _without_metadata(_call_method(value, "_repr_mimebundle_", include=None, exclude=None))
    bundle: "dict[object, object]" = dict(own) if isinstance(own, dict) else {}
    for media_type, method in _METHODS:
        if media_type not in bundle and not (media_type == "image/jpeg" and "image/png" in bundle):
            data = _call_method(value, method)
            if data is not None:
                bundle[media_type] = _without_metadata(data)
    if "image/png" not in bundle:
        picture = _picture(value)
        if picture is not None:
            bundle["image/png"] = picture
    if "text/plain" not in bundle:
        bundle["text/plain"] = _text(value)
    return clean(bundle)


def clean(bundle: "dict[object, object]") -> "dict[str, object]":
    """Keep the entries that can be sent: bytes as base64, text and JSON types unchanged, the rest as text."""
    cleaned: "dict[str, object]" = {}
    for media_type, data in bundle.items():
        if not isinstance(media_type, str) or data is None:
            continue
        if isinstance(data, (bytes, bytearray, memoryview)):
            cleaned[media_type] = binascii.b2a_base64(data, newline=False).decode("ascii")
        elif isinstance(data, str) or media_type == "application/json" or media_type.endswith("+json"):
            cleaned[media_type] = data
        else:
            cleaned[media_type] = _text(data)
    return cleaned


def complain(value: object, what: str, error: Exception) -> None:
    """Report on stderr why a representation is missing, as a notebook does."""
    try:
        print(f"display: {type(value).__name__}.{what} failed: {type(error).__name__}: {error}", file=sys.stderr)
    except Exception:
        return


def _without_metadata(data: object) -> object:
    return data[0] if isinstance(data, tuple) and len(data) == 2 else data


def _call_method(value: object, method: str, **arguments: object) -> object:
    """Call ``value.method()``. Returns None if it does not exist or fails."""
    if isinstance(value, type):
        return None
    try:
        if getattr(value, _CANARY, None) is not None:
            return None
        function = getattr(value, method, None)
        return function(**arguments) if callable(function) else None
    except NotImplementedError:
        return None
    except Exception as error:
        complain(value, method, error)
        return None


def _text(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:
        complain(value, "__repr__", error)
        return object.__repr__(value)


def _picture(value: object) -> "bytes | None":
    """Return a PNG of a matplotlib figure or a PIL image. Imports neither."""
    try:
        if _is(value, "matplotlib.figure", "Figure"):
            return _save(value, "savefig", format="png", bbox_inches="tight")
        if _is(value, "PIL.Image", "Image"):
            return _save(value, "save", format="PNG")
    except Exception as error:
        complain(value, "picture", error)
    return None


def _is(value: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _save(value: object, method: str, **arguments: object) -> bytes:
    from io import BytesIO

    buffer = BytesIO()
    getattr(value, method)(buffer, **arguments)
    return buffer.getvalue()


def show(objects: "tuple[object, ...]", options: "dict[str, object]") -> None:
    """Send one display frame for each object; without a pipe (in a child process) print its text."""
    for value in objects:
        bundle = clean(value) if options.get("raw") and isinstance(value, dict) else bundle_of(value)
        if is_open():
            _flush()
            send(_encode_frame(value, bundle))
        else:
            print(bundle.get("text/plain", ""))


def _encode_frame(value: object, bundle: "dict[str, object]") -> bytes:
    """Encode the frame for ``bundle``, without what JSON cannot hold; if too large, without the largest entries."""
    for media_type in list(bundle):
        try:
            encode({media_type: bundle[media_type]})
        except (TypeError, ValueError, RecursionError) as error:
            complain(value, media_type, error)
            del bundle[media_type]
    payload: bytes = encode({"type": "display", "bundle": bundle})
    while len(payload) > FRAME_LIMIT:
        largest = max(bundle, key=lambda media_type: len(encode({"": bundle[media_type]})))
        complain(value, largest, ValueError(f"more than {FRAME_LIMIT} bytes"))
        del bundle[largest]
        payload = encode({"type": "display", "bundle": bundle})
    return payload


def _flush() -> None:
    """Flush the streams, so that earlier text comes first."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue


def patched_spec(name: str, path: "Sequence[str] | None", target: object, skip: object) -> "ModuleSpec | None":
    """Return the other finders' spec of ``name``, with a loader that patches the module after its first run."""
    spec = _find_spec(name, path, target, skip)
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
            print(f"casemate: {name} could not be adapted, so some output is missing: {error!r}", file=sys.stderr)

    loader.exec_module = run_and_patch
    return spec


def _find_spec(name: str, path: "Sequence[str] | None", target: object, skip: object) -> "ModuleSpec | None":
    for finder in sys.meta_path:
        find: Any = getattr(finder, "find_spec", None)
        if finder is skip or find is None:
            continue
        spec: ModuleSpec | None = find(name, path, target)
        if spec is not None:
            return spec
    return None


def _patch_pyplot(pyplot: "Any") -> None:
    """Make ``plt.show()`` and ``figure.show()`` send their figures and then close them."""
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

    pyplot.show = _wrap_like(show, show_windows)
    pyplot.Figure.show = _wrap_like(show_one, show_window)


def _patch_display_functions(module: "Any") -> None:
    """Show what IPython's ``display`` gets, unless the program runs its own IPython shell."""
    show_in_shell = module.display

    def show(*objects: "Any", **options: "Any") -> "Any":
        shell = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
        if (shell is not None and shell.initialized()) or not is_open():
            return show_in_shell(*objects, **options)
        return _casemate.display(*objects, **options)

    module.display = _wrap_like(show, show_in_shell)


def _patch_comm(module: "Any") -> None:
    """Pass a widget's comms to the session's front end, if any."""
    front = sys.modules.get("_casemate.session_front")
    if front is not None:
        front.install(module)


def show_all_columns(pandas: "Any") -> None:
    """Show as many columns as a notebook does. pandas takes a session for a terminal and would leave some out."""
    pandas.set_option("display.max_columns", 20)


def _patch_pandas(pandas: "Any") -> None:
    if "get_ipython" in vars(builtins):  # a session
        show_all_columns(pandas)


def _wrap_like(function: "Callable[..., Any]", original: "Any") -> "Callable[..., Any]":
    from functools import update_wrapper

    return update_wrapper(function, original)


_PATCHES: "dict[str, Callable[[Any], None]]" = {
    "matplotlib.pyplot": _patch_pyplot,
    "IPython.core.display_functions": _patch_display_functions,
    "comm": _patch_comm,
    "pandas": _patch_pandas,
}
