"""Where runs are kept that are over: a folder each, with what is known of it, its events and its files."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Protocol

from casemate.operations.wire import Document

_HEAD, _EXECUTION = "run.json", "execution.json"


class Store(Protocol):
    """What a desk keeps runs in. ``run``: an id of 32 hexadecimal digits. All may block; from one thread at a time for
    each run. Raises ``OSError``."""

    def begin(self, run: str, head: Document) -> Path:
        """A run begins: ``head`` says what it is; the folder for its events and files, which is made."""
        ...

    def end(self, run: str, head: Document, execution: Document | None) -> None:
        """A run is over: what is known of it now, and its execution, whose cause the store may put right."""
        ...

    def execution(self, run: str) -> Document | None:
        """The execution of a run; None where it has none."""
        ...

    def folder(self, run: str) -> Path:
        """The folder of a run."""
        ...

    def list(self) -> list[Document]:
        """The heads of all that are kept, also of those that never ended."""
        ...

    def drop(self, run: str) -> None:
        """Forget a run. Harmless for one that is not there."""
        ...

    def close(self) -> None:
        """Nothing more is asked of it."""
        ...


class FolderStore:
    """A store in a folder of its own: what is in it survives this process, though not a loss of power."""

    def __init__(self, path: Path) -> None:
        """``path``: made, for its owner alone, where it is missing."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path

    def begin(self, run: str, head: Document) -> Path:
        folder = self.folder(run)
        folder.mkdir(mode=0o700)
        _write(folder / _HEAD, head)
        return folder

    def end(self, run: str, head: Document, execution: Document | None) -> None:
        folder = self.folder(run)
        if execution is not None:
            _write(folder / _EXECUTION, execution)
        _write(folder / _HEAD, head)  # the last: it says that all is there

    def execution(self, run: str) -> Document | None:
        try:
            return _read(self.folder(run) / _EXECUTION)
        except FileNotFoundError:
            return None

    def folder(self, run: str) -> Path:
        return self._path / run

    def list(self) -> list[Document]:
        heads = []
        for folder in self._path.iterdir():
            try:
                heads.append(_read(folder / _HEAD))
            except (OSError, ValueError):
                shutil.rmtree(folder, ignore_errors=True)  # it had not even begun
        return sorted(heads, key=lambda head: float(head["started"]))

    def drop(self, run: str) -> None:
        shutil.rmtree(self.folder(run), ignore_errors=True)

    def close(self) -> None:
        """What is kept stays."""


class TemporaryStore(FolderStore):
    """One that is removed when it is closed."""

    def __init__(self) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="casemate-runs-")))

    def close(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def _write(path: Path, told: Document) -> None:
    """At once, or not at all."""
    made = path.with_suffix(".new")
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(json.dumps(told).encode("ascii"))
    made.replace(path)


def _read(path: Path) -> Document:
    told = json.loads(path.read_bytes())
    if not isinstance(told, dict):
        raise ValueError(f"{path} holds no object")
    return told
