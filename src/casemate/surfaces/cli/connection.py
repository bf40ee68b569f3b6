"""Commands that ask the user's service: one connection, started on demand, and closed again."""

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
from casemate.surfaces.cli.answers import print_lines, print_rows
from casemate.surfaces.cli.failures import say
from casemate.surfaces.cli.parameters import Output

if TYPE_CHECKING:
    from casemate.remote.client import RemoteOperations


T = TypeVar("T")
_MAX_WAIT = 1.0  # seconds between looks whether somebody is asked
Work = Callable[["RemoteOperations"], Awaitable[T]]


@Parameter(name="*")
@dataclass(frozen=True)
class ServiceOptions:
    """What every command of the service takes.

    Args:
        namespace: Whose sessions, runs and requests; those of the default one unless given.
    """

    output: Output = "text"
    namespace: str | None = None

    @property
    def is_json(self) -> bool:
        """Whether a program reads the answer."""
        return self.output == "json"


PLAIN = ServiceOptions()


def with_service(work: Work[T], service: ServiceOptions = PLAIN, *, runs: bool = False) -> T:
    """Do ``work`` with a connection to the service: the one that ``CASEMATE_URL`` and ``CASEMATE_TOKEN`` name, else the
    user's own, which is started where none runs. ``runs``: it is to run programs with the packages that are here.

    Raises ``CasemateError``.
    """
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
    """The answer to one operation; arguments that are None are left out."""
    sent = {name: value for name, value in arguments.items() if value is not None}
    return with_service(lambda remote: remote(operation, sent), service)


def ask_patiently(service: ServiceOptions, operation: str, **arguments: Any) -> Any:
    """The answer to an operation that may wait for somebody's answer; then it is said where that is given."""
    sent = {name: value for name, value in arguments.items() if value is not None}

    async def ask_and_tell(remote: RemoteOperations) -> Any:
        asking = asyncio.ensure_future(remote(operation, sent))  # noqa: TID251 - ended here in every case
        try:
            while not (await asyncio.wait([asking], timeout=_MAX_WAIT))[0]:
                if await remote("approvals.pending", {}):
                    say("waits for an answer: casemate approvals, in another terminal")
                    break
            return await asking
        finally:
            asking.cancel()

    return with_service(ask_and_tell, service)


def ask_each(service: ServiceOptions, operation: str, argument: str, names: Sequence[str]) -> list[Any]:
    """The answers to one operation about each of ``names``, of which there is at least one."""
    if not names:
        raise InvalidArgument(argument, "name one or more")

    async def ask_all(remote: RemoteOperations) -> list[Any]:
        return [await remote(operation, {argument: name}) for name in names]

    return with_service(ask_all, service)


def tell_service(operation: str, is_done: type[CasemateError] | tuple[()] = (), **arguments: Any) -> None:
    """Do in the user's service, where one runs, what was done to a file of the user's, and say where it failed.
    ``is_done``: the error of a service that has read the file since."""
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
            say(inert(f"the service that runs has not taken it: {error.message}"))
        finally:
            await remote.close()

    with contextlib.suppress(Unavailable):
        interrupts.run(call_operation())


Filter = Annotated[tuple[str, ...], Parameter(name=("--filter", "-f"), allow_leading_hyphen=True)]
Quiet = Annotated[bool, Parameter(name=("--quiet", "-q"))]
_NAMESPACE = "namespace"  # whose list is asked for, where the others choose from it


def _split_filters(
    filters: Sequence[str], service: ServiceOptions
) -> tuple[ServiceOptions, dict[str, list[str]] | None]:
    """What KEY=VALUE filters ask for: whom to ask, and the ``filters`` of the operation. Raises ``InvalidArgument``."""
    chosen: dict[str, list[str]] = {}
    for one in filters:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise InvalidArgument("filters", f"{one[:100]!r} is not KEY=VALUE")
        chosen.setdefault(key, []).append(value)
    for namespace in chosen.pop(_NAMESPACE, ()):
        if service.namespace not in (None, namespace):
            raise InvalidArgument("filters", f"one namespace at a time: {service.namespace!r} is asked for already")
        service = replace(service, namespace=namespace)
    return service, chosen or None


def list_rows(
    operation: str,
    filters: Sequence[str],
    service: ServiceOptions,
    *,
    quiet: bool,
    columns: Sequence[str],
    empty: str,
    row: Callable[[dict[str, Any]], dict[str, Any]],
    choose: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = list,
) -> int:
    """Print what an operation lists: as JSON, as a table, or with ``quiet`` the first column alone, one a line."""
    service, chosen = _split_filters(filters, service)
    rows = choose(ask(service, operation, filters=chosen))
    if quiet:
        print_lines(one[columns[0]] for one in rows)
        return 0
    return print_rows(rows, columns, empty, is_json=service.is_json, row=row)
