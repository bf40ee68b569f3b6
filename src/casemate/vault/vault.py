"""The vault as a sandbox sees it: the secrets of one namespace and no other; and the choice of the store behind it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from casemate.errors import InvalidArgument, Unavailable, VaultUnavailable
from casemate.files.user_folders import user_folder
from casemate.model.approval import Question
from casemate.model.kinds import Name
from casemate.model.operation import operation
from casemate.model.plan import NO_SECRETS, Placeholder, Secrets
from casemate.policy.inject import Inject, Injected
from casemate.vault.names import check_asked, check_injected, check_name, check_value
from casemate.vault.placeholders import placeholder_for
from casemate.vault.store import EnvironmentStore, Kept, Layered, MemoryStore, VaultStore


@dataclass(frozen=True, slots=True)
class HostSecrets:
    """Returns values, so it is not for programs or callers. Its methods may block, and raise ``CasemateError``."""

    store: VaultStore = field(repr=False)
    namespace: str

    def get(self, name: str) -> str | None:
        kept = self.store.get(self.namespace, name)
        return kept.value if isinstance(kept, Injected) else kept

    def set(self, name: str, value: str) -> None:
        self.store.set(self.namespace, name, value)


_METHODS = ("get", "set", "delete", "names")


def store_for(given: object, environ: Mapping[str, str]) -> VaultStore:
    """Return a store: for None one in memory over the host's environment, for a path an encrypted file, else ``given``
    itself. Raises ``InvalidArgument`` and ``VaultUnavailable``."""
    if given is None:
        return Layered(MemoryStore(), EnvironmentStore(environ))
    if isinstance(given, str | os.PathLike):
        from casemate.vault.encrypted_file import EncryptedFile

        path = os.fspath(given)
        if not isinstance(path, str) or not path or "\0" in path:
            raise InvalidArgument("vault", f"{given!r} is not a path")
        store = EncryptedFile(Path(path).expanduser(), environ=environ)
        store.names("")  # fails now, not when a program needs it
        return store
    if all(callable(getattr(given, method, None)) for method in _METHODS):
        return given  # type: ignore[return-value]  # only its methods can be checked
    raise InvalidArgument("vault", f"{type(given).__name__} is neither a path nor a store with {', '.join(_METHODS)}")


def users_store(environ: Mapping[str, str]) -> VaultStore:
    """Return the user's own secrets, over those of the host's environment. Raises ``VaultUnavailable``."""
    from casemate.vault.encrypted_file import EncryptedFile

    path, variables = default_path(environ), EnvironmentStore(environ)
    try:
        return Layered(EncryptedFile(path, environ=environ), variables)
    except VaultUnavailable:
        if os.path.lexists(path):
            raise
        return variables  # no vault exists, and the library for one is missing


def default_path(environ: Mapping[str, str]) -> Path:
    """Return where the command line keeps secrets: in the user's state folder. Raises ``VaultUnavailable`` if the
    environment names neither that folder nor a home."""
    try:
        return user_folder(environ, "state", "there is no folder for the vault") / "vault" / "secrets"
    except Unavailable as error:
        raise VaultUnavailable(error.message, reason="file", remediation=error.remediation) from None


@dataclass(frozen=True, slots=True)
class SecretName:
    """A secret of the vault. ``inject``: where the egress proxy puts its value; None if programs get it."""

    name: str
    inject: Inject | None


def _secret_names(injects: dict[str, Inject | None]) -> list[SecretName]:
    return [SecretName(name, inject) for name, inject in injects.items()]


Note = Callable[[str, str, Mapping[str, object]], None]  # no run (""), the namespace, what happened
_NOTHING_MORE: Mapping[str, object] = {}
T = TypeVar("T")


class Vault:
    """The secrets of one namespace. Programs and their requests get the values; callers cannot read them back. Each
    method raises ``VaultUnavailable`` if the vault cannot be read or written."""

    def __init__(self, store: VaultStore, namespace: str, note: Note, check: Callable[[Question], None]) -> None:
        """``note``: writes a row of the record; ``check``: raises ``Denied`` for a secret that a rule denies."""
        self._store = store
        self._namespace = namespace
        self._note = note
        self._check = check

    @property
    def host_secrets(self) -> HostSecrets:
        """The values, for the host's own connections."""
        return HostSecrets(self._store, self._namespace)

    async def set(self, name: str, value: str, *, inject: Inject | None = None) -> None:
        """Store ``value`` as ``name``, replacing any value of that name. With ``inject`` no program gets it: its
        variable holds a placeholder, and the egress proxy puts the value into the requests that ``inject`` names.

        Raises:
            InvalidArgument: The name is invalid or read by loaders; or the value has fewer than 8 bytes or, with
                ``inject``, does not fit into a header.
        """
        kept: Kept = check_value(check_name(name), value)
        if inject is not None:
            kept = check_injected(name, value, inject)
        where = {"inject": inject.as_json()} if inject is not None else {}
        await asyncio.to_thread(self._record, "set", name, lambda: self._store.set(self._namespace, name, kept), where)

    @operation()
    async def delete(self, name: Name) -> None:
        """Delete a secret. Running programs keep it, and it is still removed from their output.

        Args:
            name: The name of its variable.

        Raises:
            InvalidArgument: No secret has that name.
        """
        check_name(name)
        if not await asyncio.to_thread(self._record, "delete", name, lambda: self._store.delete(self._namespace, name)):
            raise InvalidArgument("name", _unknown(name))

    async def names(self) -> tuple[str, ...]:
        """Return the names of all secrets."""
        return await asyncio.to_thread(self._record, "", "", lambda: self._store.names(self._namespace))

    @operation(name="names", gives=_secret_names)
    async def injects(self) -> dict[str, Inject | None]:
        """List every name with the requests that its value may go into; None if programs get it. Shows no values."""

        def each() -> dict[str, Inject | None]:
            kept = {name: self._store.get(self._namespace, name) for name in self._store.names(self._namespace)}
            return {name: one.inject if isinstance(one, Injected) else None for name, one in kept.items()}

        return await asyncio.to_thread(self._record, "", "", each)

    def resolve(self, names: object) -> Secrets:
        """Return the secrets that a run asks for, with new placeholders. May block. Raises ``InvalidArgument`` for an
        unknown name, also if another namespace has it; ``Denied`` if a rule denies one; and ``VaultUnavailable``."""
        asked = check_asked(names)
        if not asked:
            return NO_SECRETS
        for name in asked:
            self._check(Question("secret", f"give programs the secret {name}", {"name": name}, self._namespace))
        kept = self._record("", "", lambda: {name: self._stored_value(name) for name in asked})
        values = {name: one.value if isinstance(one, Injected) else one for name, one in kept.items()}
        return Secrets(values, [_placeholder(name, one) for name, one in kept.items() if isinstance(one, Injected)])

    async def check_names(self, names: Iterable[str]) -> None:
        """Raise ``InvalidArgument`` for an unknown name. Reads no values."""
        if unknown := set(names).difference(await self.names()):
            raise InvalidArgument("secrets", _unknown(min(unknown)))

    async def resolve_async(self, names: object) -> Secrets:
        """Do what :meth:`resolve` does, without blocking the event loop."""
        return await asyncio.to_thread(self.resolve, names) if check_asked(names) else NO_SECRETS

    def _stored_value(self, name: str) -> Kept:
        kept = self._store.get(self._namespace, name)
        if kept is None:
            raise InvalidArgument("secrets", _unknown(name))
        try:  # the environment and stores of callers check nothing
            return (
                check_injected(name, kept.value, kept.inject) if isinstance(kept, Injected) else check_value(name, kept)
            )
        except InvalidArgument as error:
            raise InvalidArgument("secrets", error.problem) from None

    def _record(self, action: str, name: str, work: Callable[[], T], more: Mapping[str, object] = _NOTHING_MORE) -> T:
        """Do ``work``. Records a change, and a vault that is unavailable."""
        try:
            done = work()
        except VaultUnavailable as error:
            detail = {"action": action or "read", "name": name, "problem": error.message, "reason": error.reason}
            self._note("", self._namespace, detail)
            raise
        if action:
            self._note("", self._namespace, {"action": action, "name": name, "done": done is not False, **more})
        return done


def _placeholder(name: str, kept: Injected) -> Placeholder:
    where = kept.inject
    text = placeholder_for(kept.value)
    return Placeholder(name, text, kept.value, where.places, where.header.lower(), where.format)


def _unknown(name: str) -> str:
    return f"there is no secret {name} in this namespace; `casemate vault set` puts one there"
