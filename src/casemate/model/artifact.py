"""A file that a run left behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from os import PathLike


class Content(Protocol):
    """Bytes kept on the host, beyond the reach of any cell."""

    def read_bytes(self) -> bytes:
        """All of it."""
        ...

    def save(self, path: str | PathLike[str]) -> None:
        """Copy it to ``path``, replacing what is there, without setuid bits."""
        ...


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a run left: ``name`` (relative, with ``/``), ``size`` in bytes, ``sha256`` in hex, ``media_type``."""

    name: str
    size: int
    sha256: str
    media_type: str
    content: Content = field(repr=False, compare=False)

    def read_bytes(self) -> bytes:
        """The file's bytes, exactly those that ``sha256`` was made of."""
        return self.content.read_bytes()

    def save(self, path: str | PathLike[str]) -> None:
        """Copy the file to ``path``, replacing what is there. Raises ``OSError``."""
        self.content.save(path)
