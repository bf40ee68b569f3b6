"""``sandbox.egress``: a host is asked for ahead, before any program connects to it."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from casemate.approvals.requester import Origin
from casemate.errors import InvalidArgument
from casemate.model.approval import Question
from casemate.model.operation import agent, caller
from casemate.policy.hosts import LOCAL_NAME, MOST_PORT, canonical

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from casemate.execution.context import ExecutionContext
    from casemate.policy.hosts import HostRules
    from casemate.sessions.session import Session

_MOST_AT_ONCE = 16  # questions of one caller that wait; its others are asked when these are answered
_MOST_REASON = 500  # characters


@dataclass(frozen=True, slots=True)
class EgressAnswer:
    """What was decided about a host.

    Attributes:
        domain: Its canonical name.
        scope: For what it holds: ``"rule"`` as long as the rules that were written say so, ``"once"`` for the next
            connection, ``"session"`` for all of the session, ``"agent"`` for all runs and sessions of the agent of a
            service that asked, ``"namespace"`` for all of the sandbox; empty where it was denied.
        expires: Unix time, None for the whole scope.
        by: The rule or the channel.
    """

    domain: str
    port: int
    allowed: bool
    scope: str
    expires: float | None
    by: str
    reason: str


class Egress:
    """Asks on the sandbox's approval broker."""

    def __init__(
        self,
        context: Callable[[], ExecutionContext],
        namespace: str,
        session: Callable[[str], Awaitable[tuple[str, HostRules | None]]],
    ) -> None:
        """``session``: the id of an open one by its id or name, and what it may reach. Raises ``InvalidArgument``."""
        self._context = context
        self._namespace = namespace
        self._session = session
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # by caller

    async def request(
        self, domain: str, *, port: int = 443, reason: str = "", session: Session | str | None = None
    ) -> EgressAnswer:
        """Ask whether programs may connect to ``domain``, wait for the answer, and give it.

        An answer once, or for a run, is good for one connection; one for a session holds as long as the session, or the
        sandbox. Nothing is connected or resolved here. Without anybody to ask it is denied at once.

        Args:
            domain: A host name.
            port: Of the connection.
            reason: Shown to whoever is asked, as the requester's own words.
            session: An open one, or its id or name: the answer is for it alone; without one it is for all runs and
                sessions of the sandbox, but for those whose own lists do not name it.

        Raises:
            InvalidArgument: It is no host name.
            CasemateError: As of :meth:`casemate.Sandbox.run`.
        """
        name = _name(domain)
        if type(port) is not int or not 1 <= port <= MOST_PORT:
            raise InvalidArgument("port", f"{port!r} is not a port from 1 to {MOST_PORT}")
        if not isinstance(reason, str):
            raise InvalidArgument("reason", f"{reason!r} is not a str")
        context = self._context()
        whose, hosts = None, context.hosts
        if session is not None:
            whose, hosts = await self._session(session if isinstance(session, str) else session.id)
        if (answer := _answer_by_rule(hosts, name, port)) is not None:
            return answer
        assert hosts is not None
        turn = self._turns.setdefault(caller(), asyncio.Semaphore(_MOST_AT_ONCE))
        async with turn:
            requester = context.approvals().requester(
                Origin(self._namespace, whose, os.urandom(16).hex()), None, for_later=True
            )
            try:
                verdict = await asyncio.wrap_future(requester.decide(_question(hosts, name, port, reason, whose)))
            finally:
                await requester.end()
        if not verdict.allow:
            return EgressAnswer(name, port, False, "", None, verdict.by, verdict.reason)
        wide = "session" if whose is not None else "agent" if agent() else "namespace"
        scope = {"": "rule", "session": wide}.get(verdict.scope, "once")
        expires = None if verdict.expires is None else time.time() + verdict.expires
        return EgressAnswer(name, port, True, scope, expires, verdict.by, verdict.reason)


def _answer_by_rule(hosts: HostRules | None, name: str, port: int) -> EgressAnswer | None:
    """What needs no question: no rule of the network can be changed by an answer."""
    if hosts is None:
        return EgressAnswer(name, port, False, "", None, "network", "this sandbox has none as network")
    if hosts.denies(name, port):
        return EgressAnswer(name, port, False, "", None, "denied_domains", "a rule of the network denies it")
    if hosts.allows(name, port):
        return EgressAnswer(name, port, True, "rule", None, "allowed_domains", "")
    return None


def _question(hosts: HostRules, name: str, port: int, reason: str, session: str | None) -> Question:
    """As the egress proxy asks it, so that the answer is found again; in the summary what is different."""
    whom = "this session" if session is not None else f"all runs and sessions{f' of {agent()}' if agent() else ''}"
    plain = "".join(character if character.isprintable() else " " for character in reason[:_MOST_REASON]).strip()
    words = f", they say: {plain}" if plain else ""
    summary = f"let programs of {whom} connect to {name}, port {port}, asked for ahead{words}"
    return Question("egress", summary, {"host": name, "port": port}, beyond=hosts.beyond(name, port))


def _name(domain: object) -> str:
    """The canonical name. Raises ``InvalidArgument``."""
    name = canonical(domain) if isinstance(domain, str) else None
    if name is None or name == LOCAL_NAME or "." not in name or name.endswith(".casemate.internal"):
        raise InvalidArgument(
            "domain", f"{str(domain)[:300]!r} is no host that may be asked for; give a full name, such as 'example.org'"
        )
    return name
