"""The version of casemate, and the installation of it that this process runs."""

import os
import sys

__version__ = "0.1.0"
SOURCE = "."  # what pip installs casemate from: a clone, until there is a release


def how_to_install(extra: str) -> str:
    """The command that adds an extra."""
    return f"pip install '{SOURCE}[{extra}]' in a clone of casemate"


def installation() -> str:
    """Which one there is now: another once casemate was installed anew, for its folder is another then."""
    try:
        return f"{sys.prefix} {os.stat(os.path.dirname(os.path.abspath(__file__))).st_ino}"
    except OSError:
        return ""


INSTALLATION = installation()  # that this process was started from
