"""``sandbox.egress``: requests access to a host before a program connects to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from casemate.errors import InvalidArgument
from casemate.model.approval import Question
from casemate.model.kinds import Name, Port, Reason
from casemate.model.operation import Audience, agent, operation
from casemate.policy.hosts import LOCAL_NAME, MOST_PORT, canonical

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from casemate.execution.context import ExecutionContext
    from casemate.policy.hosts import HostRules
    from casemate.sessions.session import Session


@dataclass(frozen=True, slots=True)
class EgressAnswer:
    """The decision on a host.

    Attributes:
        domain: The host's canonical name.
        scope: How far a grant reaches: ``"rule"`` as long as the rules allow the host, ``"once"`` for the next
            connection, ``"session"`` for the session, ``"agent"`` for all runs and sessions of the service's agent
            that requested it, ``"namespace"`` for the whole sandbox; empty if denied.
        expires: Unix time; None for the whole scope.
        by: The rule or the channel that decided.
    """

    domain: str
    port: int
    allowed: bool
    scope: str
    expires: float | None
    by: str
    reason: str


class Egress:
    """Sends approval requests for hosts to the sandbox's approval broker."""

    def __init__(
        self,
        context: Callable[[], ExecutionContext],
        namespace: str,
        session: Callable[[str], Awaitable[tuple[str, HostRules | None]]],
    ) -> None:
        """``session`` finds an open session by id or name and returns its id and hosts."""
        self._context = context
        self._namespace = namespace
        self._session = session

    @operation(audience=Audience.AGENT)
    async def request(
        self, domain: Name, *, port: Port = 443, reason: Reason = "", session: Session | Name | None = None
    ) -> EgressAnswer:
        """Request that programs may connect to ``domain``, and wait for the decision.

        A decision for once or for a run allows one connection. One for a session lasts as long as the session, or
        without ``session`` as long as the sandbox. Nothing is connected or resolved here. Without an approver the
        request is denied at once.

        Args:
            domain: A host name.
            port: The port of the connection.
            reason: Shown to the approver as the requester's own words.
            session: An open session, or its id or name: the decision is for it alone. Without one it is for all runs
                and sessions of the sandbox, except those whose own lists do not name the host.

        Raises:
            InvalidArgument: ``domain`` is not a host name.
            CasemateError: As for :meth:`casemate.Sandbox.run`.
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
    """The answer if a rule of the network decides; an approver cannot change a rule."""
    if hosts is None:
        return EgressAnswer(name, port, False, "", None, "network", "this sandbox has no network")
    if hosts.denies(name, port):
        return EgressAnswer(name, port, False, "", None, "denied_domains", "a rule of the network denies it")
    if hosts.allows(name, port):
        return EgressAnswer(name, port, True, "rule", None, "allowed_domains", "")
    return None


def _question(hosts: HostRules, name: str, port: int, session: str | None) -> Question:
    """The same question that the egress proxy asks, so that the proxy finds the decision. Only the summary differs."""
    whom = "this session" if session is not None else f"all runs and sessions{f' of {agent()}' if agent() else ''}"
    summary = f"let programs of {whom} connect to {name}, port {port}"
    return Question("egress", summary, {"host": name, "port": port}, beyond=hosts.beyond(name, port))


def _name(domain: object) -> str:
    name = canonical(domain) if isinstance(domain, str) else None
    if name is None or name == LOCAL_NAME or "." not in name or name.endswith(".casemate.internal"):
        raise InvalidArgument(
            "domain", f"{str(domain)[:300]!r} is not a host name; give a full one, such as 'example.org'"
        )
    return name
