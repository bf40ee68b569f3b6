"""Addresses of files: what a resource link names. Only its caller can read it, since handles are bound. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

_SCHEME = "casemate"
_HANDLE = r"[A-Za-z0-9._:-]{1,128}"
_URI = re.compile(rf"{_SCHEME}://(run|session)/({_HANDLE})/(.+)", re.DOTALL)
_PICTURE = re.compile(r"/display/(\d{1,6})\.(png|jpg)")
_SUFFIXES = {"image/png": "png", "image/jpeg": "jpg"}
TEMPLATES = (
    (f"{_SCHEME}://run/{{run}}/{{+path}}", "A file that a run left"),
    (f"{_SCHEME}://session/{{session}}/{{+path}}", "A file in a session's workspace"),
)
_LONGEST = 8192  # characters of an address


@dataclass(frozen=True, slots=True)
class Place:
    """A file: ``kind`` is "run" or "session", ``handle`` is that of it."""

    kind: str
    handle: str
    path: str


def file_uri(run: str, path: str) -> str:
    """The address of a file that a run left."""
    return f"{_SCHEME}://run/{run}/{quote(path, safe='/')}"


def session_uri(session: str, path: str) -> str:
    """The address of a file in a session's workspace."""
    return f"{_SCHEME}://session/{session}/{quote(path, safe='/')}"


def place_of(uri: str) -> Place | None:
    """What an address names; None where it is none of casemate's."""
    if len(uri) > _LONGEST:
        return None
    found = _URI.fullmatch(uri)
    try:
        return None if found is None else Place(found[1], found[2], unquote(found[3], errors="strict"))
    except UnicodeDecodeError:
        return None


def picture_name(place: int, media_type: str) -> str:
    """How a displayed picture is called that is too large to be in an answer: no file's name begins with a slash."""
    return f"/display/{place}.{_SUFFIXES[media_type]}"


def picture_of(path: str) -> tuple[int, str] | None:
    """The place of a displayed picture among a run's results, and its media type; None where that is no such name."""
    found = _PICTURE.fullmatch(path)
    if found is None:
        return None
    return int(found[1]), next(kind for kind, suffix in _SUFFIXES.items() if suffix == found[2])
