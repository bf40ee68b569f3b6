"""The files of other programs: read whole, and replaced in one step with what they held kept beside them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from casemate.errors import InvalidArgument
from casemate.files.beneath import Attributes, write_file

_MOST_BYTES = 16 << 20  # of a file; settings have kilobytes, Claude Code's own file some megabytes
_MOST_KEPT = 100  # earlier contents beside a file
_KEPT = "before-casemate"


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """``path``: the file itself, links followed; ``text``: what it says, empty where there is none; ``status``: None
    where there is none."""

    path: Path
    text: str
    status: os.stat_result | None


def read_settings(named: str) -> SettingsFile:
    """What is there. Raises ``InvalidArgument`` for what is no regular file, too large, or no UTF-8."""
    path = Path(os.path.realpath(named))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return SettingsFile(path, "", None)
    except OSError as error:
        raise _unusable(named, str(error.strerror)) from None
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _unusable(named, "it is no regular file")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise _unusable(named, f"it has more than {_MOST_BYTES >> 20} MiB")
    try:
        return SettingsFile(path, data.decode("utf-8"), status)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _unusable(named, f"line {line} is no UTF-8") from None


def replace(found: SettingsFile, text: str) -> Path | None:
    """Put ``text`` there, with the mode and the owner of what was there; a new file is its owner's alone.

    The earlier content is kept beside it; gives where, or None where there was none. Raises ``InvalidArgument`` where
    the file has changed since it was found, or cannot be written.
    """
    try:
        found.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(found.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(str(found.path), str(error.strerror)) from None
    try:
        kept = None if found.status is None else _keep(folder, found)
        write_file(
            folder, found.path.name, [text.encode()], _attributes(found), before=_unchanged(found), flush=True
        )  # fmt: skip
    except OSError as error:
        raise _unusable(str(found.path), str(error.strerror)) from None
    finally:
        os.close(folder)
    return kept


def _keep(folder: int, found: SettingsFile) -> Path:
    """The content as it was, in a file of its own whose name is free."""
    for number in range(_MOST_KEPT):
        name = f"{found.path.name}.{_KEPT}" + (f".{number}" if number else "")
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            write_file(folder, name, [found.text.encode()], _attributes(found), flush=True)
            return found.path.with_name(name)
    raise _unusable(str(found.path), f"there are {_MOST_KEPT} earlier contents beside it; remove some")


def _attributes(found: SettingsFile) -> Attributes:
    if found.status is None:
        return Attributes(mode=0o600)
    owner = (found.status.st_uid, found.status.st_gid)
    is_ours = owner == (os.geteuid(), os.getegid())
    return Attributes(mode=found.status.st_mode, owner=None if is_ours else owner)


def _unchanged(found: SettingsFile) -> Callable[[], None]:
    def check() -> None:
        if read_settings(str(found.path)).text != found.text:
            raise _unusable(str(found.path), "it has changed meanwhile; start again")

    return check


def _unusable(path: str, why: str) -> InvalidArgument:
    return InvalidArgument("client", f"{path!r} is left as it is: {why}")
