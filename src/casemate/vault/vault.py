"""The vault as a sandbox sees it: the secrets of one namespace, which it cannot leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from casemate.errors import InvalidArgument, Unavailable, VaultUnavailable
from casemate.model.secrets import NO_SECRETS, Secrets
from casemate.vault.names import check_asked, check_name, check_value
from casemate.vault.store import Store

Note = Callable[[str, str, Mapping[str, object]], None]  # kind, namespace, detail
T = TypeVar("T")


class Vault:
    """The secrets of one namespace. Values go in and are given to programs; nothing here hands one back."""

    def __init__(self, store: Store, namespace: str, note: Note) -> None:
        """``note``: writes a row of the record."""
        self._store = store
        self._namespace = namespace
        self._note = note

    async def set(self, name: str, value: str, *, inject: object = None) -> None:
        """Keep ``value`` as ``name``, in place of one of that name.

        Raises ``InvalidArgument`` for a name that is none or that loaders read, and for a value of less than 8 bytes;
        ``VaultUnavailable``; and ``Unavailable`` for ``inject``, which this version cannot do.
        """
        if inject is not None:
            raise Unavailable(
                "inject: this version has no door that could put a secret into a request",
                remediation="Leave inject out: the program then sees the value in its variable.",
            )
        checked = check_value(check_name(name), value)
        await asyncio.to_thread(self._noted, "set", name, lambda: self._store.set(self._namespace, name, checked))

    async def delete(self, name: str) -> None:
        """Forget it; programs that run have it still, and it is still replaced in what they say.

        Raises ``InvalidArgument`` where there is none of that name, and ``VaultUnavailable``.
        """
        check_name(name)
        if not await asyncio.to_thread(self._noted, "delete", name, lambda: self._store.delete(self._namespace, name)):
            raise InvalidArgument("name", _unknown(name))

    async def names(self) -> tuple[str, ...]:
        """The names that there are. Raises ``VaultUnavailable``."""
        return await asyncio.to_thread(self._noted, "", "", lambda: self._store.names(self._namespace))

    def resolve(self, names: object) -> Secrets:
        """The secrets that a run asks for. Raises ``InvalidArgument`` for a name that there is none of, whether it is
        another namespace's or nobody's, and ``VaultUnavailable``. May block."""
        asked = check_asked(names)
        if not asked:
            return NO_SECRETS
        return Secrets(self._noted("", "", lambda: {name: self._value(name) for name in asked}))

    async def resolved(self, names: object) -> Secrets:
        """The same, without blocking the event loop."""
        return await asyncio.to_thread(self.resolve, names) if check_asked(names) else NO_SECRETS

    def _value(self, name: str) -> str:
        value = self._store.get(self._namespace, name)
        if value is None:
            raise InvalidArgument("secrets", _unknown(name))
        try:
            return check_value(name, value)  # a store may be the environment, or anybody's
        except InvalidArgument as error:
            raise InvalidArgument("secrets", error.message.removeprefix("value: ")) from None

    def _noted(self, action: str, name: str, work: Callable[[], T]) -> T:
        """``work``, with a row of the record for a change, and for a vault that is not as it was left."""
        try:
            done = work()
        except VaultUnavailable as error:
            self._note(
                "vault",
                self._namespace,
                {"action": action or "read", "name": name, "problem": error.message, "reason": error.reason},
            )
            raise
        if action:
            self._note("vault", self._namespace, {"action": action, "name": name, "done": done is not False})
        return done


def _unknown(name: str) -> str:
    return f"there is no secret {name} in this namespace; put one there with sandbox.vault.set or `casemate vault set`"
