"""Writing beneath a folder that may hold hostile links: by descriptors, one component at a time, by rename.

A file appears under its name only when it is whole. Unless that is asked for, nothing is flushed to the disk: after a
loss of power a file may be missing. A process killed at the wrong moment leaves a ``.casemate-…`` file behind.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from casemate.supervisor.trees.walk import check_deadline, identity

CHUNK = 2**20
_PAGE = bytes(4096)
_TEMPORARY = ".casemate-"


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a new file gets: ``mode`` (None: as the umask says), ``owner`` and ``modified`` (nanoseconds)."""

    mode: int | None = None
    owner: tuple[int, int] | None = None
    modified: int | None = None


PLAIN = Attributes()


class Hashed:
    """Chunks that are hashed on their way: ``sha256`` is of what has been taken of them so far."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._digest = hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self._digest.update(chunk)
            yield chunk

    @property
    def sha256(self) -> str:
        """In hexadecimal."""
        return self._digest.hexdigest()


def write_all(file: int, data: bytes) -> None:
    """Write all of ``data``. Raises ``OSError``."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _write_or_skip(file: int, chunk: bytes) -> None:
    """Write ``chunk``, but leave a hole for each page of zeros: what took no room is not to take any here."""
    if _PAGE not in chunk:
        write_all(file, chunk)
        return
    for at in range(0, len(chunk), len(_PAGE)):
        page = chunk[at : at + len(_PAGE)]
        if page == _PAGE:
            os.lseek(file, len(page), os.SEEK_CUR)
        else:
            write_all(file, page)


def write_file(
    folder: int,
    name: str,
    chunks: Iterable[bytes],
    attributes: Attributes = PLAIN,
    *,
    before: Callable[[], None] = lambda: None,
    flush: bool = False,
) -> tuple[int, int]:
    """Put a regular file at ``name`` (one component) in ``folder``, replacing a file or link there.

    ``flush``: have it and its name on the disk before this returns. ``before`` runs when all is written and before the
    name is taken. Returns the new file's identity.
    Raises ``OSError`` (or what ``chunks`` and ``before`` raise); then nothing has changed at ``name``.
    """
    temporary = _temporary_name()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o666 if attributes.mode is None else 0o600, dir_fd=folder)
    try:
        try:
            for chunk in chunks:
                _write_or_skip(file, chunk)
            os.ftruncate(file, os.lseek(file, 0, os.SEEK_CUR))
            _set_attributes(file, attributes)
            written = identity(os.fstat(file))
            if flush:
                os.fsync(file)
        finally:
            os.close(file)
        before()
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        if flush:
            os.fsync(folder)
    except BaseException:
        _discard(folder, temporary)
        raise
    return written


def write_link(
    folder: int,
    name: str,
    target: str,
    *,
    before: Callable[[], None] = lambda: None,
) -> None:
    """Put a symbolic link at ``name`` in ``folder``, replacing a file or link there. As :func:`write_file`."""
    temporary = _temporary_name()
    os.symlink(target, temporary, dir_fd=folder)
    try:
        before()
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        _discard(folder, temporary)
        raise


def mount_of(folder: int) -> int:
    """The id of the mount that a descriptor lies on. Raises ``OSError``."""
    with open(f"/proc/self/fdinfo/{folder}", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("mnt_id:"):
                return int(line.split()[1])
    raise OSError(errno.ENOSYS, "the kernel does not say on which mount a folder lies")


def _set_attributes(file: int, attributes: Attributes) -> None:
    if attributes.owner is not None:
        os.fchown(file, *attributes.owner)
    if attributes.mode is not None:
        os.fchmod(file, stat.S_IMODE(attributes.mode) & 0o777)
    if attributes.modified is not None:
        os.utime(file, ns=(attributes.modified, attributes.modified))


def _temporary_name() -> str:
    return f"{_TEMPORARY}{os.urandom(8).hex()}"


def _discard(folder: int, name: str) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)


def pieces_of(fd: int, most: int) -> Iterator[bytes]:
    """At most so many bytes: a file may grow while it is read. Raises ``OSError``."""
    while most > 0 and (piece := os.read(fd, min(CHUNK, most))):
        check_deadline()
        most -= len(piece)
        yield piece


class HeldFolder:
    """A folder by a descriptor, for as long as anybody has this. Raises ``OSError`` where it is none, or a link leads
    there."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.fd)
        if os.readlink(f"/proc/self/fd/{self.fd}") != path:
            raise OSError(errno.ELOOP, "a link leads there")
