"""What a cell sees of the host's besides what its language needs: of commands that are wrapped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shown:
    """A file or folder of the host's that appears at ``places``, read-only, without what is ``hidden`` beneath it (an
    empty path is all of it). ``copied``: a folder that can be written to, too, for as long as the cell lives."""

    source: str
    places: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    copied: bool = False
