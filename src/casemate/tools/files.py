"""Files of server definitions, ``{"mcpServers": {...}}`` as in other programs, and the user's own file.

Anyone who can write such a file can start programs on this machine, and it may hold secrets. So a file that other users
can write is refused, and a file written here is readable only by its owner.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from casemate.errors import InvalidArgument
from casemate.files.beneath import Attributes, write_file
from casemate.files.private_files import turn
from casemate.files.user_folders import check_owned, user_folder
from casemate.policy.canonical import parse
from casemate.tools.connections.definition import check_server_name, read_servers

_MOST_BYTES = 1 << 20  # of a file; real ones have a few kilobytes
_KEY = "mcpServers"
Definitions = dict[str, dict[str, Any]]


def users_file(environ: Mapping[str, str]) -> Path:
    """``casemate/servers.json`` in the user's configuration folder. Raises ``Unavailable`` without such a folder."""
    problem, remediation = "there is no folder for the list of MCP servers", "Set HOME, or name a file with --file."
    return user_folder(environ, "config", problem, remediation) / "servers.json"


def definitions_of(given: object) -> Definitions:
    """The checked definitions of a file or a mapping (with or without ``mcpServers``). Raises ``InvalidArgument``."""
    if isinstance(given, str | os.PathLike):
        place = Path(given).expanduser()
        if not place.exists():
            raise InvalidArgument("tools", f"the file {str(place)!r} does not exist")
        return read_file(place)
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            "tools", f"{type(given).__name__} is neither a path nor a mapping of names to definitions"
        )
    return _check(given if _KEY in given else {_KEY: given})


def read_file(path: Path) -> Definitions:
    """The checked definitions of a file; none if it does not exist. Raises ``InvalidArgument``."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidArgument("tools", f"cannot read {str(path)!r}: {getattr(error, 'strerror', error)}") from None
    with os.fdopen(fd, "rb") as file:
        check_owned(os.fstat(fd), path, "tools", "so start programs as you")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise InvalidArgument("tools", f"{str(path)!r} has more than {_MOST_BYTES} bytes")
    try:
        return _check(parse(data, "tools") if data.strip() else {})
    except InvalidArgument as error:
        raise InvalidArgument("tools", f"{path}: {error.message}", remediation=error.remediation) from None


def choose_servers(path: Path, names: tuple[str, ...] = ()) -> Definitions:
    """The named definitions in a file, or all. Raises ``InvalidArgument`` for an unknown name."""
    kept = read_file(path)
    for name in names:
        if name not in kept:
            known = f"There are {', '.join(kept)}." if kept else "Add one with `casemate tools add`."
            raise InvalidArgument("server", f"there is no server {name[:100]!r} in {path}", remediation=known)
    return {name: kept[name] for name in names or kept}


def begun_at_home(definition: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """A definition for a service: its command starts in the user's home unless it names another folder."""
    if "command" not in definition:
        return dict(definition)
    return {"cwd": environ.get("HOME") or "/", **definition}


def add_to_file(path: Path, name: str, definition: Mapping[str, Any]) -> None:
    """Add a definition. Raises ``InvalidArgument`` for a bad definition or a name that is taken."""
    with _edit(path) as kept:
        if name in kept:
            raise InvalidArgument("server", f"there is a server {name!r} in {path}; remove it first")
        kept.update(_check({_KEY: {name: definition}}))


def remove_from_file(path: Path, name: str) -> None:
    """Remove a definition. Raises ``InvalidArgument`` for an unknown name."""
    with _edit(path) as kept:
        if kept.pop(check_server_name(name), None) is None:
            raise InvalidArgument("server", f"there is no server {name!r} in {path}")


def _check(given: object) -> Definitions:
    read_servers(given)
    servers: Any = given[_KEY] if isinstance(given, Mapping) and _KEY in given else {}
    return {name: dict(definition) for name, definition in servers.items()}


@contextlib.contextmanager
def _edit(path: Path) -> Iterator[Definitions]:
    """Yield the definitions and write them back if the block succeeds. One process at a time."""
    place = Path(os.path.realpath(path))
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with turn(folder):
        kept = read_file(place)
        yield kept
        data = json.dumps({_KEY: kept}, indent=2, ensure_ascii=False).encode() + b"\n"
        write_file(folder, place.name, [data], Attributes(mode=0o600), flush=True)
