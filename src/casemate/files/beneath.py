"""Writes beneath a folder that may hold hostile links: by descriptor, one component at a time, and by rename.

A file appears under its name only when it is complete. Data is flushed to disk only on request, so a file may be
missing after a power loss. A process killed at the wrong moment leaves a ``.casemate-…`` file behind.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from casemate.supervisor.trees.walk import check_deadline, identity

CHUNK = 2**20
_PAGE = bytes(4096)
_TEMPORARY = ".casemate-"


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of a new file."""

    mode: int | None = None  # None: by the umask
    owner: tuple[int, int] | None = None
    modified: int | None = None  # nanoseconds


PLAIN = Attributes()


class Hashed:
    """Chunks that are hashed as they pass. ``sha256`` covers those taken so far."""

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


@contextmanager
def hold(fd: int) -> Iterator[int]:
    """Close a descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def write_all(file: int, data: bytes) -> None:
    """Write all of ``data``, in as many calls as needed."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _write_or_skip(file: int, chunk: bytes) -> None:
    """Write ``chunk``, with a hole for each page of zeros, so that sparse files stay sparse."""
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

    ``flush``: write the file and its name to disk before this returns. ``before``: runs after the file is written and
    before it gets its name. Returns the new file's identity. Raises ``OSError``, or any error of ``chunks`` and
    ``before``. ``name`` is unchanged after an error.
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
    """Put a symbolic link at ``name`` in ``folder``, replacing a file or link there. Like :func:`write_file`."""
    temporary = _temporary_name()
    os.symlink(target, temporary, dir_fd=folder)
    try:
        before()
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        _discard(folder, temporary)
        raise


def mount_of(folder: int) -> int:
    """The id of the mount that a descriptor is on."""
    with open(f"/proc/self/fdinfo/{folder}", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("mnt_id:"):
                return int(line.split()[1])
    raise OSError(errno.ENOSYS, "the kernel does not report the mount of a folder")


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
    """At most ``most`` bytes of a file, which may grow meanwhile."""
    while most > 0 and (piece := os.read(fd, min(CHUNK, most))):
        check_deadline()
        most -= len(piece)
        yield piece


class HeldFolder:
    """A folder's descriptor, closed with this object. Raises ``OSError`` for anything but a folder without links."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.fd)
        if os.readlink(f"/proc/self/fd/{self.fd}") != path:
            raise OSError(errno.ELOOP, "a link leads there")
