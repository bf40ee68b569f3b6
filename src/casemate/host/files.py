"""Files beneath the roots that a policy names: found without following any link, read and written whole."""

from __future__ import annotations

import contextlib
import difflib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from casemate.errors import Denied, InvalidArgument, Unavailable
from casemate.files.beneath import Attributes, open_beneath, pieces_of, status_of, write_file
from casemate.files.names import LONGEST_PATH, problem
from casemate.files.protected import PROTECTED
from casemate.policy.host import HostRoot, HostTerms

MOST_READ = 16 << 20  # bytes that one answer has
MOST_COPY = 1 << 30  # bytes of one file that is copied
MOST_ENTRIES = 1000  # of one folder that are listed
_MOST_DIFF = 256 << 10  # bytes of each side that are compared line by line
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_MOST_SHOWN = 100_000  # characters of a difference that somebody is shown


@dataclass(frozen=True, slots=True)
class HostFile:
    """A file or folder of the host's.

    Attributes:
        path: Absolute.
        kind: ``"file"``, ``"folder"``, ``"link"`` or ``"other"``.
        size: In bytes, of a file.
        modified: In seconds since 1970.
    """

    path: str
    kind: str
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class HostPlace:
    """Where a path leads: ``names`` beneath ``root``."""

    root: HostRoot
    names: tuple[str, ...]

    @property
    def path(self) -> str:
        return "/".join((self.root.path.rstrip("/"), *self.names))


def find_place(terms: HostTerms | None, path: str, *, write: bool = False, argument: str = "path") -> HostPlace:
    """The place that ``path`` names. Raises ``Denied`` where no root has it or it may not be written there, and
    ``InvalidArgument`` for what is no canonical absolute path."""
    roots = terms.roots if terms else ()
    if not roots:
        raise Denied(
            "no files of the host are open to anybody",
            remediation="The operator's policy names folders: host: {roots: [{path: /data, write: false}]}.",
        )
    if not isinstance(path, str) or not path.startswith("/") or len(os.fsencode(path)) > LONGEST_PATH:
        raise InvalidArgument(argument, f"{str(path)[:200]!r} is no absolute path, such as {roots[0].path}/notes.txt")
    names = tuple(path.rstrip("/").split("/")[1:])
    for name in names:
        if why := problem(name.encode("utf-8", "surrogatepass")):
            raise InvalidArgument(argument, f"{path[:200]!r}: {why}; write the path without '.', '..' and '//'")
    for root in sorted(roots, key=lambda one: len(one.path), reverse=True):
        above = tuple(root.path.split("/")[1:])
        if names[: len(above)] == above:
            return _check_write(HostPlace(root, names[len(above) :]), write=write)
    raise Denied(f"{path} is in no folder that is open: these are {', '.join(one.path for one in roots)}")


def _check_write(place: HostPlace, *, write: bool) -> HostPlace:
    if not write:
        return place
    if not place.root.write:
        raise Denied(f"{place.root.path} is open for reading alone")
    if not place.names:
        raise InvalidArgument("path", f"{place.path} is the folder itself; name a file in it")
    if why := PROTECTED.reason(place.names):
        raise Denied(f"{place.path} is not written: {why}")
    return place


@contextlib.contextmanager
def _folder_of(place: HostPlace, names: tuple[str, ...]) -> Iterator[int]:
    """A descriptor of a folder beneath the root. Raises ``InvalidArgument``."""
    root = folder = -1
    try:
        root = os.open(place.root.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        folder = open_beneath(root, names)
        yield folder
    except OSError as error:
        if error.errno in _OF_DISK:
            raise Unavailable(f"{place.path} cannot be written: {error.strerror}; nothing has changed there") from None
        links = "; links are not followed" if error.errno in (errno.ELOOP, errno.ENOTDIR) else ""
        raise InvalidArgument("path", f"{place.path}: {error.strerror}{links}") from None
    finally:
        for fd in (folder, root):
            if fd >= 0:
                os.close(fd)


@contextlib.contextmanager
def open_file(place: HostPlace) -> Iterator[int]:
    """A descriptor of a regular file, to be read. Raises ``InvalidArgument``."""
    if not place.names:
        raise InvalidArgument("path", f"{place.path} is a folder; name a file in it")
    with _folder_of(place, place.names[:-1]) as folder:
        fd = os.open(place.names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise InvalidArgument("path", f"{place.path} is no regular file")
            yield fd
        finally:
            os.close(fd)


def read(place: HostPlace, offset: int, most: int) -> bytes:
    """Bytes of a file from ``offset`` on, at most ``most``. Raises ``InvalidArgument``."""
    with open_file(place) as fd:
        os.lseek(fd, offset, os.SEEK_SET)
        return b"".join(pieces_of(fd, most))


def list_folder(place: HostPlace) -> tuple[list[HostFile], bool]:
    """What is in a folder, by name, and whether that is all. Raises ``InvalidArgument``."""
    with _folder_of(place, place.names) as folder:
        names = sorted(os.listdir(folder))
        found = [_about(place, name, status) for name in names[:MOST_ENTRIES] if (status := status_of(folder, name))]
        return found, len(names) <= MOST_ENTRIES


def _about(place: HostPlace, name: str, status: os.stat_result) -> HostFile:
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISLNK, "link"))
    kind = next((kind for is_kind, kind in kinds if is_kind(status.st_mode)), "other")
    shown = os.fsencode(name).decode("utf-8", "backslashreplace")
    return HostFile(f"{place.path}/{shown}", kind, status.st_size if kind == "file" else 0, status.st_mtime)


