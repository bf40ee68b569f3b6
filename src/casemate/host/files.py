"""Host files beneath the roots that a policy names. Links are never followed; a write replaces the whole file."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from casemate.errors import Denied, InvalidArgument, Unavailable
from casemate.files.beneath import Attributes, Hashed, hold, pieces_of, write_file
from casemate.files.names import LONGEST_PATH, problem
from casemate.files.protected import PROTECTED
from casemate.policy.host import HostRoot, HostTerms
from casemate.sessions.files import FileInfo, info_of
from casemate.supervisor.trees.walk import open_beneath, status_of
from casemate.workspace.text import MOST_BYTES, TextDiffs

MOST_READ = 16 << 20  # bytes of one answer
MOST_COPY = 1 << 30  # bytes of a file that is copied or written
_MOST_ENTRIES = 1000  # of a listed folder
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


@dataclass(frozen=True, slots=True)
class HostPlace:
    root: HostRoot
    names: tuple[str, ...]  # beneath it

    @property
    def path(self) -> str:
        return "/".join((self.root.path.rstrip("/"), *self.names))


def find_place(terms: HostTerms | None, path: str, *, write: bool = False, argument: str = "path") -> HostPlace:
    """Find the root of ``path``. Raises ``Denied`` if it is beneath none or may not be written, and ``InvalidArgument``
    if it is not a canonical absolute path."""
    roots = terms.roots if terms else ()
    if not roots:
        raise Denied(
            "the policy opens no files of the host",
            remediation="The operator's policy names folders: host: {roots: [{path: /data, write: false}]}.",
        )
    size = len(path.encode("utf-8", "surrogatepass")) if isinstance(path, str) and path.startswith("/") else 0
    if not 0 < size <= LONGEST_PATH:
        raise InvalidArgument(argument, f"{str(path)[:200]!r} is not an absolute path like {roots[0].path}/notes.txt")
    names = tuple(path.rstrip("/").split("/")[1:])
    for name in names:
        if why := problem(name.encode("utf-8", "surrogatepass")):
            raise InvalidArgument(argument, f"{path[:200]!r}: {why}; write the path without '.', '..' and '//'")
    for root in sorted(roots, key=lambda one: len(one.path), reverse=True):
        above = tuple(root.path.split("/")[1:])
        if names[: len(above)] == above:
            place = HostPlace(root, names[len(above) :])
            if write:
                _check_write(place)
            return place
    raise Denied(f"{path} is not in an open folder; the open folders are {', '.join(one.path for one in roots)}")


def _check_write(place: HostPlace) -> None:
    if not place.root.write:
        raise Denied(f"{place.root.path} is open only for reading")
    if not place.names:
        raise InvalidArgument("path", f"{place.path} is the folder itself; name a file in it")
    if why := PROTECTED.reason(place.names):
        raise Denied(f"{place.path} cannot be written: {why}")


@contextlib.contextmanager
def _folder_of(place: HostPlace, names: tuple[str, ...]) -> Iterator[int]:
    """Open a folder beneath the root. Raises ``InvalidArgument``, and ``Unavailable`` if the disk is full or fails."""
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with hold(os.open(place.root.path, flags)) as root, hold(open_beneath(root, names)) as folder:
            yield folder
    except OSError as error:
        if error.errno in _OF_DISK:
            raise Unavailable(f"{place.path}: {error.strerror}; nothing was changed") from None
        links = "; links are not followed" if error.errno in (errno.ELOOP, errno.ENOTDIR) else ""
        raise InvalidArgument("path", f"{place.path}: {error.strerror}{links}") from None


@contextlib.contextmanager
def open_file(place: HostPlace) -> Iterator[int]:
    """Open a regular file for reading. Raises ``InvalidArgument``."""
    if not place.names:
        raise InvalidArgument("path", f"{place.path} is a folder; name a file in it")
    with _folder_of(place, place.names[:-1]) as folder:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with hold(os.open(place.names[-1], flags, dir_fd=folder)) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise InvalidArgument("path", f"{place.path} is not a regular file")
            yield fd


def read(place: HostPlace, offset: int, most: int) -> bytes:
    """Return at most ``most`` bytes of a file from ``offset`` on. Raises ``InvalidArgument``."""
    with open_file(place) as fd:
        os.lseek(fd, offset, os.SEEK_SET)
        return b"".join(pieces_of(fd, most))


def list_folder(place: HostPlace) -> list[FileInfo]:
    """List a folder, sorted by name. Raises ``InvalidArgument``."""
    with _folder_of(place, place.names) as folder:
        names = sorted(os.listdir(folder))
        if len(names) > _MOST_ENTRIES:
            raise InvalidArgument("path", f"{place.path} has more than {_MOST_ENTRIES} entries; list a folder in it")
        found = []
        for name in names:
            shown = os.fsencode(name).decode("utf-8", "backslashreplace")
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                found.append(info_of(folder, f"{place.path}/{shown}", name))
        return found


def _look(fd: int) -> tuple[str, int, bytes]:
    """Return SHA-256, size and beginning of an open file, and rewind it."""
    os.lseek(fd, 0, os.SEEK_SET)
    hashed = Hashed(pieces_of(fd, MOST_COPY + 1))
    size = sum(map(len, hashed))
    os.lseek(fd, 0, os.SEEK_SET)
    beginning = b"".join(pieces_of(fd, MOST_BYTES + 1))
    os.lseek(fd, 0, os.SEEK_SET)
    return hashed.sha256, size, beginning


def _look_there(place: HostPlace) -> tuple[str, int, bytes]:
    """Do the same for the file at ``place``; the digest is empty if there is none. Raises ``InvalidArgument``."""
    with _folder_of(place, place.names[:-1]) as folder:
        if status_of(folder, place.names[-1]) is None:
            return "", 0, b""
    with open_file(place) as fd:
        return _look(fd)


def describe_change(place: HostPlace, new: int) -> tuple[dict[str, Any], str]:
    """Return what an approver sees of a write (``new``: a descriptor of the content), and the digest of the current
    file, empty if there is none. Raises ``InvalidArgument``."""
    digest, size, after = _look(new)
    if size > MOST_COPY:
        raise InvalidArgument("path", f"has more than {MOST_COPY >> 20} MiB, which is the limit")
    old_digest, old_size, before = _look_there(place)
    change: dict[str, Any] = {"size": size, "sha256": digest}
    if old_digest:
        change |= {"before_size": old_size, "before_sha256": old_digest}
    change["diff"] = "nothing changes" if old_digest == digest else _diff(before, after)
    return change, old_digest


def _diff(before: bytes, after: bytes) -> str:
    """Return the diff of two texts, or why it is not shown."""
    if max(len(before), len(after)) > MOST_BYTES:
        return f"[not shown: more than {MOST_BYTES >> 10} KiB]"
    found = TextDiffs().compare(before, after)
    if found.is_binary:
        return "[not shown: it is not text]"
    return f"{found.text}[{found.left_out}]" if found.left_out else found.text


def write(place: HostPlace, new: int, expected: str) -> FileInfo:
    """Write the content of ``new`` to ``place``, whole or not at all. Raises ``InvalidArgument`` if it cannot be
    written, or the current file no longer has the digest ``expected`` (from :func:`describe_change`)."""
    name = place.names[-1]
    with _folder_of(place, place.names[:-1]) as folder:
        status = status_of(folder, name)
        mode = stat.S_IMODE(status.st_mode) if status is not None and stat.S_ISREG(status.st_mode) else None

        def check() -> None:
            if _look_there(place)[0] != expected:
                raise InvalidArgument("path", f"{place.path} was changed since it was asked about; nothing is written")

        write_file(folder, name, pieces_of(new, MOST_COPY), Attributes(mode=mode), before=check)
        return info_of(folder, place.path, name)
