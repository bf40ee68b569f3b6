"""The browser that this machine has: Chromium, as distributions package it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from casemate.errors import Unavailable
from casemate.languages.places import entries_for, is_program, too_wide

if TYPE_CHECKING:
    from casemate.model.plan import Entry

VARIABLE = "CASEMATE_BROWSER"
# The programs themselves: what lies in /usr/bin is a script, which reads settings that a cell does not have.
_PLACES = (
    "/usr/lib/chromium/chromium-headless-shell",  # Debian: chromium-headless-shell, the smallest
    "/usr/lib64/chromium-browser/headless_shell",  # Fedora: chromium-headless
    "/usr/lib/chromium/chromium",  # Debian, Arch: chromium
    "/usr/lib/chromium/chrome",  # Alpine: chromium
    "/usr/lib64/chromium-browser/chromium-browser",  # Fedora: chromium
)
_HOW = (
    "apt-get install chromium-headless-shell (Debian), dnf install chromium-headless (Fedora), elsewhere chromium; or "
    f"set {VARIABLE} to the path of a Chromium's own program, which is no script."
)


def find_browser() -> tuple[Path, tuple[Entry, ...]]:
    """The program that ``CASEMATE_BROWSER`` names, else the first that is installed, and what a cell needs to see for
    it. Raises ``Unavailable``."""
    given = os.environ.get(VARIABLE, "")
    path = next((Path(one) for one in ([given] if given else _PLACES) if is_program(Path(one))), None)
    if path is None or not path.is_absolute():
        missing = f"{VARIABLE}={given} is no program" if given else "there is no browser on this machine"
        raise Unavailable(missing, remediation=_HOW)
    path = path.resolve()
    if why := too_wide(path.parent):
        raise Unavailable(f"{path} cannot be shown to a cell with its folder: {why}", remediation=_HOW)
    return path, entries_for([path.parent], ())
