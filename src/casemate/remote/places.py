"""Where the user's service lies: its socket, and the folder of what it keeps."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casemate.errors import Unavailable
from casemate.files.user_folders import make_private_folders, user_folder

SOCKET = "service.sock"
RUNNING = "running"  # in both folders, locked as long as a service lives; says where it is
STARTING = "starting"  # locked while somebody starts one
LOG = "service.log"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST = 65536  # bytes of what a service says of itself


@dataclass(frozen=True, slots=True)
class Places:
    """``state``: the folder of what the service keeps; ``sockets``: the folder of its socket."""

    state: Path
    sockets: Path


def places_of(environ: Mapping[str, str]) -> Places:
    """Where the service of these variables lies: its socket in ``$XDG_RUNTIME_DIR/casemate`` where that is the user's
    own folder, else with its state in ``$XDG_STATE_HOME/casemate/service`` (XDG Base Directory Specification).

    Raises ``Unavailable`` where neither XDG_STATE_HOME nor HOME is set.
    """
    state = user_folder(environ, "state", "the service has no place for what it keeps") / "service"
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and _is_own_folder(runtime):
        return Places(state, Path(runtime, "casemate"))
    return Places(state, state)


def open_private(folder: Path, *, make: bool = False) -> int:
    """A descriptor of a folder that is this user's alone; with ``make`` it is made where it is missing, 0700.

    Raises ``Unavailable`` where it is a link, another user's, or open to others, and ``FileNotFoundError``.
    """
    if make:
        make_private_folders(folder)
    try:
        fd = os.open(folder, _OPEN)
    except FileNotFoundError:
        raise
    except OSError as error:
        is_link = error.errno in (errno.ELOOP, errno.ENOTDIR)
        raise _unusable(folder, "it is a link, or no folder" if is_link else str(error.strerror)) from None
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        os.close(fd)
        raise _unusable(folder, "it belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.close(fd)
        raise _unusable(folder, "it is open to other users", f"chmod 700 {folder}")
    return fd


def read_running(place: Path) -> dict[str, Any]:
    """What the service that lives, or lived last, says of itself in one of its folders (``pid``, ``state``,
    ``sockets``, ``version``); {} where nothing is known. Raises ``Unavailable`` as :func:`open_private`."""
    try:
        folder = open_private(place)
    except FileNotFoundError:
        return {}
    try:
        fd = os.open(RUNNING, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return {}
    finally:
        os.close(folder)
    with os.fdopen(fd, "rb") as file:
        try:
            said = json.loads(file.read(_MOST) or b"{}")
        except ValueError:
            return {}
    return said if isinstance(said, dict) else {}


def socket_folders(places: Places) -> list[Path]:
    """Where a service of this state may be reached, the likeliest first: one that was started with other variables
    listens elsewhere."""
    told = read_running(places.state).get("sockets")
    known = [places.sockets, *([Path(told)] if isinstance(told, str) and os.path.isabs(told) else []), places.state]
    return list(dict.fromkeys(known))


def _is_own_folder(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _unusable(folder: Path, why: str, remediation: str = "") -> Unavailable:
    return Unavailable(f"the folder {str(folder)!r} cannot be used for the service: {why}", remediation=remediation)
