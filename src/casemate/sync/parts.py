"""The parts of a sandbox without ``await``: ``sandbox.approvals``, ``sandbox.vault``, ``sandbox.tools`` and others."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import fields
from inspect import isasyncgen
from typing import TYPE_CHECKING, Any, Unpack, cast

from casemate.errors import SandboxClosed
from casemate.model import approval as asynchronous_request
from casemate.model.call_options import DecisionOptions
from casemate.model.options import complete, takes_options

if TYPE_CHECKING:
    from casemate.api import call_plan as asynchronous_plan
    from casemate.api import sandbox as asynchronous
    from casemate.approvals import approvals as asynchronous_approvals
    from casemate.model.execution import Execution
    from casemate.policy.inject import Inject

Wait = Callable[[Any], Any]


def plain(one: Any) -> Any:
    """What an object of this package stands for."""
    return getattr(one, "asynchronous", one)


class Blocking:
    """Something of a sandbox's whose methods block instead of being awaited: ``session.files``, ``sandbox.packages``,
    ``sandbox.tools``. Their names, arguments, results and errors are the same."""

    def __init__(self, of: object, wait: Wait) -> None:
        self._of = of
        self._wait = wait

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._of, name)

        def call(*arguments: Any, **named: Any) -> Any:
            given = {key: plain(one) for key, one in named.items()}
            made: Any = function(*map(plain, arguments), **given)
            if isasyncgen(made):
                return each(cast("AsyncGenerator[Any]", made), self._wait)
            return self._wait(made)

        return call


def each(events: AsyncGenerator[Any], wait: Wait) -> Iterator[Any]:
    """Events one by one; leaving early closes their stream."""
    try:
        while (event := wait(anext(events, None))) is not None:
            yield make_blocking(event) if isinstance(event, asynchronous_request.ApprovalRequest) else event
    finally:
        with contextlib.suppress(SandboxClosed):  # which has closed it
            wait(events.aclose())


class ApprovalRequest(asynchronous_request.ApprovalRequest):
    """``casemate.ApprovalRequest`` with blocking methods: what streams here have, and ``approvals.pending()``."""

    __slots__ = ()

    @takes_options(DecisionOptions)
    def approve(self, **options: Unpack[DecisionOptions]) -> bool:  # type: ignore[override]
        """See :meth:`casemate.ApprovalRequest.approve`."""
        return self._decide(asynchronous_request.Decision(True, **complete(DecisionOptions, options, "approve")))

    def deny(self, reason: str = "") -> bool:  # type: ignore[override]
        """See :meth:`casemate.ApprovalRequest.deny`."""
        return self._decide(asynchronous_request.Decision(reason=reason))


class Approvals:
    """``sandbox.approvals``; its methods do not wait anyway, but its requests are those of this module."""

    def __init__(self, approvals: asynchronous_approvals.Approvals) -> None:
        self._approvals = approvals

    def pending(self) -> list[ApprovalRequest]:
        """See :meth:`casemate.approvals.approvals.Approvals.pending`."""
        return [make_blocking(request) for request in self._approvals.pending()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._approvals, name)


def make_blocking(request: asynchronous_request.ApprovalRequest) -> ApprovalRequest:
    """The same request with blocking methods."""
    return ApprovalRequest(*(getattr(request, field.name) for field in fields(request)))


class Vault:
    """``sandbox.vault`` with blocking methods."""

    def __init__(self, sandbox: asynchronous.Sandbox, wait: Wait) -> None:
        self._vault = sandbox.vault
        self._wait = wait

    def set(self, name: str, value: str, *, inject: Inject | None = None) -> None:
        """See :meth:`casemate.vault.vault.Vault.set`."""
        self._wait(self._vault.set(name, value, inject=inject))

    def delete(self, name: str) -> None:
        """See :meth:`casemate.vault.vault.Vault.delete`."""
        self._wait(self._vault.delete(name))

    def names(self) -> tuple[str, ...]:
        """See :meth:`casemate.vault.vault.Vault.names`."""
        return cast("tuple[str, ...]", self._wait(self._vault.names()))

    def injects(self) -> dict[str, Inject | None]:
        """See :meth:`casemate.vault.vault.Vault.injects`."""
        return cast("dict[str, Inject | None]", self._wait(self._vault.injects()))


class ProgramPlan:
    """``casemate.ProgramPlan`` with a blocking method."""

    def __init__(self, plan: asynchronous_plan.ProgramPlan, wait: Wait) -> None:
        self.calls, self.execution = plan.calls, plan.execution
        self._plan = plan
        self._wait = wait

    def __repr__(self) -> str:
        return repr(self._plan)

    def run(self) -> Execution:
        """See :meth:`casemate.ProgramPlan.run`."""
        return cast("Execution", self._wait(self._plan.run()))
