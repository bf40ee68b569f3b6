"""The building blocks of `casemate.sync`: proxies whose methods wait for the asynchronous API's methods."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from dataclasses import fields
from inspect import isasyncgen
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast, overload

from casemate.errors import SandboxClosed
from casemate.model import approval as asynchronous_request
from casemate.model.call_options import DecisionOptions
from casemate.model.options import complete, takes_options

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
Wait = Callable[[Callable[[], Any]], Any]
"""Calls a function in the sandbox's event loop, awaits its result if necessary, and returns it."""


class Blocking:
    """A part of a sandbox with blocking methods, such as ``session.files`` or ``sandbox.packages``.

    Names, arguments, results and errors are the same as in the asynchronous API."""

    asynchronous: Any
    _wait: Wait

    def __init__(self, asynchronous: Any, wait: Wait) -> None:
        self.asynchronous = asynchronous
        self._wait = wait

    def __repr__(self) -> str:
        return repr(self.asynchronous)

    def __getattr__(self, name: str) -> Any:
        if name in ("asynchronous", "_wait"):  # not set yet, during construction or unpickling
            raise AttributeError(name)
        value = getattr(self.asynchronous, name)
        if not callable(value):
            return value

        @functools.wraps(value)
        def call(*arguments: Any, **named: Any) -> Any:
            return self._call(name, *arguments, **named)

        return call

    def _call(self, name: str, /, *arguments: Any, **named: Any) -> Any:
        call = functools.partial(
            getattr(self.asynchronous, name), *map(plain, arguments), **{key: plain(one) for key, one in named.items()}
        )
        outcome = self._wait(call)
        return each(cast("AsyncGenerator[Any]", outcome), self._wait) if isasyncgen(outcome) else outcome


def plain(one: Any) -> Any:
    """The asynchronous object behind an object of this package. Any other value is returned unchanged."""
    return getattr(one, "asynchronous", one)


@overload
def block_on(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]: ...
@overload
def block_on(
    method: Callable[Concatenate[Any, P], AsyncGenerator[R]],
) -> Callable[Concatenate[Any, P], Iterator[R]]: ...
@overload
def block_on(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]: ...
@overload
def block_on(
    method: Callable[Concatenate[Any, P], Any], made: Callable[[Any, Wait], S]
) -> Callable[Concatenate[Any, P], S]: ...
def block_on(method: Callable[..., Any], made: Callable[[Any, Wait], Any] | None = None) -> Callable[..., Any]:
    """A blocking version of ``method`` for :class:`Blocking` objects. An async generator becomes an iterator.
    ``made`` converts the result to a class of this package."""

    @functools.wraps(method)
    def call(self: Blocking, /, *arguments: Any, **named: Any) -> Any:
        outcome = self._call(method.__name__, *arguments, **named)
        return outcome if made is None else made(outcome, self._wait)

    return call


def each(events: AsyncGenerator[Any], wait: Wait) -> Iterator[Any]:
    """Iterate over ``events``. Leaving early closes the stream."""
    try:
        while (event := wait(functools.partial(anext, events, None))) is not None:
            yield make_blocking(event) if isinstance(event, asynchronous_request.ApprovalRequest) else event
    finally:
        with contextlib.suppress(SandboxClosed):  # closing the sandbox has closed the stream
            wait(events.aclose)


class ApprovalRequest(asynchronous_request.ApprovalRequest):
    """``casemate.ApprovalRequest`` with blocking methods, as streams and ``approvals.pending()`` return it here."""

    __slots__ = ()

    @takes_options(DecisionOptions)
    def approve(self, **options: Unpack[DecisionOptions]) -> bool:  # type: ignore[override]
        """See :meth:`casemate.ApprovalRequest.approve`."""
        return self._decide(asynchronous_request.Decision(True, **complete(DecisionOptions, options, "approve")))

    def deny(self, reason: str = "") -> bool:  # type: ignore[override]
        """See :meth:`casemate.ApprovalRequest.deny`."""
        return self._decide(asynchronous_request.Decision(reason=reason))


def make_blocking(request: asynchronous_request.ApprovalRequest) -> ApprovalRequest:
    """The same request with blocking methods."""
    return ApprovalRequest(*(getattr(request, field.name) for field in fields(request)))


class Approvals:
    """``sandbox.approvals``. Its methods never wait; this class only makes its requests blocking."""

    def __init__(self, approvals: Any) -> None:
        self._approvals = approvals

    def pending(self) -> list[ApprovalRequest]:
        """See :meth:`casemate.approvals.approvals.Approvals.pending`."""
        return [make_blocking(request) for request in self._approvals.pending()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._approvals, name)
