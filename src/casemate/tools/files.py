"""Files of definitions, ``{"mcpServers": {...}}`` as other programs have them; and the user's own, which is kept here.

Who may write such a file says what is started on this machine, and what is kept in one may be secret: one that others
may write is refused, and what is written here only its owner reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from casemate.errors import InvalidArgument
from casemate.files.private_files import turn
from casemate.files.user_folders import user_folder
from casemate.policy.canonical import parse
from casemate.tools.connections.definition import check_server_name, read_servers

_MOST_BYTES = 1 << 20  # of a file; the longest seen in use have some kilobytes
_KEY = "mcpServers"
Definitions = dict[str, dict[str, Any]]


def users_file(environ: Mapping[str, str]) -> Path:
    """Where the servers of whoever runs casemate are kept: ``casemate/servers.json`` in the user's configuration.

    Raises ``Unavailable`` where there is no such folder.
    """
    problem, remediation = "the list of MCP servers has no place", "Set HOME, or name a file with --file."
    return user_folder(environ, "config", problem, remediation) / "servers.json"


def definitions_of(given: object) -> Definitions:
    """The definitions that a path or a mapping (of names, or as in such a file) stands for, each of them checked.

    Raises ``InvalidArgument``.
    """
    if isinstance(given, str | os.PathLike):
        place = Path(given).expanduser()
        if not place.exists():
            raise InvalidArgument("tools", f"there is no file {str(place)!r}")
        return read_file(place)
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            "tools", f"{type(given).__name__} is neither a path nor a mapping of names to definitions"
        )
    return _check(given if _KEY in given else {_KEY: given})


def read_file(path: Path) -> Definitions:
    """The definitions in a file, each of them checked; none where there is no such file.

    Raises ``InvalidArgument`` naming the file, and the server and the key.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidArgument("tools", f"cannot read {str(path)!r}: {getattr(error, 'strerror', error)}") from None
    with os.fdopen(fd, "rb") as file:
        _check_owned(path, os.fstat(fd))
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise InvalidArgument("tools", f"{str(path)!r} has more than {_MOST_BYTES} bytes")
    try:
        return _check(parse(data, "tools") if data.strip() else {})
    except InvalidArgument as error:
        raise InvalidArgument("tools", f"{path}: {error.message}", remediation=error.remediation) from None


def choose_servers(path: Path, names: tuple[str, ...] = ()) -> Definitions:
    """The definitions in a file that are named, or all. Raises ``InvalidArgument`` for a name that is not there."""
    kept = read_file(path)
    for name in names:
        if name not in kept:
            known = f"There are {', '.join(kept)}." if kept else "Add one with `casemate tools add`."
            raise InvalidArgument("server", f"there is no server {name[:100]!r} in {path}", remediation=known)
    return {name: kept[name] for name in names or kept}


def users_servers(environ: Mapping[str, str], names: tuple[str, ...]) -> Definitions:
    """Those of :func:`users_file`, as :func:`chosen` has them."""
    return choose_servers(users_file(environ), names)


def begun_at_home(definition: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """A definition for a process without a folder of its own, such as a service: its command begins in the user's home,
    where it names no other folder."""
    if "command" not in definition:
        return dict(definition)
    return {"cwd": environ.get("HOME") or "/", **definition}


def add_to_file(path: Path, name: str, definition: Mapping[str, Any]) -> None:
    """Keep one more definition. Raises ``InvalidArgument`` for one that is none, and for a name that is taken."""
    with _edit(path) as kept:
        if name in kept:
            raise InvalidArgument("server", f"there is a server {name!r} in {path}; remove it first")
        kept.update(_check({_KEY: {name: definition}}))


def remove_from_file(path: Path, name: str) -> None:
    """Forget a definition. Raises ``InvalidArgument`` where there is none of that name."""
    with _edit(path) as kept:
        if kept.pop(check_server_name(name), None) is None:
            raise InvalidArgument("server", f"there is no server {name!r} in {path}")


def _check(given: object) -> Definitions:
    read_servers(given)
    servers: Any = given[_KEY] if isinstance(given, Mapping) and _KEY in given else {}
    return {name: dict(definition) for name, definition in servers.items()}


def _check_owned(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise InvalidArgument("tools", f"{str(path)!r} is not a regular file")
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise InvalidArgument(
            "tools",
            f"{str(path)!r} can be changed by others, who could have anything started here",
            remediation=f"Make it your own: chown $(id -un) {path}; chmod go-w {path}",
        )


@contextlib.contextmanager
def _edit(path: Path) -> Iterator[Definitions]:
    """The definitions, which are written back when the block ends well; one process at a time."""
    place = Path(os.path.realpath(path))
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with turn(folder):
        kept = read_file(place)
        yield kept
        _write(folder, place.name, json.dumps({_KEY: kept}, indent=2, ensure_ascii=False).encode() + b"\n")


def _write(folder: int, name: str, data: bytes) -> None:
    """The file as a whole or not at all, for its owner alone."""
    new = f".{name[:100]}.{secrets.token_hex(8)}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=folder)
        raise
