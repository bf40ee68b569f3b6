"""Which method a path is for: what the header Allow says of one that is asked for with another. Pure."""

from __future__ import annotations

from collections.abc import Container

_FIXED = {"openapi.json": "GET", "v1/health": "GET", "v1/service/stop": "POST", "v1/uploads": "PUT"}
_FILES = ("artifacts", "files")  # of one run or session: its handle follows, and a name in which there may be slashes


def method_of(path: str, operations: Container[str]) -> str:
    """The one method that ``path`` is for, which begins with a slash; empty where there is nothing. ``operations``: the
    names of all. A path right below ``/v1/archives`` may be an archive, or an operation that is misspelt."""
    plain = path.removeprefix("/")
    if plain in _FIXED:
        return _FIXED[plain]
    version, *parts = plain.split("/")
    if version != "v1":
        return ""
    if ".".join(parts) in operations:
        return "POST"
    return "GET" if len(parts) > 2 and parts[0] in _FILES else ""
