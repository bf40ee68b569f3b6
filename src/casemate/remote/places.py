"""Where the user's service is: its socket, and its state folder."""

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
RUNNING = "running"  # in both folders, locked while a service lives; describes it
STARTING = "starting"  # locked while a service is being started
LOG = "service.log"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST = 65536  # bytes of a service's description


@dataclass(frozen=True, slots=True)
class Places:
    state: Path  # folder of what the service keeps
    sockets: Path  # folder of its socket


def places_of(environ: Mapping[str, str]) -> Places:
    """The places of a service with these variables. Its socket is in ``$XDG_RUNTIME_DIR/casemate`` if the user owns
    that folder, or else with its state in ``$XDG_STATE_HOME/casemate/service`` (XDG Base Directory Specification).

    Raises ``Unavailable`` if neither XDG_STATE_HOME nor HOME is set.
    """
    state = user_folder(environ, "state", "there is no folder for the service's state") / "service"
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and _is_own_folder(runtime):
        return Places(state, Path(runtime, "casemate"))
    return Places(state, state)


def open_private(folder: Path, *, make: bool = False) -> int:
    """A descriptor of a folder that only this user can access. ``make``: create it with mode 0700 if it is missing.

    Raises ``Unavailable`` for a link, or if others own or can access it. Raises ``FileNotFoundError``.
    """
    if make:
        make_private_folders(folder)
    try:
        fd = os.open(folder, _OPEN)
    except FileNotFoundError:
        raise
    except OSError as error:
        is_link = error.errno in (errno.ELOOP, errno.ENOTDIR)
        raise _unusable(folder, "it is a link, or not a folder" if is_link else str(error.strerror)) from None
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        os.close(fd)
        raise _unusable(folder, "it belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.close(fd)
        raise _unusable(folder, "it is open to other users", f"chmod 700 {folder}")
    return fd


def read_running(place: Path) -> dict[str, Any]:
    """The description of the current or last service in one of its folders (``pid``, ``state``, ``sockets``,
    ``version``); {} if there is none. Raises ``Unavailable`` like :func:`open_private`."""
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
    """Folders where a service with this state may listen, the likeliest first: one that was started with other
    variables listens elsewhere."""
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
