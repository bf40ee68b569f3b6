"""What programs of a session ask for with ``pip`` and ``npm``: one JSON object on a line, and one back.

-> {"do": "install", "packages": ["six>=1"], "upgrade": false}     or {"do": "remove", "packages": ["six"]}
-> {"do": "install", "packages": ["ms@^2"], "language": "node"}    likewise for packages of Node
<- {"ok": true, "packages": [{"name": "six", "version": "1.17.0"}]}
<- {"ok": false, "kind": "denied" | "failed" | "invalid" | "unavailable", "message": "..."}
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from casemate.errors import CasemateError, InvalidArgument
from casemate.files.lines import Client, line_of, read_line, read_object, while_there

if TYPE_CHECKING:
    from casemate.approvals.requester import Requester
    from casemate.sessions.packages import Packages

_MOST_LINE = 1 << 17  # of which most are hashes
_MOST_MESSAGE = 4000  # characters of why it was not done
_REQUEST_WITHIN = 15.0


@dataclass(frozen=True, slots=True)
class PackageRequests:
    """What sessions are offered."""

    packages: Packages

    def begin(self, whose: Callable[[], Requester | None]) -> PackageService:
        """In one cell; see :class:`casemate.execution.network.Offer`."""
        return PackageService(self.packages, whose)


@dataclass(frozen=True, slots=True)
class PackageService:
    """In one cell. ``whose``: the step that runs there, in whose name it is asked."""

    packages: Packages
    whose: Callable[[], Requester | None]
    name: str = "packages.casemate.internal"
    port: int = 81

    async def serve(self, client: Client) -> None:
        """One request. It is given up when its client goes."""
        try:
            async with asyncio.timeout(_REQUEST_WITHIN):
                line = await read_line(client, _MOST_LINE)
        except InvalidArgument:  # one that does not end
            return
        answer = None if line is None else await while_there(client, self._answered(line))
        if answer is not None:
            await client.send(line_of(answer))

    async def _answered(self, line: bytes) -> dict[str, Any]:
        asker = self.whose()
        if asker is None or asker.loop is None:
            return _no("denied", "nothing runs in this session that could install packages")
        try:
            work = self._work(line, asker)
        except InvalidArgument as error:
            return _no("invalid", str(error))
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, asker.loop))

    def _work(self, line: bytes, asker: Requester) -> Coroutine[Any, Any, dict[str, Any]]:
        """What is asked for. Raises ``InvalidArgument`` for what is not understood."""
        asked = read_object(line)
        names = asked.get("packages")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidArgument("packages", "the request is not understood")
        language = "node" if asked.get("language") == "node" else "python"
        if asked.get("do") == "install":
            return self._install(names, asker, language, upgrade=asked.get("upgrade") is True)
        if asked.get("do") == "remove":
            return self._remove(names, asker, language)
        raise InvalidArgument("packages", "the request is not understood")

    async def _install(self, names: list[str], asker: Requester, language: str, *, upgrade: bool) -> dict[str, Any]:
        try:
            installed = await self.packages.install_for(asker, names, upgrade=upgrade, language=language)
        except CasemateError as error:
            return _no("invalid" if isinstance(error, InvalidArgument) else "unavailable", str(error))
        if not installed.ok:
            return _no(installed.status, installed.reason)
        return {"ok": True, "packages": [{"name": one.name, "version": one.version} for one in installed.packages]}

    async def _remove(self, names: list[str], asker: Requester, language: str) -> dict[str, Any]:
        with contextlib.suppress(CasemateError):
            there = await self.packages.remove(names, language=language, session=asker.session)
            return {"ok": True, "packages": [{"name": name, "version": version} for name, version in there]}
        return _no("invalid", "packages that were installed into a session can be removed from it, by their names")


def _no(kind: str, message: str) -> dict[str, Any]:
    return {"ok": False, "kind": kind, "message": message[:_MOST_MESSAGE]}
