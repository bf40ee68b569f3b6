"""Which symbolic links may be written into a caller's folder. Pure."""

from __future__ import annotations

from casemate.files.names import problem


def link_problem(target: bytes, depth: int) -> str | None:
    """Why a link to ``target``, lying ``depth`` folders beneath the root, is refused, or None.

    A target is relative, and goes up only at its beginning and not above the root: a ``..`` behind a name
    could go up from wherever another link leads (``inner/..`` with ``inner -> .`` is not the folder it seems).
    """
    if target.startswith(b"/"):
        return "it is a link to an absolute path"
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    ups = 0
    while ups < len(parts) and parts[ups] == b"..":
        ups += 1
    if ups > depth:
        return "it is a link out of the folder"
    if b".." in parts[ups:]:
        return "it is a link that goes up behind a name, so that where it leads cannot be told"
    if any(problem(part) for part in parts[ups:]):
        return "it is a link to a name that is not safe"
    return None
