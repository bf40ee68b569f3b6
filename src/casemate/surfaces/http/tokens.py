"""Tokens that let others use the service."""

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
from casemate.files.beneath import Attributes, write_file
from casemate.files.private_files import turn
from casemate.model.operation import Audience, Principal
from casemate.remote.places import open_private
from casemate.vault.names import check_asked
from casemate.visible import is_plain

_FILE, _LOCK = "tokens.json", "tokens.lock"
_BEGIN = "casemate"
_ID_BYTES, _SECRET_BYTES = 6, 32  # of which the second is 256 bits, so that a fast hash of it tells nobody anything
_MOST = 1000  # tokens
_MOST_BYTES = 2**20
_MOST_NAME = 100  # characters
_NOBODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Token:
    """What is kept of a token: ``hash`` is the SHA-256 of the whole; ``created``, ``expires``: Unix seconds."""

    id: str
    name: str
    audience: str
    namespace: str
    may_approve: bool
    created: float
    expires: float | None
    hash: str
    secrets: tuple[str, ...] = ()
    may_run_commands: bool = False

    @property
    def principal(self) -> Principal:
        """Who comes with it, and pays for whoever it asks for."""
        name = f"token:{self.name}"
        audience = Audience(self.audience)
        return Principal(
            name, audience, self.namespace, self.may_approve, name, self.secrets, self.may_run_commands
        )  # fmt: skip


class Tokens:
    """The tokens in a folder that is the user's alone. ``today`` gives Unix time.

    Several processes may use it. Raises ``Unavailable`` where the folder or the file cannot be trusted.
    """

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
        """A new token, which nobody can be told again. ``expires_in``: seconds, None for no end. ``secrets_for``: names
        of those that an agent's programs get without anybody being asked.

        ``may_approve``: whoever comes with it may answer what waits to be approved; an agent's only what its own runs
        ask for, which is for surfaces that show a person these questions. ``may_run_commands``: it may have commands
        run outside of walls. Raises ``InvalidArgument``, also for a name that is taken.
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
                raise InvalidArgument("name", f"there is a token {name!r} already; remove it, or take another name")
            if len(known) >= _MOST:
                raise InvalidArgument("name", f"there are {_MOST} tokens; remove some")
            known[token_id] = made
        return text

    def list(self) -> list[Token]:
        """All of them, the oldest first; those that have expired, too."""
        return sorted(self._read().values(), key=lambda one: one.created)

    def remove(self, name: str) -> bool:
        """No longer let in whoever comes with this one; whether there was such a token."""
        with self._change() as known:
            found = [one.id for one in known.values() if one.name == name]
            for token_id in found:
                del known[token_id]
        return bool(found)

    def principals_of(self, texts: Collection[str]) -> dict[str, Principal]:
        """Who comes with each of these tokens; nobody with one that is unknown, or has expired."""
        known, now = self._read(), self._today()
        found = {text: _find_token(text, known) for text in texts}
        return {
            text: one.principal
            for text, one in found.items()
            if one is not None and (one.expires is None or now < one.expires)
        }

    def principal_of(self, text: str) -> Principal | None:
        """Who comes with the token ``text``; None as :meth:`principals_of` leaves it out."""
        return self.principals_of([text]).get(text)

    @contextmanager
    def _change(self) -> Iterator[dict[str, Token]]:
        folder = open_private(self._folder, make=True)
        lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with turn(lock):
                known = dict(self._read())
                yield known
                text = json.dumps([asdict(one) for one in known.values()], indent=1)
                write_file(folder, _FILE, [text.encode()], Attributes(mode=0o600), flush=True)
        finally:
            os.close(folder)

    def _read(self) -> dict[str, Token]:
        try:
            folder = open_private(self._folder)
        except FileNotFoundError:
            return {}
        try:
            fd = os.open(_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            self._seen, self._known = None, {}
            return {}
        except OSError as error:
            raise _unreadable(self._folder, error.strerror or str(error)) from None
        finally:
            os.close(folder)
        try:
            self._look_into(fd)
        except OSError as error:
            raise _unreadable(self._folder, error.strerror or str(error)) from None
        finally:
            os.close(fd)
        return self._known

    def _look_into(self, fd: int) -> None:
        """Read it where it is another than before. Raises ``OSError`` and ``Unavailable``."""
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
        remediation="Make it a file of yours that can be read, or remove it and make new tokens.",
    )


def _token_of(one: Any) -> Token:
    made = Token(**{**one, "secrets": check_asked(one.get("secrets", []))})
    Audience(made.audience)
    texts = (made.id, made.name, made.namespace, made.hash)
    is_ending = made.expires is None or isinstance(made.expires, int | float)
    rights = (made.may_approve, made.may_run_commands)
    if not is_ending or not all(isinstance(text, str) for text in texts) or not {*map(type, rights)} == {bool}:
        raise ValueError("it holds a token of another form")
    return made


def _check(name: str, audience: str, namespace: str, expires_in: float | None) -> None:
    if not 0 < len(name) <= _MOST_NAME or not is_plain(name):
        raise InvalidArgument("name", f"{name!r} is not a printable name of 1 to {_MOST_NAME} characters")
    if audience not in set(Audience):
        raise InvalidArgument("audience", f"{audience!r} is not known; choose agent, operator or metrics")
    if not 0 < len(namespace) <= _MOST_NAME or not is_plain(namespace):
        raise InvalidArgument("namespace", f"{namespace!r} is not a printable name of 1 to {_MOST_NAME} characters")
    if expires_in is not None and not 0 < expires_in < float("inf"):
        raise InvalidArgument("expires", f"{expires_in!r} is not a positive number of seconds")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
