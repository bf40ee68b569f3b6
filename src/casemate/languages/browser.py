"""The Chromium of this machine, as distributions package it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from casemate.errors import Unavailable
from casemate.languages.places import entries_for, is_program, too_wide

if TYPE_CHECKING:
    from casemate.model.plan import Entry

VARIABLE = "CASEMATE_BROWSER"
# The programs themselves: the script in /usr/bin reads settings that a cell does not have.
_PLACES = (
    "/usr/lib/chromium/chromium-headless-shell",  # Debian: chromium-headless-shell, the smallest
    "/usr/lib64/chromium-browser/headless_shell",  # Fedora: chromium-headless
    "/usr/lib/chromium/chromium",  # Debian, Arch: chromium
    "/usr/lib/chromium/chrome",  # Alpine: chromium
    "/usr/lib64/chromium-browser/chromium-browser",  # Fedora: chromium
)
_HOW = (
    "apt-get install chromium-headless-shell (Debian), dnf install chromium-headless (Fedora), elsewhere chromium; or "
    f"set {VARIABLE} to the path of Chromium's executable itself, not a script."
)


def find_browser() -> tuple[Path, tuple[Entry, ...]]:
    """The program that ``CASEMATE_BROWSER`` names, or else the first one installed, with what a cell must see to run
    it. Raises ``Unavailable``."""
    given = os.environ.get(VARIABLE, "")
    path = next((Path(one) for one in ([given] if given else _PLACES) if is_program(Path(one))), None)
    if path is None or not path.is_absolute():
        missing = f"{VARIABLE}={given} is not a program" if given else "there is no browser on this machine"
        raise Unavailable(missing, remediation=_HOW)
    path = path.resolve()
    if why := too_wide(path.parent):
        raise Unavailable(f"{path} cannot be shown to a cell with its folder: {why}", remediation=_HOW)
    return path, entries_for([path.parent], ())
