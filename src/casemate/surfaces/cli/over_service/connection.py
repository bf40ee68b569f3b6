"""Commands that ask the user's service: one connection, started on demand, and closed again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from cyclopts import Parameter

from casemate.surfaces.cli import interrupts
from casemate.surfaces.cli.parameters import Output

if TYPE_CHECKING:
    from casemate.remote.client import Remote

T = TypeVar("T")
Work = Callable[["Remote"], Awaitable[T]]


@Parameter(name="*")
@dataclass(frozen=True)
class Asked:
    """What every command of the service takes.

    Parameters
    ----------
    output
        text (unless given), or json: the whole answer on stdout, for programs.
    namespace
        Whose sessions, runs and requests; those of the default one unless given.
    """

    output: Output = "text"
    namespace: str | None = None

    @property
    def is_json(self) -> bool:
        """Whether a program reads the answer."""
        return self.output == "json"


PLAIN = Asked()


def served(work: Work[T], asked: Asked = PLAIN, *, runs: bool = False) -> T:
    """Do ``work`` with a connection to the service: the one that ``CASEMATE_URL`` and ``CASEMATE_TOKEN`` name, else the
    user's own, which is started where none runs. ``runs``: it is to run programs with the packages that are here.

    Raises ``CasemateError``.
    """
    from casemate.remote.client import connect

    async def connected() -> T:
        url, token = os.environ.get("CASEMATE_URL"), os.environ.get("CASEMATE_TOKEN")
        remote = await connect(url, token if url else None, namespace=asked.namespace, runs=runs)
        try:
            return await work(remote)
        finally:
            await remote.close()

    return interrupts.run(connected())


def ask(asked: Asked, operation: str, **arguments: Any) -> Any:
    """The answer to one operation; arguments that are None are left out."""
    given = {name: value for name, value in arguments.items() if value is not None}
    return served(lambda remote: remote(operation, given), asked)


def tell_service(operation: str, **arguments: Any) -> None:
    """Do in the user's service, where one runs, what was done to a file of the user's, and say where it failed."""
    from casemate.errors import CasemateError, Unavailable
    from casemate.remote.client import attached
    from casemate.surfaces.cli.terminal.inert import inert
    from casemate.surfaces.cli.terminal.words import say

    async def told() -> None:
        remote = await attached(os.environ)
        try:
            await remote(operation, arguments)
        except CasemateError as error:
            say(inert(f"the service that runs has not taken it: {error.message}"))
        finally:
            await remote.close()

    with contextlib.suppress(Unavailable):
        interrupts.run(told())
