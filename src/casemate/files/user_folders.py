"""Folders of the user's own: where the XDG Base Directory Specification has them, made for nobody else to look into."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from casemate.errors import Unavailable

_PLACES = {
    "cache": ("XDG_CACHE_HOME", ".cache"),
    "config": ("XDG_CONFIG_HOME", ".config"),
    "state": ("XDG_STATE_HOME", ".local/state"),
}


def user_folder(
    environ: Mapping[str, str], kind: Literal["cache", "config", "state"], problem: str, remediation: str = "Set HOME."
) -> Path:
    """Casemate's own folder there. Raises ``Unavailable`` with ``problem`` where the environment names neither that
    place nor a home."""
    variable, below_home = _PLACES[kind]
    if os.path.isabs(base := environ.get(variable, "")):
        return Path(base, "casemate")
    if os.path.isabs(home := environ.get("HOME", "")):
        return Path(home, below_home, "casemate")
    raise Unavailable(f"{problem}: neither {variable} nor HOME is set to an absolute path", remediation=remediation)


def make_private_folders(folder: Path) -> None:
    """As ``os.makedirs``, but every folder that is made is 0700. Raises ``OSError``."""
    if not folder.is_dir():
        make_private_folders(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def not_ours(path: str | Path) -> str:
    """Say that ``path``, or its first existing parent, belongs to another user. Empty where it is ours."""
    for place in (Path(path), *Path(path).absolute().parents):
        with contextlib.suppress(OSError):
            owner, user = place.stat().st_uid, os.geteuid()
            return "" if owner == user else f"{place} belongs to the user {owner}, and casemate runs as the user {user}"
    return ""
