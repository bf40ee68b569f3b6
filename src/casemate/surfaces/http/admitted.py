"""Who was let in with a token and is still being answered: all of that ends when the token is no longer what it was."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

from casemate.model.operation import Principal
from casemate.surfaces.http.identity import Refused

_LOOK_EVERY = 0.25  # seconds, while anybody is being answered: one look at the file, whatever their number
_log = logging.getLogger("casemate.service")
PrincipalsOf = Callable[[Collection[str]], Mapping[str, Principal]]


class Admitted:
    """``principals_of`` gives for each of some tokens who comes with it, nothing for one that lets in nobody."""

    def __init__(self, principals_of: PrincipalsOf) -> None:
        self._principals_of = principals_of
        self._open: dict[object, tuple[str, Principal, asyncio.Timeout]] = {}
        self._next: asyncio.TimerHandle | None = None
        self._has_failed = False  # the look before

    def principal_of(self, token: str) -> Principal | None:
        """Who comes with this token now. Raises ``Unavailable``."""
        return self._principals_of([token]).get(token)

    @asynccontextmanager
    async def while_it_holds(self, token: str, principal: Principal) -> AsyncGenerator[None]:
        """What is done within is cancelled soon after ``token`` was removed, has expired, or lets in another than
        ``principal``. Raises :class:`Refused` then."""
        own, held = object(), asyncio.timeout(None)
        try:
            async with held:
                self._open[own] = (token, principal, held)
                self._look_again()
                try:
                    yield
                finally:
                    del self._open[own]
        except TimeoutError:
            if not held.expired():
                raise
            raise Refused(
                401,
                "the token was removed, has expired or was changed, so what was open with it is ended",
                "Ask whoever runs the service for another (casemate service token add).",
            ) from None

    def _look_again(self) -> None:
        if self._next is None and self._open:
            self._next = asyncio.get_running_loop().call_later(_LOOK_EVERY, self._look)

    def _look(self) -> None:
        """One look for all that are open. What cannot be read twice running lets in nobody: once it may just be being
        written, or there was no descriptor left for a moment."""
        self._next = None
        try:
            self._end_all_but(self._principals_of({token for token, _, _ in self._open.values()}))
            self._has_failed = False
        except Exception:  # noqa: BLE001 - whatever it is: nothing stays open because nobody looks any more
            _log.warning("tokens cannot be looked at", exc_info=True, extra={"event": "tokens"})
            if self._has_failed:
                self._end_all_but({})
            self._has_failed = True
        finally:
            self._look_again()

    def _end_all_but(self, known: Mapping[str, Principal]) -> None:
        for token, principal, held in self._open.values():
            if known.get(token) != principal and not held.expired():
                held.reschedule(0)
