"""Environments that were made of requirements, kept in the user's cache: their layer, and what files it is of."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from casemate.files.temporary import PREFIX, TemporaryFolder, sweep
from casemate.model.packages import InstalledPackage
from casemate.packages.layers import Layer

_FILES = "packages.json"
_LAYER = "python"
_MOST_KEPT = 32  # the one that was made longest ago goes first


class Environments:
    """In ``folder``, which is this user's alone. Each is there whole, or not at all, and never changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str) -> tuple[Layer, tuple[InstalledPackage, ...]] | None:
        """The one with this key, and what is in it."""
        place = self._folder / key
        try:
            said = json.loads((place / _FILES).read_text("utf-8"))
            packages = tuple(InstalledPackage(**one) for one in said["packages"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
        layer = Layer(place / _LAYER)
        return (layer, packages) if layer.current is not None else None

    def keep(self, key: str, layer: Layer, asked: Sequence[str], packages: Sequence[InstalledPackage]) -> None:
        """Keep what ``layer`` has now. What another process has kept meanwhile stays. Raises ``OSError``."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(self._folder)
        made = TemporaryFolder("new", self._folder)
        new = made.path / key
        try:
            new.mkdir(mode=0o700)
            Layer(new / _LAYER).begin_with(layer)
            said = {"asked": list(asked), "packages": [asdict(one) for one in packages]}
            (new / _FILES).write_text(json.dumps(said, indent=1), "utf-8")
            with contextlib.suppress(OSError):  # there is one already
                new.rename(self._folder / key)
        finally:
            made.remove()
        self._tidy()

    def known(self) -> Iterator[tuple[list[str], tuple[InstalledPackage, ...]]]:
        """For each: what it was asked for, and the packages in it."""
        for place in self._places():
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                said = json.loads((place / _FILES).read_text("utf-8"))
                yield list(said["asked"]), tuple(InstalledPackage(**one) for one in said["packages"])

    def _places(self) -> list[Path]:
        with contextlib.suppress(OSError):
            found = [(entry.stat().st_mtime, Path(entry.path)) for entry in os.scandir(self._folder)]
            return [path for _, path in sorted(found, reverse=True) if not path.name.startswith((".", PREFIX))]
        return []

    def _tidy(self) -> None:
        for place in self._places()[_MOST_KEPT:]:
            shutil.rmtree(place, ignore_errors=True)


def key_of(*facts: Sequence[str]) -> str:
    """The name of the environment that is the same whenever these are, which are lists in their order. It is a digest,
    so none of them can be read from it; addresses in them have no credentials all the same."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def own_folder(cache: Path) -> TemporaryFolder:
    """A new folder for this process's layers, on the file system of the cache: files are shared by hard links. What
    processes that are gone have left there is removed. Raises ``OSError``."""
    layers = cache / "layers"
    layers.mkdir(mode=0o700, parents=True, exist_ok=True)
    sweep(layers)
    return TemporaryFolder("layers", layers)
