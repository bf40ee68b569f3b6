"""The mark of an operation, who may call it, and who calls. Pure.

An operation is a typed method that is marked where it stands. Nobody has it who was not told so: without a word it is
for operators alone.
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
    """Who may call an operation. An operator may call those of agents, too; who reads metrics may call none."""

    OPERATOR = "operator"
    AGENT = "agent"
    METRICS = "metrics"


class Mark(NamedTuple):
    """``approver``: also for agents' principals that may approve, who then see only what is their own."""

    audience: Audience
    approver: bool = False


def operation(*, audience: Audience = Audience.OPERATOR, approver: bool = False) -> Callable[[_F], _F]:
    """Mark a typed method, which is returned unchanged: awaited, plain, or an asynchronous generator of events.

    Its parameter ``principal`` is filled in by whoever invokes it, never by the caller. The others are described in its
    docstring, as ````name````: what it means.
    """

    def mark(method: _F) -> _F:
        setattr(method, _MARK, Mark(audience, approver))
        return method

    return mark


def mark_of(method: object) -> Mark | None:
    """The mark of a method; None where it is no operation."""
    mark = getattr(method, _MARK, None)
    return mark if isinstance(mark, Mark) else None


class Principal(NamedTuple):
    """Who calls. ``name``: "user", the name of a token, or a random one: handles are bound to it, records name it.

    An agent may call only what is marked for agents, and sees only its own sessions and runs; an operator sees all of
    ``namespace``. ``may_approve``: an agent's that may answer what its own runs ask for, since a person does that.
    ``secrets``: names of those that an agent's programs get without anybody being asked.
    ``account``: whose share of what there is it uses, where one who has authenticated comes under several names.
    ``may_run_commands``: it may do what runs commands outside of walls, which is as much as the user's account.
    """

    name: str
    audience: Audience
    namespace: str = "default"
    may_approve: bool = False
    account: str = ""
    secrets: tuple[str, ...] = ()
    may_run_commands: bool = False

    @property
    def payer(self) -> str:
        """Against whose limits it counts."""
        return self.account or self.name

    def may_see(self, owner: str) -> bool:
        """Whether what belongs to ``owner`` is there for this one."""
        return self.audience is Audience.OPERATOR or self.name == owner


class Between(NamedTuple):
    """In an annotation: a number from ``low`` to ``high``."""

    low: float
    high: float


class Most(NamedTuple):
    """In an annotation: at most so many characters, entries of a list, or names of a mapping."""

    number: int


class OneOf(NamedTuple):
    """In an annotation: one of these words."""

    words: tuple[str, ...]


_CALLER: ContextVar[str] = ContextVar("caller", default="")
_ACCOUNT: ContextVar[str] = ContextVar("account", default="")  # of an agent; empty for all others


@contextlib.contextmanager
def called_by(principal: Principal) -> Iterator[None]:
    """What is begun meanwhile is that one's, also what goes on by itself later: in records and in what it asks."""
    is_agent = principal.audience is Audience.AGENT
    tokens = _CALLER.set(principal.name), _ACCOUNT.set(principal.payer if is_agent else "")
    try:
        yield
    finally:
        _CALLER.reset(tokens[0])
        _ACCOUNT.reset(tokens[1])


def caller() -> str:
    """Whose this is; empty where the application itself does it."""
    return _CALLER.get()


def agent() -> str:
    """The same where it is an agent's; else empty."""
    return _CALLER.get() if _ACCOUNT.get() else ""


def account() -> str:
    """Against whose limits it counts, where it is an agent's; else empty."""
    return _ACCOUNT.get()
