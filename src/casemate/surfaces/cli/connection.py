"""Connects a command to the user's service, and starts the service on demand."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from casemate.errors import CasemateError, InvalidArgument
from casemate.surfaces.cli import interrupts
from casemate.surfaces.cli.answers import print_lines, table_of
from casemate.surfaces.cli.failures import say
from casemate.surfaces.cli.parameters import Output

if TYPE_CHECKING:
    from casemate.remote.client import RemoteOperations


T = TypeVar("T")
_MAX_WAIT = 1.0  # seconds between checks for pending requests
Work = Callable[["RemoteOperations"], Awaitable[T]]


@Parameter(name="*")
@dataclass(frozen=True)
class ServiceOptions:
    """Options of every command of the service.

    Args:
        namespace: The namespace of the sessions, runs and requests; without it, the namespace "default".
    """

    output: Output = "text"
    namespace: str | None = None

    @property
    def is_json(self) -> bool:
        return self.output == "json"


PLAIN = ServiceOptions()


def with_service(work: Work[T], service: ServiceOptions = PLAIN, *, runs: bool = False) -> T:
    """Do ``work`` with a connection to the service that ``CASEMATE_URL`` and ``CASEMATE_TOKEN`` name, or to the user's
    own, started if needed. ``runs``: programs will run, so the service must have this installation's packages."""
    from casemate.remote.client import connect

    async def connect_and_work() -> T:
        url, token = os.environ.get("CASEMATE_URL"), os.environ.get("CASEMATE_TOKEN")
        remote = await connect(url, token if url else None, namespace=service.namespace, runs=runs)
        try:
            return await work(remote)
        finally:
            await remote.close()

    return interrupts.run(connect_and_work())


def ask(service: ServiceOptions, operation: str, **arguments: Any) -> Any:
    """The answer to one operation. Leaves out arguments that are None."""
    sent = {name: value for name, value in arguments.items() if value is not None}
    return with_service(lambda remote: remote(operation, sent), service)


def ask_patiently(service: ServiceOptions, operation: str, **arguments: Any) -> Any:
    """Return the answer to an operation. If it waits for an approval, tell the user where to give it."""
    sent = {name: value for name, value in arguments.items() if value is not None}

    async def ask_and_tell(remote: RemoteOperations) -> Any:
        asking = asyncio.ensure_future(remote(operation, sent))  # noqa: TID251 - always ended here
        try:
            while not (await asyncio.wait([asking], timeout=_MAX_WAIT))[0]:
                if await remote("approvals.pending", {}):
                    say("a request waits for an answer; in another terminal, run: casemate approvals")
                    break
            return await asking
        finally:
            asking.cancel()

    return with_service(ask_and_tell, service)


def ask_each(service: ServiceOptions, operation: str, argument: str, names: Sequence[str]) -> list[Any]:
    """The answers to one operation about each of ``names``. Raises ``InvalidArgument`` if there are none."""
    if not names:
        raise InvalidArgument(argument, "name one or more")

    async def ask_all(remote: RemoteOperations) -> list[Any]:
        return [await remote(operation, {argument: name}) for name in names]

    return with_service(ask_all, service)


def tell_service(operation: str, is_done: type[CasemateError] | tuple[()] = (), **arguments: Any) -> None:
    """Apply a change to a user's file in a running service too. ``is_done``: its error if it already read the file."""
    from casemate.errors import Unavailable
    from casemate.remote.client import attach
    from casemate.surfaces.cli.inert import inert

    async def call_operation() -> None:
        remote = await attach(os.environ)
        try:
            await remote(operation, arguments)
        except is_done:
            pass
        except CasemateError as error:
            say(inert(f"the running service did not accept it: {error.message}"))
        finally:
            await remote.close()

    with contextlib.suppress(Unavailable):
        interrupts.run(call_operation())


Quiet = Annotated[bool, Parameter(name=("--quiet", "-q"), help="Only the first column.")]
_NAMESPACE = "namespace"  # selects the list; other filters select rows from it


def _split_filters(
    filters: Sequence[str], service: ServiceOptions
) -> tuple[ServiceOptions, dict[str, list[str]] | None]:
    """The service options and the operation's ``filters`` for KEY=VALUE filters. Raises ``InvalidArgument``."""
    chosen: dict[str, list[str]] = {}
    for one in filters:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise InvalidArgument("filters", f"{one[:100]!r} is not KEY=VALUE")
        chosen.setdefault(key, []).append(value)
    for namespace in chosen.pop(_NAMESPACE, ()):
        if service.namespace not in (None, namespace):
            raise InvalidArgument("filters", f"one namespace at a time: {service.namespace!r} was given already")
        service = replace(service, namespace=namespace)
    return service, chosen or None


def list_rows(
    operation: str,
    filters: Sequence[str],
    service: ServiceOptions,
    *,
    quiet: bool,
    columns: str,
    empty: str,
    row: Callable[[dict[str, Any]], dict[str, Any]],
    choose: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = list,
) -> int:
    """Print an operation's list as JSON or as a table; with ``quiet`` only the first column, one entry per line."""
    service, chosen = _split_filters(filters, service)
    rows = choose(ask(service, operation, filters=chosen))
    if quiet:
        print_lines(one[columns.split(maxsplit=1)[0]] for one in rows)
        return 0
    return table_of(columns, empty, row)(rows, is_json=service.is_json)
