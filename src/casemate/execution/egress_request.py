"""``sandbox.egress``: a host is asked for ahead, before any program connects to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from casemate.errors import InvalidArgument
from casemate.model.approval import Question
from casemate.model.operation import agent
from casemate.policy.hosts import LOCAL_NAME, MOST_PORT, canonical

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from casemate.execution.context import ExecutionContext
    from casemate.policy.hosts import HostRules
    from casemate.sessions.session import Session


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
        context = self._context()
        whose, hosts = None, context.hosts
        if session is not None:
            whose, hosts = await self._session(session if isinstance(session, str) else session.id)
        if (answer := _answer_by_rule(hosts, name, port)) is not None:
            return answer
        assert hosts is not None
        question = _question(hosts, name, port, whose)
        return EgressAnswer(name, port, *await context.approvals().ask_ahead(question, reason, self._namespace, whose))


def _answer_by_rule(hosts: HostRules | None, name: str, port: int) -> EgressAnswer | None:
    """What needs no question: no rule of the network can be changed by an answer."""
    if hosts is None:
        return EgressAnswer(name, port, False, "", None, "network", "this sandbox has none as network")
    if hosts.denies(name, port):
        return EgressAnswer(name, port, False, "", None, "denied_domains", "a rule of the network denies it")
    if hosts.allows(name, port):
        return EgressAnswer(name, port, True, "rule", None, "allowed_domains", "")
    return None


def _question(hosts: HostRules, name: str, port: int, session: str | None) -> Question:
    """As the egress proxy asks it, so that the answer is found again; in the summary what is different."""
    whom = "this session" if session is not None else f"all runs and sessions{f' of {agent()}' if agent() else ''}"
    summary = f"let programs of {whom} connect to {name}, port {port}"
    return Question("egress", summary, {"host": name, "port": port}, beyond=hosts.beyond(name, port))


def _name(domain: object) -> str:
    """The canonical name. Raises ``InvalidArgument``."""
    name = canonical(domain) if isinstance(domain, str) else None
    if name is None or name == LOCAL_NAME or "." not in name or name.endswith(".casemate.internal"):
        raise InvalidArgument(
            "domain", f"{str(domain)[:300]!r} is no host that may be asked for; give a full name, such as 'example.org'"
        )
    return name
