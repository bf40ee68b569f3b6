"""Programs that look at others' programs, where the operator has installed them."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from casemate.languages.places import is_program


def ruff_path() -> Path | None:
    """The ruff of casemate's own environment (the extra ``check``), or None."""
    place = Path(sys.executable).parent / "ruff"
    try:
        status = place.stat()
    except OSError:
        return None
    return _find_cached(place, status.st_ino, status.st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _find_cached(place: Path, inode: int, changed: int) -> Path | None:  # noqa: ARG001 - they are part of the key
    return place if is_program(place) else None
