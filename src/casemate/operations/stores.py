"""The stores of finished runs, and of files that callers upload."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from casemate.errors import InvalidArgument, NotFound, QueueFull, Unavailable
from casemate.execution.threads import to_thread_to_end
from casemate.files.beneath import write_all
from casemate.files.temporary import TemporaryFolder, sweep
from casemate.model.limits import format_size
from casemate.model.operation import Principal
from casemate.operations.documents import Document

_HEAD, _EXECUTION = "run.json", "execution.json"
_WITH = "execution"
_SMALL = 1 << 14  # bytes of an execution that shares a line with its head


class FolderStore:
    """Runs in a folder. They survive this process, but maybe not a loss of power.

    ``run``: an id of 32 hexadecimal digits. All methods may block; call them from one thread at a time for each run.
    Raises ``OSError``.

    Each run has a file of JSON lines: its head at the start, and another at the end. The last complete line counts.
    """

    def __init__(self, path: Path) -> None:
        """``path``: created for its owner alone, if it does not exist."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path

    def begin(self, run: str, head: Document) -> Path:
        """Start a run. Returns the folder for its events and files. Leaves nothing if it raises."""
        folder = self.folder(run)
        os.mkdir(folder, mode=0o700)
        try:
            _append(f"{folder}/{_HEAD}", json.dumps(head))
        except OSError:
            self.drop(run)  # nothing would ever end it
            raise
        return folder

    def end(self, run: str, head: Document, execution: Document | None) -> None:
        """Finish a run: store its final head, and its execution."""
        folder = self.folder(run)
        text = "" if execution is None else json.dumps(execution)
        if len(text) > _SMALL:
            (folder / _EXECUTION).write_text(text, encoding="ascii")
            text = ""
        _append(f"{folder}/{_HEAD}", json.dumps(head), text)  # last, because it marks the run as complete

    def execution(self, run: str) -> Document | None:
        """The execution of a run; None if it has none."""
        folder = self.folder(run)
        try:
            document: Document | None = _read(folder / _HEAD).get(_WITH)
            return _parse((folder / _EXECUTION).read_bytes()) if document is None else document
        except FileNotFoundError:
            return None

    def folder(self, run: str) -> Path:
        """The folder of a run."""
        return self._path / run

    def list(self) -> list[Document]:
        """The heads of all runs, including unfinished ones."""
        heads = []
        for folder in self._path.iterdir():
            try:
                head = _read(folder / _HEAD)
                head.pop(_WITH, None)
                _check_head(head, folder.name)
                heads.append(head)
            except (OSError, ValueError):
                shutil.rmtree(folder, ignore_errors=True)  # it never started, or cannot be read
        return sorted(heads, key=lambda head: float(head["started"]))

    def drop(self, run: str) -> None:
        """Remove a run, if it exists."""
        shutil.rmtree(self.folder(run), ignore_errors=True)

    def close(self) -> None:
        """Keep everything."""


class TemporaryStore(FolderStore):
    def __init__(self) -> None:
        self._temporary = TemporaryFolder("runs")
        super().__init__(self._temporary.path / "runs")

    def close(self) -> None:
        self._temporary.remove()


_TEXTS, _MAYBE_TEXTS = ("run", "owner", "account", "language"), ("session", "outcome")


def _check_head(head: Document, run: str) -> None:
    """Raises ``ValueError`` if this is not a head of that run."""
    times = (head.get("started"), head.get("ended") or 0, head.get("bytes"))
    is_one = (
        head.get("run") == run
        and all(isinstance(head.get(name), str) for name in _TEXTS)
        and all(isinstance(head.get(name), str | None) and name in head for name in _MAYBE_TEXTS)
        and all(isinstance(one, int | float) for one in times)
        and isinstance(head.get("is_done"), bool)
        and isinstance(head.get("error", 0), dict | None)
    )
    if not is_one:
        raise ValueError("this is not the head of a run")


def _append(path: str, head: str, execution: str = "") -> None:
    """Append a line with these two objects, the second within the first."""
    line = f'{head[:-1]}, "{_WITH}": {execution}}}' if execution else head
    data = f"\n{line}\n".encode("ascii")  # the first newline ends an earlier line that was cut short
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)


def _read(path: Path) -> Document:
    """The last complete line. Raises ``ValueError`` if there is none."""
    for line in reversed(path.read_bytes().split(b"\n")):
        with contextlib.suppress(ValueError):
            return _parse(line)
    raise ValueError(f"{path} holds no object")


def _parse(data: bytes) -> Document:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("this is not an object")
    return value


MOST_BYTES = 256 << 20  # of one upload
MOST_OF_ONE = 1 << 30  # bytes of one caller's uploads together
MOST_UPLOADS = 1000  # of one caller
SECONDS = 3600.0  # an upload is kept this long after its last use
_SOON = 60.0  # seconds
_WAIT_FOR_ROOM = "Wait up to an hour: an upload expires an hour after its last use."


