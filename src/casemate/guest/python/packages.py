"""Makes packages installed later importable: after the stdlib and casemate's, before the environment's."""

import importlib
import os
import site
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

__all__ = ["use_installed"]

_PLACE = "/packages/python/current"
_GUEST = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CHILDREN = f"{_GUEST}/python_children"
_readlink, _environ = os.readlink, os.environ
_current_generation: "Optional[str]" = None


def use_installed() -> None:
    """Make the packages installed by now importable. Cheap if nothing has changed."""
    global _current_generation
    current = _environ.get("CASEMATE_CELL", "") + _PLACE  # below the cell's folder on walls without mounts
    try:
        generation = _readlink(current)
    except OSError:
        return
    if generation == _current_generation:
        return
    _current_generation = generation
    packages = f"{current}/site"
    if packages not in sys.path:
        before = list(sys.path)
        site.addsitedir(packages)  # also runs .pth files; they are behind the wall like everything here
        new = [place for place in sys.path if place not in before]
        sys.path[:] = before
        at = next(
            (n for n, place in enumerate(before) if place.endswith(("site-packages", "dist-packages"))), len(before)
        )
        sys.path[at:at] = new
        ours = f"{_GUEST}/python_bin"
        path = [place for place in _environ.get("PATH", "").split(":") if place and place != ours]
        _environ["PATH"] = ":".join([ours, f"{current}/bin", *path])
        rest = _environ.get("PYTHONPATH", "")
        _environ["PYTHONPATH"] = f"{_CHILDREN}:{rest}" if rest else _CHILDREN
    importlib.invalidate_caches()
