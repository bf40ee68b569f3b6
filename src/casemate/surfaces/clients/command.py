"""The command that starts this installation's MCP server, as another program would start it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

_CACHE = "CACHEDIR.TAG"  # marks a folder that may be emptied at any time (bford.info/cachedir)


def serving(toolset: str | None = None) -> list[str]:
    """An absolute command, with ``serve`` and its options.

    An installation lasts unless it lies in a cache, where `uvx` makes its own: then it is `uvx casemate` again.
    """
    options = ["serve", *(["--toolset", toolset] if toolset else [])]
    uvx = shutil.which("uvx")
    if _is_in_cache(Path(sys.prefix)) and uvx:
        return [os.path.abspath(uvx), "casemate", *options]
    script = Path(sys.executable).parent / "casemate"  # not resolved: a virtual environment's own
    if os.access(script, os.X_OK):
        return [str(script), *options]
    return [sys.executable, "-m", "casemate", *options]


def _is_in_cache(place: Path) -> bool:
    return any((folder / _CACHE).is_file() for folder in (place, *place.parents))
