"""Objects as MIME bundles, as Jupyter knows them: text is ``str``, binary is base64, JSON is JSON."""

import binascii
import sys

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
# An object that claims to have this method answers to every name (a mock, a proxy): ask it for nothing.
_CANARY = "_repr_of_no_object_"


def bundle_of(value: object) -> "dict[str, object]":
    """Every representation that ``value`` offers, always ``text/plain``; what fails is left out, and said on stderr."""
    bundle = _own_bundle(value)
    for media_type, method in _METHODS:
        if media_type not in bundle and not (media_type == "image/jpeg" and "image/png" in bundle):
            data = _ask(value, method)
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
    """The entries that can be sent: base64 for bytes, anything for JSON types, text for the rest."""
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
    """Say on stderr why a representation is missing, as a notebook does."""
    try:
        print(f"display: {type(value).__name__}.{what} failed: {type(error).__name__}: {error}", file=sys.stderr)
    except Exception:
        return


def _own_bundle(value: object) -> "dict[object, object]":
    bundle = _without_metadata(_ask(value, "_repr_mimebundle_", include=None, exclude=None))
    return dict(bundle) if isinstance(bundle, dict) else {}


def _without_metadata(data: object) -> object:
    return data[0] if isinstance(data, tuple) and len(data) == 2 else data


def _ask(value: object, method: str, **arguments: object) -> object:
    """What ``value.method()`` gives; None when there is no such method, or when it fails."""
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
    """PNG of a matplotlib figure or a PIL image; neither is imported for it."""
    try:
        if _is(value, "matplotlib.figure", "Figure"):
            return _saved(value, "savefig", format="png", bbox_inches="tight")
        if _is(value, "PIL.Image", "Image"):
            return _saved(value, "save", format="PNG")
    except Exception as error:
        complain(value, "picture", error)
    return None


def _is(value: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _saved(value: object, method: str, **arguments: object) -> bytes:
    from io import BytesIO

    buffer = BytesIO()
    getattr(value, method)(buffer, **arguments)
    return buffer.getvalue()
