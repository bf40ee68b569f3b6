"""Tokens that give other clients access to the service."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from casemate.errors import InvalidArgument, Unavailable
from casemate.files.beneath import Attributes, hold, write_file
from casemate.files.private_files import turn
from casemate.model.operation import Audience, Principal
from casemate.remote.places import open_private
from casemate.surfaces.http.identity import MOST_NAME, is_name
from casemate.vault.names import check_asked

_FILE, _LOCK = "tokens.json", "tokens.lock"
_BEGIN = "casemate"
_ID_BYTES, _SECRET_BYTES = 6, 32  # the secret has 256 bits, so a fast hash of it reveals nothing
_MOST = 1000  # tokens
_MOST_BYTES = 2**20
_NOBODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Token:
    id: str
    name: str
    audience: str
    namespace: str
    may_approve: bool
    created: float  # Unix seconds
    expires: float | None  # Unix seconds
    hash: str  # SHA-256 of the whole token
    secrets: tuple[str, ...] = ()
    may_run_commands: bool = False

    @property
    def principal(self) -> Principal:
        """The token's principal. It also pays for the agents that it names."""
        name = f"token:{self.name}"
        audience = Audience(self.audience)
        return Principal(
            name, audience, self.namespace, self.may_approve, name, self.secrets, self.may_run_commands
        )  # fmt: skip


class Tokens:
    """The tokens in a private folder of the user, shared by processes. ``today`` gives Unix time."""

    def __init__(self, folder: Path, today: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._today = today
        self._seen: tuple[int, int, int] | None = None
        self._known: dict[str, Token] = {}

    def add(
        self,
        name: str,
        *,
        audience: str = "agent",
        namespace: str = "default",
        may_approve: bool = False,
        may_run_commands: bool = False,
        expires_in: float | None = None,
        secrets_for: Sequence[str] = (),
    ) -> str:
        """Make a token. Only its hash is kept. Raises ``InvalidArgument``, including for a name in use.

        ``may_approve``: may answer approval requests; an agent's token only those of its own runs, for surfaces that
        show them to a person. ``may_run_commands``: may run commands outside of walls. ``expires_in``: seconds, None
        for no end. ``secrets_for``: secrets that an agent's programs get without approval.
        """
        _check(name, audience, namespace, expires_in)
        token_id = secrets.token_hex(_ID_BYTES)
        text = f"{_BEGIN}_{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
        now = self._today()
        expires = None if expires_in is None else now + expires_in
        made = Token(
            token_id, name, audience, namespace, may_approve, now, expires, _hash(text), check_asked(secrets_for),
            may_run_commands,
        )  # fmt: skip
        with self._change() as known:
            if any(one.name == name for one in known.values()):
                raise InvalidArgument("name", f"a token {name!r} exists already; remove it, or choose another name")
            if len(known) >= _MOST:
                raise InvalidArgument("name", f"there are {_MOST} tokens; remove some")
            known[token_id] = made
        return text

    def list(self) -> list[Token]:
        """All tokens, including expired ones, the oldest first."""
        return sorted(self._read().values(), key=lambda one: one.created)

    def remove(self, name: str) -> bool:
        """Remove a token. Returns whether it existed."""
        with self._change() as known:
            found = [one.id for one in known.values() if one.name == name]
            for token_id in found:
                del known[token_id]
        return bool(found)

    def principals_of(self, texts: Collection[str]) -> dict[str, Principal]:
        """The principals of the valid tokens among these; unknown and expired ones are left out."""
        known, now = self._read(), self._today()
        found = {text: _find_token(text, known) for text in texts}
        return {
            text: one.principal
            for text, one in found.items()
            if one is not None and (one.expires is None or now < one.expires)
        }

    @contextmanager
    def _change(self) -> Iterator[dict[str, Token]]:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            hold(open_private(self._folder, make=True)) as folder,
            turn(os.open(_LOCK, flags, 0o600, dir_fd=folder)),
        ):
            known = dict(self._read())
            yield known
            text = json.dumps([asdict(one) for one in known.values()], indent=1)
            write_file(folder, _FILE, [text.encode()], Attributes(mode=0o600), flush=True)

    def _read(self) -> dict[str, Token]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with hold(open_private(self._folder)) as folder, hold(os.open(_FILE, flags, dir_fd=folder)) as fd:
                self._look_into(fd)
        except FileNotFoundError:
            self._seen, self._known = None, {}
        except OSError as error:
            raise _unreadable(self._folder, error.strerror or str(error)) from None
        return self._known

    def _look_into(self, fd: int) -> None:
        """Parse the file if it has changed. Raises ``OSError`` and ``Unavailable``."""
        status = os.fstat(fd)
        if status.st_mode & 0o077 or status.st_uid != os.geteuid():
            raise Unavailable(
                f"the tokens in {self._folder / _FILE} are open to other users",
                remediation="Remove the file, and make new tokens.",
            )
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen != self._seen:
            with open(fd, "rb", closefd=False) as file:
                self._known = _parse(file.read(_MOST_BYTES), self._folder)
            self._seen = seen


def _find_token(text: str, known: Mapping[str, Token]) -> Token | None:
    parts = text.split("_", 2)
    one = known.get(parts[1]) if len(parts) == 3 and parts[0] == _BEGIN else None
    is_right = hmac.compare_digest(_hash(text), one.hash if one else _NOBODY)
    return one if is_right else None


def _parse(raw: bytes, folder: Path) -> dict[str, Token]:
    try:
        made = [_token_of(one) for one in json.loads(raw)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _unreadable(folder, str(error)) from None
    return {one.id: one for one in made}


def _unreadable(folder: Path, why: str) -> Unavailable:
    return Unavailable(
        f"the tokens in {folder / _FILE} cannot be read: {why}",
        remediation="Make it a file that you own and can read, or remove it and make new tokens.",
    )


def _token_of(one: Any) -> Token:
    made = Token(**{**one, "secrets": check_asked(one.get("secrets", []))})
    Audience(made.audience)
    texts = (made.id, made.name, made.namespace, made.hash)
    is_ending = made.expires is None or isinstance(made.expires, int | float)
    rights = (made.may_approve, made.may_run_commands)
    if not is_ending or not all(isinstance(text, str) for text in texts) or not {*map(type, rights)} == {bool}:
        raise ValueError("a token has unknown or wrong fields")
    return made


def _check(name: str, audience: str, namespace: str, expires_in: float | None) -> None:
    for argument, given in (("name", name), ("namespace", namespace)):
        if not is_name(given):
            raise InvalidArgument(argument, f"{given!r} is not a printable name of 1 to {MOST_NAME} characters")
    if audience not in set(Audience):
        raise InvalidArgument("audience", f"{audience!r} is not known; choose agent, operator or metrics")
    if expires_in is not None and not 0 < expires_in < float("inf"):
        raise InvalidArgument("expires", f"{expires_in!r} is not a positive number of seconds")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
