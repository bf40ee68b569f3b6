"""What the servers of the tests' internet have seen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class World:
    """The folder in which servers write down who came."""

    folder: Path

    @property
    def authority(self) -> bytes:
        """The certificate that programs in cells must trust."""
        return (self.folder / "ca.pem").read_bytes()

    def visits(self) -> list[str]:
        """``address port what`` for each visit so far."""
        return (self.folder / "visits").read_text().splitlines()

    def queries(self) -> list[str]:
        """The names that the host has asked its name server for."""
        return (self.folder / "queries").read_text().splitlines()
