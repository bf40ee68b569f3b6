"""What came of an installation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Terms:
    """How packages are installed. ``sources``: they may be built, which runs code of theirs in the installing cell;
    ``upgrade``: the newest that fit, also where others are there that fit; ``timeout``: seconds of the cell."""

    sources: bool
    upgrade: bool
    timeout: float


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """One package. ``file``: the name of the file that it came in, ``source`` the address of that without credentials,
    ``sha256`` and ``size`` (bytes) what it is."""

    name: str
    version: str
    file: str = ""
    source: str = ""
    sha256: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Installed:
    """What was installed: ``packages``, those that came along included; what was there already is not among them.

    ``status``: ``"denied"`` where somebody or a rule said no, ``"failed"`` where it could not be: then ``reason`` says
    why, and nothing has changed. ``output``: what the installer printed.
    """

    status: Literal["installed", "denied", "failed"]
    packages: tuple[InstalledPackage, ...] = ()
    reason: str = ""
    output: str = ""

    @property
    def ok(self) -> bool:
        """Whether everything that was asked for is there."""
        return self.status == "installed"
