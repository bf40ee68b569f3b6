"""The mark of an operation, its audience, and its caller.

An operation is a typed method, marked where it is defined. It is for operators only, unless marked for agents.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
_MARK = "__operation__"


class Audience(StrEnum):
    """Who may call an operation. An operator may also call those of agents; a reader of metrics may call none."""

    OPERATOR = "operator"
    AGENT = "agent"
    METRICS = "metrics"


class Mark(NamedTuple):
    audience: Audience
    approver: bool = False  # also for agents that may approve, which then see only their own requests
    name: str = ""  # of the operation; empty for the method's
    gives: Callable[[Any], Any] | None = None  # from the method's result to the operation's
    while_draining: bool = False  # a service that is ending still accepts it: it reports on work, or ends it


def operation(
    *,
    audience: Audience = Audience.OPERATOR,
    approver: bool = False,
    name: str = "",
    gives: Callable[[Any], Any] | None = None,
    while_draining: bool = False,
) -> Callable[[_F], _F]:
    """Mark a typed method as an operation. Returns it unchanged. It may be plain, a coroutine, or an asynchronous
    generator.

    Its docstring describes each parameter, under ``Args`` or as ````name````. A call of the operation fills in
    ``principal``, and replaces the handle of a ``Session`` by the id of a session that the caller may see.
    """

    def mark(method: _F) -> _F:
        setattr(method, _MARK, Mark(audience, approver, name, gives, while_draining))
        return method

    return mark


def mark_of(method: object) -> Mark | None:
    """The mark of a method; None if it is not an operation."""
    mark = getattr(method, _MARK, None)
    return mark if isinstance(mark, Mark) else None


class Principal(NamedTuple):
    """A caller. An agent may only call operations for agents, and sees only its own sessions and runs; an operator sees
    all of ``namespace``."""

    name: str  # "user", the name of a token, or a random one; handles are bound to it, records name it
    audience: Audience
    namespace: str = "default"
    may_approve: bool = False  # of an agent: it may answer its own runs' requests, because a person uses it
    account: str = ""  # what its usage counts for, if one authenticated caller has several names
    secrets: tuple[str, ...] = ()  # names of secrets that an agent's programs get without approval
    may_run_commands: bool = False  # outside of walls, which is as much as the user's account

    @property
    def payer(self) -> str:
        """The account that its usage counts for."""
        return self.account or self.name

    def may_see(self, owner: str) -> bool:
        """Whether it sees what belongs to ``owner``."""
        return self.audience is Audience.OPERATOR or self.name == owner


class Between(NamedTuple):
    """In an annotation: a number from ``low`` to ``high``."""

    low: float
    high: float


class Most(NamedTuple):
    """In an annotation: at most this many characters, entries of a list, or names of a mapping."""

    number: int


class OrNone(NamedTuple):
    """In an annotation: a number that is null in documents if it is infinite."""


class Matches(NamedTuple):
    """In an annotation: a text that fully matches ``pattern``; ``what`` describes it in words."""

    pattern: str
    what: str


class OneOf(NamedTuple):
    """In an annotation: one of these words."""

    words: tuple[str, ...]


_CALLER: ContextVar[str] = ContextVar("caller", default="")
_ACCOUNT: ContextVar[str] = ContextVar("account", default="")  # of an agent; empty for other callers


@contextlib.contextmanager
def called_by(principal: Principal) -> Iterator[None]:
    """Attribute all that starts in the block to this caller, in records and requests, even if it goes on afterwards."""
    is_agent = principal.audience is Audience.AGENT
    tokens = _CALLER.set(principal.name), _ACCOUNT.set(principal.payer if is_agent else "")
    try:
        yield
    finally:
        _CALLER.reset(tokens[0])
        _ACCOUNT.reset(tokens[1])


def caller() -> str:
    """The current caller; empty if it is the application itself."""
    return _CALLER.get()


def agent() -> str:
    """The current caller if it is an agent; else empty."""
    return _CALLER.get() if _ACCOUNT.get() else ""


def account() -> str:
    """The account that usage counts for, if the caller is an agent; else empty."""
    return _ACCOUNT.get()
