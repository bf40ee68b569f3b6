"""What ``display`` does."""

import sys

from _casemate.bundles import bundle_of, clean, complain  # type: ignore[import-not-found]
from _casemate.channel import FRAME_LIMIT, encode, is_open, send  # type: ignore[import-not-found]


def show(objects: "tuple[object, ...]", options: "dict[str, object]") -> None:
    """Send one display frame for each object; without a pipe (in a child process) print its text."""
    for value in objects:
        raw = options.get("raw") and isinstance(value, dict)
        bundle = clean(value) if raw else bundle_of(value)
        if is_open():
            _flush()
            send(_encoded(value, bundle))
        else:
            print(bundle.get("text/plain", ""))


def _encoded(value: object, bundle: "dict[str, object]") -> bytes:
    """The frame for ``bundle``, without what JSON cannot hold and without the largest parts where it is too large."""
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
    """What was printed before comes before."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue
