"""What a machine has for a language, as far as that is found out without starting it each time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LanguageInstallation:
    """What this machine has for a language: ``version`` and ``path``, or ``missing`` and the ``remedy``, a command.
    ``source``: whose it is, in words."""

    language: str
    version: str = ""
    path: str = ""
    missing: str = ""
    remedy: str = ""
    source: str = ""
