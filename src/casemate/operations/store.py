"""Where runs are kept that are over: a folder each, with what is known of it, its events and its files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Protocol

from casemate.files.temporary import TemporaryFolder
from casemate.operations.wire import Document

_HEAD, _EXECUTION = "run.json", "execution.json"
_WITH = "execution"
_SMALL = 1 << 14  # bytes of an execution that is kept in a line with its head


class Store(Protocol):
    """What a desk keeps runs in. ``run``: an id of 32 hexadecimal digits. All may block; from one thread at a time for
    each run. Raises ``OSError``."""

    def begin(self, run: str, head: Document) -> Path:
        """A run begins: ``head`` says what it is; the folder for its events and files, which is made.
        Nothing is left where that raises."""
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
    """A store in a folder of its own: what is in it survives this process, though not a loss of power.

    A file of each run has what is known of it as a line of JSON, and then as another; the last that is whole counts.
    """

    def __init__(self, path: Path) -> None:
        """``path``: made, for its owner alone, where it is missing."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path

    def begin(self, run: str, head: Document) -> Path:
        folder = self.folder(run)
        os.mkdir(folder, mode=0o700)
        try:
            _append(f"{folder}/{_HEAD}", json.dumps(head))
        except OSError:
            self.drop(run)  # it has not begun: nothing would ever end it
            raise
        return folder

    def end(self, run: str, head: Document, execution: Document | None) -> None:
        folder = self.folder(run)
        told = "" if execution is None else json.dumps(execution)
        if len(told) > _SMALL:
            (folder / _EXECUTION).write_text(told, encoding="ascii")
            told = ""
        _append(f"{folder}/{_HEAD}", json.dumps(head), told)  # says that all is there

    def execution(self, run: str) -> Document | None:
        folder = self.folder(run)
        try:
            told: Document | None = _read(folder / _HEAD).get(_WITH)
            return _parsed((folder / _EXECUTION).read_bytes()) if told is None else told
        except FileNotFoundError:
            return None

    def folder(self, run: str) -> Path:
        return self._path / run

    def list(self) -> list[Document]:
        heads = []
        for folder in self._path.iterdir():
            try:
                head = _read(folder / _HEAD)
                head.pop(_WITH, None)
                heads.append(head)
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
        self._temporary = TemporaryFolder("runs")
        super().__init__(self._temporary.path / "runs")

    def close(self) -> None:
        self._temporary.remove()


def _append(path: str, head: str, execution: str = "") -> None:
    """A line with these two objects, the second within the first."""
    line = f'{head[:-1]}, "{_WITH}": {execution}}}' if execution else head
    left = memoryview(f"\n{line}\n".encode("ascii"))  # a line that was cut short before stays by itself
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        while left:
            left = left[os.write(fd, left) :]
    finally:
        os.close(fd)


def _read(path: Path) -> Document:
    """The last whole line. Raises ``ValueError`` where there is none."""
    for line in reversed(path.read_bytes().split(b"\n")):
        with contextlib.suppress(ValueError):
            return _parsed(line)
    raise ValueError(f"{path} holds no object")


def _parsed(data: bytes) -> Document:
    told = json.loads(data)
    if not isinstance(told, dict):
        raise ValueError("this is no object")
    return told
