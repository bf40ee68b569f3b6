"""A client of a running service, as an ``Invoke``: operations by name, JSON values in and out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote

from casemate.errors import CasemateError, InvalidArgument, Unavailable
from casemate.event_loop import run_in_loop
from casemate.operations.documents import error_from
from casemate.remote.address import Address, address_of
from casemate.remote.fingerprints import different, fingerprints
from casemate.remote.http import MOST_BODY, Http, HttpAnswer, Report, ignore
from casemate.remote.places import places_of
from casemate.remote.sse import EventReader
from casemate.remote.starting import find_service, start_service
from casemate.version import INSTALLATION, __version__

R = TypeVar("R")
_JSON: dict[str, Any] = {"content-type": "application/json"}
_ENDS_WITHIN = 10.0  # seconds for an idle service of another version to end
_IS_ENDING = "the running service is ending"
_RESUMABLE = frozenset({"runs.stream"})  # resuming these changes nothing
_ANSWERS_WITHIN = 15.0  # seconds for a service to answer a health check
_STEP_TIMEOUT = 60.0  # seconds without a byte, for calls that block a thread
_RESUMES = 5  # attempts to resume a stream without an event in between


class RemoteOperations:
    """A client of a service: ``await remote(operation, arguments)`` and ``remote.stream(operation, arguments)``.

    Used from one event loop. Raises the service's errors as the same classes, and ``Unavailable`` if the service is
    gone.
    """

    def __init__(self, address: Address, headers: Mapping[str, str], step_timeout: float | None = None) -> None:
        self.address = address
        self.headers = headers
        self._http = Http(address, headers, step_timeout)
        self._again: Callable[[], Awaitable[RemoteOperations]] | None = None

    def __repr__(self) -> str:
        return f"<Remote {self.address}>"

    def duplicate(self) -> RemoteOperations:
        """Another connection to the same service, for another event loop. Each of its steps takes a minute at most."""
        return RemoteOperations(self.address, self.headers, step_timeout=_STEP_TIMEOUT)

    def on_end(self, again: Callable[[], Awaitable[RemoteOperations]]) -> None:
        """Reconnect with ``again`` after the service has ended, for example because it was idle."""
        self._again = again

    async def __call__(self, operation: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Invoke ``operation`` and return its result. Cancelling this cancels the operation."""
        return _value(await self.request("POST", path_of(operation), _body(arguments), **_JSON))

    async def stream(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, cursor: int = 0
    ) -> AsyncGenerator[dict[str, Any]]:
        """The events of a streaming operation, from number ``cursor`` on. A lost connection is resumed where it ended
        if the operation permits. The service notices if the caller leaves early."""
        body, failures = _body(arguments), 0
        while True:
            try:
                async with contextlib.aclosing(self._events(path_of(operation), body, cursor)) as events:
                    async for event in events:
                        if event.name == "end":
                            return
                        if event.name == "error":
                            raise error_from(event.data)
                        cursor, failures = int(event.id or cursor), 0
                        yield event.data
                raise Unavailable(f"{self.address} ended a stream without an end event")
            except _Lost as lost:
                failures += 1
                if operation not in _RESUMABLE or failures > _RESUMES:
                    raise lost.error from None

    async def request(
        self, method: str, path: str, body: bytes = b"", report: Report = ignore, **headers: str
    ) -> HttpAnswer:
        """Send one request and return its answer with any status. ``report`` gets the bytes sent so far. Raises
        ``Unavailable`` if no service answers."""
        for is_last in (self._again is None, True):
            try:
                answer = await self._http.request(method, path, body, report, **headers)
            except OSError as error:  # the request was not sent
                if is_last:
                    raise _nobody(self.address, error) from error
            else:
                if is_last or not _is_ending(answer):
                    return answer
            await self._revive()
        raise AssertionError("the last attempt gives an answer, or raises")

    async def upload(self, content: bytes, report: Report = ignore) -> str:
        """Upload ``content``. Returns a handle that arguments may use for a short time. ``report`` gets the bytes sent
        so far. Raises like a call."""
        handle: str = _value(await self.request("PUT", "/v1/uploads", content, report))["handle"]
        return handle

    async def download(self, *parts: str) -> bytes:
        """The bytes of an artifact (``"artifacts", run, name``) or file (``"files", session, path``)."""
        answer = await self.request("GET", _path(parts))
        if answer.status != 200:
            raise _error(_parse_json(answer.body), answer.status)
        return answer.body

    async def save(self, parts: Sequence[str], target: Path) -> None:
        """Save what :meth:`download` returns to ``target``, replacing it. Also raises ``OSError``."""
        partial_file = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
        try:
            with partial_file.open("xb") as file:
                await self.fetch(parts, file, most=math.inf)
            partial_file.replace(target)
        finally:
            partial_file.unlink(missing_ok=True)

    async def fetch(
        self,
        parts: Sequence[str],
        target: BinaryIO,
        report: Report = ignore,
        most: float = MOST_BODY,
    ) -> None:
        """Write a file or an archive (``"archives", handle``) to ``target``, up to ``most`` bytes. ``report`` gets the
        bytes written so far."""
        head, count = None, 0
        async with contextlib.aclosing(self._http.stream("GET", _path(parts))) as pieces:
            async for piece in pieces:
                if isinstance(piece, HttpAnswer):
                    head = piece
                elif head is not None and head.status != 200:
                    raise _error(_parse_json(piece), head.status)
                elif (count := count + len(piece)) > most:
                    raise Unavailable(f"an answer of {self.address} is larger than {most} bytes")
                else:
                    target.write(piece)
                    report(count)

    async def health(self) -> dict[str, Any]:
        """The service's report: ``version``, ``status`` ("ok" or "draining"), ``is_idle`` and more."""
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN):
                said: dict[str, Any] = _value(await self.request("GET", "/v1/health"))
        except TimeoutError:
            raise SilentService(
                f"the service at {self.address} accepts connections but does not answer within {_ANSWERS_WITHIN:g} s",
                remediation="It may be stopped or overloaded: read its log (service.log in its state folder), and "
                "end its process if it does not recover; the next command starts a new one.",
            ) from None
        return said

    async def console_link(self, port: int = 0) -> str:
        """A link that signs a browser in to the service's console once, within a short time. ``port``: where a user's
        service listens for it; 0 for any."""
        made = _value(await self.request("POST", "/v1/service/console", _body({"port": port}), **_JSON))
        return f"{made['url'] or self.address}{made['path']}"

    async def _revive(self) -> None:
        """Reconnect to a new service. The old one has ended, or is about to, without doing any of the request."""
        assert self._again is not None
        await self._http.close()
        other = await self._again()
        self.address, self._http = other.address, Http(other.address, self.headers)
        await other.close()

    def block(self, action: Callable[[RemoteOperations], Awaitable[R]]) -> R:
        """Run ``action`` in a thread with its own loop and connection, and wait for it. Raises what it raises."""

        async def act() -> R:
            remote = self.duplicate()
            try:
                return await action(remote)
            finally:
                await remote.close()

        with ThreadPoolExecutor(1) as threads:
            return threads.submit(run_in_loop, act()).result()

    def call_blocking(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Invoke an operation and return its result. Blocks, and raises the service's errors."""
        return self.block(lambda remote: remote(operation, arguments))

    async def close(self) -> None:
        """Close the connections. The service keeps running."""
        await self._http.close()

    async def _events(self, path: str, body: bytes, cursor: int) -> AsyncGenerator[Any]:
        resumed = {"last-event-id": str(cursor)} if cursor else {}
        headers = {**_JSON, "accept": "text/event-stream", **resumed}
        reader, head = EventReader(), None
        try:
            async with contextlib.aclosing(self._http.stream("POST", path, body, **headers)) as parts:
                async for part in parts:
                    if isinstance(part, HttpAnswer):
                        head = part
                        if head.status == 200:
                            continue
                        body = b"".join([one async for one in parts if isinstance(one, bytes)])
                        raise _error(_parse_json(body), head.status)
                    for event in reader.feed(part):
                        yield event
        except ConnectionError as error:
            raise _Lost(_nobody(self.address, error)) from error
        except Unavailable as error:
            if head is None or head.status == 200:
                raise _Lost(error) from error
            raise


class SilentService(Unavailable):
    """A service accepts connections but does not answer."""


class _Lost(Exception):
    def __init__(self, error: CasemateError) -> None:
        super().__init__(str(error))
        self.error = error


async def connect(
    url: str | None = None,
    token: str | None = None,
    start: bool = True,
    *,
    namespace: str | None = None,
    agent: str | None = None,
    may_approve: bool = False,
    insecure: bool = False,
    runs: bool = False,
    environ: Mapping[str, str] | None = None,
) -> RemoteOperations:
    """Connect to the service at ``url``, or to the user's own, which is started if it is not running, unless ``start``
    is False.

    ``token``: for a service on TCP. ``namespace``: a namespace of the user, on a Unix socket; a token has its own
    namespace. ``agent``: make calls as an agent of this name, which may do less and sees only its own. ``may_approve``:
    let this agent answer its own approval requests, because a person does that. ``insecure``: permit http to other
    machines. ``runs``: programs should find this installation's packages. So an idle service of another installation is
    replaced, and one that a command with more variables started does not fit. ``environ``: variables to use instead of
    this process's.

    Raises ``InvalidArgument`` and ``Unavailable``.
    """
    variables = os.environ if environ is None else environ
    headers = _headers(token, namespace, agent, "agent+approver" if may_approve else "agent")
    if url is not None:
        address = address_of(url, insecure=insecure)
        if address.folder is None and token is None:
            raise InvalidArgument("token", f"{address} needs one (casemate service token add)")
        remote = RemoteOperations(address, headers)
        await _check_version(remote)
        return remote
    remote = await _own(headers, variables, start=start, runs=runs)
    if start:
        remote.on_end(partial(_own, headers, variables, start=True, runs=runs))
    return remote


async def attach(environ: Mapping[str, str]) -> RemoteOperations:
    """Connect to the user's running service of any version. Raises ``Unavailable`` if none is running."""
    address = find_service(places_of(environ))
    if address is None:
        raise _none_runs()
    return RemoteOperations(address, _headers(None, None, None))


def path_of(operation: str) -> str:
    """The path of an operation: ``/v1/sessions/open`` for ``sessions.open``."""
    return "/v1/" + quote(operation.replace(".", "/"))


def _path(parts: Sequence[str]) -> str:
    return "/v1/" + "/".join(quote(part) for part in parts)


async def _own(
    headers: Mapping[str, str], environ: Mapping[str, str], *, start: bool, runs: bool = False
) -> RemoteOperations:
    places = places_of(environ)
    for attempt in (1, 2, 3):
        address = await start_service(places, environ) if start else find_service(places)
        if address is None:
            raise _none_runs()
        remote = RemoteOperations(address, headers)
        why = await _unfit(remote, environ, runs=runs)
        if not why and start and runs and attempt == 1 and await _is_anothers(remote) and await _stop_if_idle(remote):
            continue
        if not why:
            return remote
        if why == _IS_ENDING and start and attempt < 3 and await _wait_until_gone(remote):
            continue
        if attempt > 1 or not start or not await _stop_if_idle(remote):
            await remote.close()
            raise Unavailable(
                why, remediation="casemate service stop ends it and what it runs; the next command starts a new one."
            )
    raise AssertionError("a service fits, or it does not")


async def _is_anothers(remote: RemoteOperations) -> bool:
    """Whether the running service is of another installation, which may have other packages."""
    return (await remote.health()).get("installation") not in (None, INSTALLATION)


async def _unfit(remote: RemoteOperations, environ: Mapping[str, str], *, runs: bool) -> str:
    """Why the running service is not the one that this process would start; empty if it is."""
    try:
        said = await remote.health()
    except SilentService:
        raise
    except Unavailable:  # it ended after it was found
        return _IS_ENDING
    if said.get("status") == "draining":
        return _IS_ENDING
    if said.get("version") != __version__:
        return f"the running service is casemate {said.get('version')}, but this is {__version__}"
    if others := different(fingerprints(environ), said.get("settings") or {}, runs=runs):
        return f"the running service was started with another value of {', '.join(others)}"
    return ""


async def _check_version(remote: RemoteOperations) -> None:
    said = await remote.health()
    if said.get("version") not in (None, __version__):
        await remote.close()
        raise Unavailable(
            f"the service at {remote.address} is casemate {said.get('version')}, but this is {__version__}",
            remediation="Install the same version on both sides.",
        )


async def _stop_if_idle(remote: RemoteOperations) -> bool:
    """Ask an idle service to end. Returns whether it did. The user may do this even if the calling agent may not."""
    operator = RemoteOperations(remote.address, _headers(None, None, None))
    answer = await operator.request("POST", "/v1/service/stop", b'{"if_idle": true}', **_JSON)
    if answer.status == 200:
        await remote.close()
        return await _wait_until_gone(operator)
    await operator.close()
    return False


async def _wait_until_gone(remote: RemoteOperations) -> bool:
    """Wait until the service no longer answers, and close its connections. False after a timeout."""
    await remote.close()
    deadline = time.monotonic() + _ENDS_WITHIN
    while time.monotonic() < deadline:
        try:
            await remote.health()
        except Unavailable:
            return True
        finally:
            await remote.close()
        await asyncio.sleep(0.02)
    return False


def _headers(token: str | None, namespace: str | None, agent: str | None, kind: str = "agent") -> dict[str, str]:
    headers = {"user-agent": f"casemate/{__version__}"}
    if token is not None:
        if not token.isascii() or not token.isprintable():
            raise InvalidArgument("token", "it contains characters that no token has")
        headers["authorization"] = f"Bearer {token}"
    if namespace is not None:
        headers["casemate-namespace"] = quote(namespace)
    if agent is not None:
        headers["casemate-as"] = f"{kind}:{quote(agent)}"
    return headers


def _body(arguments: Mapping[str, Any] | None) -> bytes:
    try:
        return json.dumps(dict(arguments or {}), allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument("arguments", f"are not JSON values: {error}") from None


def _error(document: Any, status: int) -> CasemateError:
    told = document.get("error") if isinstance(document, dict) else None
    if not isinstance(told, dict):
        return Unavailable(f"the service answered with status {status} and no reason")
    return error_from(told)


def _is_ending(answer: HttpAnswer) -> bool:
    """Whether the service takes no more requests, and has not started this one."""
    told = (_parse_json(answer.body) or {}).get("error") if answer.status == 503 else None
    return isinstance(told, dict) and told.get("reason") == "ending"


def _value(answer: HttpAnswer) -> Any:
    document = _parse_json(answer.body)
    if answer.status != 200:
        raise _error(document, answer.status)
    return document


def _parse_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _none_runs() -> Unavailable:
    return Unavailable(
        "no service of yours is running", remediation="Start it: casemate service, or systemctl --user start casemate"
    )


def _nobody(address: Address, error: OSError) -> Unavailable:
    return Unavailable(
        f"no service answers at {address}: {error.strerror or error}",
        remediation="Start it (casemate service), or read its log (casemate service logs).",
    )
