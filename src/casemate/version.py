"""The version of casemate, and the installation of it that this process runs."""

import os
import sys

__version__ = "0.1.0"


def installation() -> str:
    """Which one there is now: another once casemate was installed anew, for its folder is another then."""
    try:
        return f"{sys.prefix} {os.stat(os.path.dirname(os.path.abspath(__file__))).st_ino}"
    except OSError:
        return ""


INSTALLATION = installation()  # that this process was started from