@dataclass(slots=True, eq=False)
class _Upload:
    owner: str
    payer: str
    path: Path
    size: int = 0
    until: float = 0.0
    users: int = 0


class Uploads:
    """Uploaded files. Each belongs to its sender."""

    def __init__(self) -> None:
        self._uploads: dict[str, _Upload] = {}
        self._folder: TemporaryFolder | None = None

    async def load(self) -> None:
        """Remove the abandoned folders of killed processes."""
        await to_thread_to_end(sweep)

    async def store_bytes(self, data: AsyncIterable[bytes], principal: Principal) -> str:
        """Store the bytes, and return their handle. Raises ``InvalidArgument`` and ``Unavailable``."""
        async with self._begin(principal) as (handle, upload):
            await self._write(upload, data)
        return handle

    @contextlib.asynccontextmanager
    async def make_upload(self, principal: Principal) -> AsyncIterator[tuple[str, Path]]:
        """Make an upload here: its handle, and the file to write. It counts as the largest upload until its size is
        known, and is kept if the block ends without an error. Raises ``QueueFull`` if there is no space."""
        async with self._begin(principal) as (handle, upload):
            if self._total(upload.payer) + MOST_BYTES > MOST_OF_ONE:
                raise QueueFull(
                    f"uploads and archives may take at most {format_size(MOST_OF_ONE)}",
                    retry_after=_SOON, remediation=_WAIT_FOR_ROOM,
                )  # fmt: skip
            upload.size = MOST_BYTES
            yield handle, upload.path
            upload.size = await to_thread_to_end(lambda: upload.path.stat().st_size)

    @contextlib.asynccontextmanager
    async def _begin(self, principal: Principal) -> AsyncIterator[tuple[str, _Upload]]:
        await self._sweep()
        own = [one for one in self._uploads.values() if one.payer == principal.payer]
        if len(own) >= MOST_UPLOADS:
            raise QueueFull(f"{MOST_UPLOADS} uploads are kept already", retry_after=_SOON, remediation=_WAIT_FOR_ROOM)
        if self._folder is None:
            self._folder = TemporaryFolder("uploads")
        handle = secrets.token_urlsafe(24)
        upload = _Upload(principal.name, principal.payer, self._folder.path / handle, users=1)
        self._uploads[handle] = upload
        try:
            yield handle, upload
        except BaseException:
            await to_thread_to_end(self._forget, handle)
            raise
        finally:
            upload.users, upload.until = upload.users - 1, time.monotonic() + SECONDS

    def _total(self, payer: str) -> int:
        return sum(one.size for one in self._uploads.values() if one.payer == payer)

    async def _write(self, upload: _Upload, data: AsyncIterable[bytes]) -> None:
        try:
            file = await asyncio.to_thread(upload.path.open, "xb")
            try:
                async for piece in data:
                    upload.size += len(piece)
                    if upload.size > MOST_BYTES or self._total(upload.payer) > MOST_OF_ONE:
                        most = f"{format_size(MOST_BYTES)} each, {format_size(MOST_OF_ONE)} together"
                        raise InvalidArgument("upload", f"is too large: at most {most}")
                    await to_thread_to_end(file.write, piece)
            finally:
                await to_thread_to_end(file.close)
        except OSError as error:
            raise Unavailable(f"the upload cannot be kept: {error.strerror or error}") from None

    @contextlib.contextmanager
    def use_upload(self, handle: str, principal: Principal) -> Iterator[Path]:
        """The path of an upload, which is kept during the block and an hour longer. Raises ``NotFound``."""
        upload = self._uploads.get(handle)
        if upload is None or not principal.may_see(upload.owner):
            raise NotFound(
                "handle",
                f"there is no upload {handle[:100]!r}, or it is no longer kept",
                remediation="Upload the file again, or make the archive again.",
            )
        upload.users += 1
        try:
            yield upload.path
        finally:
            upload.users, upload.until = upload.users - 1, time.monotonic() + SECONDS

    async def drop(self, handle: str, principal: Principal) -> None:
        """Remove an upload, if it exists and is not in use."""
        upload = self._uploads.get(handle)
        if upload is not None and principal.may_see(upload.owner) and not upload.users:
            await to_thread_to_end(self._forget, handle)

    async def _sweep(self) -> None:
        now = time.monotonic()
        for handle in [known for known, one in self._uploads.items() if not one.users and one.until < now]:
            await to_thread_to_end(self._forget, handle)

    def _forget(self, handle: str) -> None:
        upload = self._uploads.pop(handle, None)
        if upload is not None:
            upload.path.unlink(missing_ok=True)

    async def close(self) -> None:
        """Remove all uploads."""
        self._uploads.clear()
        if self._folder is not None:
            await to_thread_to_end(self._folder.remove)
