"""The version of casemate, and its installation in this process."""

import os
import sys

__version__ = "0.1.0"
SOURCE = "."  # what pip installs casemate from: a clone, until there is a release


def how_to_install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install '{SOURCE}[{extra}]' in a clone of casemate"


def installation() -> str:
    """The current installation. It changes when casemate is reinstalled, because its folder then changes."""
    try:
        return f"{sys.prefix} {os.stat(os.path.dirname(os.path.abspath(__file__))).st_ino}"
    except OSError:
        return ""


INSTALLATION = installation()  # at the start of this process
