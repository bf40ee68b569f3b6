"""The user's private folders, at the places of the XDG Base Directory Specification."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from casemate.errors import InvalidArgument, Unavailable

_PLACES = {
    "cache": ("XDG_CACHE_HOME", ".cache"),
    "config": ("XDG_CONFIG_HOME", ".config"),
    "state": ("XDG_STATE_HOME", ".local/state"),
}


def user_folder(
    environ: Mapping[str, str], kind: Literal["cache", "config", "state"], problem: str, remediation: str = "Set HOME."
) -> Path:
    """casemate's folder there. Raises ``Unavailable`` with ``problem`` if the environment names no such folder."""
    variable, below_home = _PLACES[kind]
    if os.path.isabs(base := environ.get(variable, "")):
        return Path(base, "casemate")
    if os.path.isabs(home := environ.get("HOME", "")):
        return Path(home, below_home, "casemate")
    raise Unavailable(f"{problem}: neither {variable} nor HOME is set to an absolute path", remediation=remediation)


def make_private_folders(folder: Path) -> None:
    """Like ``os.makedirs``, but new folders have mode 0700. Raises ``OSError``."""
    if not folder.is_dir():
        make_private_folders(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def not_ours(path: str | Path) -> str:
    """Say that ``path``, or its first existing parent, belongs to another user. Empty if it is ours."""
    for place in (Path(path), *Path(path).absolute().parents):
        with contextlib.suppress(OSError):
            owner, user = place.stat().st_uid, os.geteuid()
            return "" if owner == user else f"{place} belongs to the user {owner}, but casemate runs as the user {user}"
    return ""


def check_owned(status: os.stat_result, path: Path, argument: str, danger: str) -> None:
    """Raise ``InvalidArgument`` for ``argument`` if ``path`` is not a regular file, or if other users can change it and
    thereby do what ``danger`` says."""
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgument(argument, f"{str(path)!r} is not a regular file")
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        raise InvalidArgument(
            argument,
            f"other users can change {str(path)!r}, and {danger}",
            remediation=f"Make it yours alone: chown $(id -un) {path}; chmod go-w {path}",
        )