def file_with(data: bytes) -> int:
    """A descriptor of a file in memory that has ``data``."""
    new = os.memfd_create("casemate-host-file", os.MFD_CLOEXEC)
    with open(new, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(new, 0, os.SEEK_SET)
    return new


def digest_of(fd: int) -> tuple[str, int]:
    """SHA-256 and size of what a descriptor has from where it is."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces_of(fd, MOST_COPY + 1):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size


def describe_change(place: HostPlace, new: int) -> tuple[dict[str, Any], str]:
    """What whoever is asked is shown of a file that is to be written (``new``: its content's descriptor), and the
    digest of what is there now, empty where nothing is. Raises ``InvalidArgument``."""
    digest, size = digest_of(new)
    if size > MOST_COPY:
        raise InvalidArgument("path", f"has more than {MOST_COPY >> 20} MiB, which are the most")
    os.lseek(new, 0, os.SEEK_SET)
    change: dict[str, Any] = {"size": size, "sha256": digest}
    before = b""
    old_digest = ""
    with contextlib.suppress(FileNotFoundError), _folder_of_existing(place) as old:
        old_digest, old_size = digest_of(old)
        change |= {"before_size": old_size, "before_sha256": old_digest}
        os.lseek(old, 0, os.SEEK_SET)
        before = b"".join(pieces_of(old, _MOST_DIFF + 1))
    after = b"".join(pieces_of(new, _MOST_DIFF + 1))
    os.lseek(new, 0, os.SEEK_SET)
    if old_digest == digest:
        change["diff"] = "nothing changes"
    elif (diff := _diff(before, after)) is not None:
        change["diff"] = diff
    return change, old_digest


@contextlib.contextmanager
def _folder_of_existing(place: HostPlace) -> Iterator[int]:
    """As :func:`open_file`; raises ``FileNotFoundError`` where nothing is there yet."""
    with _folder_of(place, place.names[:-1]) as folder:
        is_there = status_of(folder, place.names[-1]) is not None
    if not is_there:
        raise FileNotFoundError
    with open_file(place) as fd:
        yield fd


def _diff(before: bytes, after: bytes) -> str | None:
    """The difference of two texts; None where one is no text, or too long to be compared."""
    if max(len(before), len(after)) > _MOST_DIFF or b"\0" in before + after:
        return None
    try:
        now, then = (side.decode("utf-8").splitlines(keepends=True) for side in (before, after))
    except UnicodeDecodeError:
        return None
    told = "".join(
        line if line.endswith("\n") else f"{line}\n" for line in difflib.unified_diff(now, then, "now", "then")
    )
    left = len(told) - _MOST_SHOWN
    return told if left <= 0 else f"{told[:_MOST_SHOWN]}\n[{left} characters more are not shown]"


def write(place: HostPlace, new: int, expected: str) -> HostFile:
    """Put what ``new`` has at ``place``, whole or not at all. ``expected``: the digest of what is there, as of
    :func:`describe_change`. Raises ``InvalidArgument`` where that is something else now, or it cannot be written."""
    name = place.names[-1]
    with _folder_of(place, place.names[:-1]) as folder:
        status = status_of(folder, name)
        mode = stat.S_IMODE(status.st_mode) if status is not None and stat.S_ISREG(status.st_mode) else None

        def check() -> None:
            found = ""
            with contextlib.suppress(FileNotFoundError), _folder_of_existing(place) as old:
                found, _ = digest_of(old)
            if found != expected:
                raise InvalidArgument("path", f"{place.path} was changed since it was asked about; nothing is written")

        write_file(folder, name, pieces_of(new, MOST_COPY), Attributes(mode=mode), before=check)
        written = status_of(folder, name)
        assert written is not None
        return HostFile(place.path, "file", written.st_size, written.st_mtime)
