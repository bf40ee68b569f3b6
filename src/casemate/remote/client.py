"""A running service as an ``Invoke``: operations by name, JSON values in and out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from casemate.errors import CasemateError, InvalidArgument, Unavailable
from casemate.operations.documents import error_from
from casemate.remote.address import Address, address_of
from casemate.remote.fingerprints import different, fingerprints
from casemate.remote.http import MOST_BODY, Http, HttpAnswer, Report, ignore
from casemate.remote.places import places_of
from casemate.remote.sse import EventReader
from casemate.remote.starting import find_service, start_service
from casemate.version import INSTALLATION, __version__

_JSON: dict[str, Any] = {"content-type": "application/json"}
_ENDS_WITHIN = 10.0  # seconds that an idle service of another version has to end
_IS_ENDING = "the service that runs is ending"
_RESUMABLE = frozenset({"runs.stream"})  # leaving these changes nothing
_ANSWERS_WITHIN = 15.0  # seconds that a service has to say that it is there
_STEP_TIMEOUT = 60.0  # seconds without a byte, where a thread waits
_RESUMES = 5  # times that a stream is taken up again without an event between


class RemoteOperations:
    """What ``connect`` gives: ``await remote(operation, arguments)`` and ``remote.stream(operation, arguments)``.

    From one event loop. Raises what the service says, as the same classes, and ``Unavailable`` where it is gone.
    """

    def __init__(self, address: Address, headers: Mapping[str, str], step_timeout: float | None = None) -> None:
        self.address = address
        self.headers = headers
        self._http = Http(address, headers, step_timeout)
        self._again: Callable[[], Awaitable[RemoteOperations]] | None = None

    def __repr__(self) -> str:
        return f"<Remote {self.address}>"

    def duplicate(self) -> RemoteOperations:
        """Another connection to the same service, for another event loop; its steps take a minute at most."""
        return RemoteOperations(self.address, self.headers, step_timeout=_STEP_TIMEOUT)

    def on_end(self, again: Callable[[], Awaitable[RemoteOperations]]) -> None:
        """``again`` gives another connection when the service has ended, such as by itself, having been idle."""
        self._again = again

    async def __call__(self, operation: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """The result of ``operation``. Cancelling it cancels the operation."""
        return _value(await self.request("POST", path_of(operation), _body(arguments), **_JSON))

    async def stream(
        self, operation: str, arguments: Mapping[str, Any] | None = None, *, cursor: int = 0
    ) -> AsyncGenerator[dict[str, Any]]:
        """What an operation that streams tells, from event number ``cursor`` on; a connection that is lost is taken up
        again where it ended, as long as the operation permits it. Leaving early is told to the service."""
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
                raise Unavailable(f"{self.address} ended a stream without saying so")
            except _Lost as lost:
                failures += 1
                if operation not in _RESUMABLE or failures > _RESUMES:
                    raise lost.error from None

    async def request(
        self, method: str, path: str, body: bytes = b"", report: Report = ignore, **headers: str
    ) -> HttpAnswer:
        """One request; its answer, whatever its status. ``report`` gets how many bytes of it have gone. Raises
        ``Unavailable`` where nobody answers."""
        for is_last in (self._again is None, True):
            try:
                answer = await self._http.request(method, path, body, report, **headers)
            except OSError as error:  # it was not even sent
                if is_last:
                    raise _nobody(self.address, error) from error
            else:
                if is_last or not _is_ending(answer):
                    return answer
            await self._revive()
        raise AssertionError("the last attempt gives an answer, or raises")

    async def upload(self, content: bytes, report: Report = ignore) -> str:
        """A handle for ``content``, which arguments may name for a short while. ``report`` gets how many bytes have
        gone. Raises as a call."""
        handle: str = _value(await self.request("PUT", "/v1/uploads", content, report))["handle"]
        return handle

    async def download(self, *parts: str) -> bytes:
        """The bytes of an artifact (``"artifacts", run, name``) or file (``"files", session, path``)."""
        answer = await self.request("GET", _path(parts))
        if answer.status != 200:
            raise _error(_document(answer), answer.status)
        return answer.body

    async def save(self, parts: Sequence[str], target: Path) -> None:
        """Copy what :meth:`download` gives to a file, replacing what is there. Raises ``OSError``, too."""
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
        """Write the bytes of a file or an archive (``"archives", handle``) to ``target``, ``most`` of them; ``report``
        gets how many there are so far."""
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
        """What the service says of itself: ``version``, ``status`` ("ok" or "draining"), ``is_idle`` and more."""
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN):
                said: dict[str, Any] = _value(await self.request("GET", "/v1/health"))
        except TimeoutError:
            raise SilentService(
                f"the service at {self.address} takes connections and does not answer within {_ANSWERS_WITHIN:g} s",
                remediation="It may be stopped or overloaded: look into its log (service.log in its state folder), and "
                "end its process where it does not recover; the next command starts it anew.",
            ) from None
        return said

    async def console_link(self, port: int = 0) -> str:
        """Where a browser signs in to the service's console, once and soon; ``port``: where a user's service is to
        listen for it, any unless given."""
        made = _value(await self.request("POST", "/v1/service/console", _body({"port": port}), **_JSON))
        return f"{made['url'] or self.address}{made['path']}"

    async def _revive(self) -> None:
        """The service has ended, or is about to, and has done nothing of what was asked: another takes its place."""
        assert self._again is not None
        await self._http.close()
        other = await self._again()
        self.address, self._http = other.address, Http(other.address, self.headers)
        await other.close()

    async def close(self) -> None:
        """Close the connections; the service goes on. Harmless when repeated."""
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
    """A service takes connections and does not answer."""


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
    """A connection to the service at ``url``, or to the user's own, which is started unless it runs or ``start`` is
    False.

    ``token``: of a service on TCP. ``namespace``: on a Unix socket, which of the user's; a token has its own.
    ``agent``: a name under which calls are those of an agent, which may do less and sees only its own;
    ``may_approve``: this one may answer what it asks for itself, since a person does that. ``insecure``: permits http
    to other machines. ``runs``: programs are to find the packages of this installation: a service of another one is
    replaced where nothing lives in it, and one that a command with more variables has started does not fit.
    ``environ``: instead of this process's variables.

    Raises ``InvalidArgument`` and ``Unavailable``.
    """
    variables = os.environ if environ is None else environ
    headers = _headers(token, namespace, agent, "agent+approver" if may_approve else "agent")
    if url is not None:
        address = address_of(url, insecure=insecure)
        if address.folder is None and token is None:
            raise InvalidArgument("token", f"{address} wants one (casemate service token add)")
        remote = RemoteOperations(address, headers)
        await _check_version(remote)
        return remote
    remote = await _own(headers, variables, start=start, runs=runs)
    if start:
        remote.on_end(partial(_own, headers, variables, start=True, runs=runs))
    return remote


async def attach(environ: Mapping[str, str]) -> RemoteOperations:
    """A connection to the user's service that runs, of whatever version. Raises ``Unavailable`` where none does."""
    address = find_service(places_of(environ))
    if address is None:
        raise _none_runs()
    return RemoteOperations(address, _headers(None, None, None))


def path_of(operation: str) -> str:
    """The path of an operation's name: ``sessions.open`` is ``/v1/sessions/open``."""
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
                why, remediation="casemate service stop ends it, and what it runs; the next command starts a new one."
            )
    raise AssertionError("a service fits, or it does not")


async def _is_anothers(remote: RemoteOperations) -> bool:
    """Whether the service that runs is of another installation, which may have other packages."""
    return (await remote.health()).get("installation") not in (None, INSTALLATION)


async def _unfit(remote: RemoteOperations, environ: Mapping[str, str], *, runs: bool) -> str:
    """Why the service that runs is not the one that this process would start; empty where it is."""
    try:
        said = await remote.health()
    except SilentService:
        raise
    except Unavailable:  # it has gone since it was found
        return _IS_ENDING
    if said.get("status") == "draining":
        return _IS_ENDING
    if said.get("version") != __version__:
        return f"the service that runs is casemate {said.get('version')}, and this is {__version__}"
    if others := different(fingerprints(environ), said.get("settings") or {}, runs=runs):
        return f"the service that runs was started with another value of {', '.join(others)}"
    return ""


async def _check_version(remote: RemoteOperations) -> None:
    said = await remote.health()
    if said.get("version") not in (None, __version__):
        await remote.close()
        raise Unavailable(
            f"the service at {remote.address} is casemate {said.get('version')}, and this is {__version__}",
            remediation="Install the same version on both sides.",
        )


async def _stop_if_idle(remote: RemoteOperations) -> bool:
    """Have a service end in which nothing lives; whether it has. Its user may, though an agent that calls may not."""
    operator = RemoteOperations(remote.address, _headers(None, None, None))
    answer = await operator.request("POST", "/v1/service/stop", b'{"if_idle": true}', **_JSON)
    if answer.status == 200:
        await remote.close()
        return await _wait_until_gone(operator)
    await operator.close()
    return False


async def _wait_until_gone(remote: RemoteOperations) -> bool:
    """Wait until nobody answers any more; whether that is so. Its connections are closed."""
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
            raise InvalidArgument("token", "it holds characters that no token has")
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
        raise InvalidArgument("arguments", f"are no JSON values: {error}") from None


def _error(document: Any, status: int) -> CasemateError:
    """The error that an answer tells of."""
    told = document.get("error") if isinstance(document, dict) else None
    if not isinstance(told, dict):
        return Unavailable(f"the service answered with status {status}, and without saying why")
    return error_from(told)


def _is_ending(answer: HttpAnswer) -> bool:
    """Whether a service says that it takes nothing any more, and has begun nothing of what was asked."""
    told = (_document(answer) or {}).get("error") if answer.status == 503 else None
    return isinstance(told, dict) and told.get("reason") == "ending"


def _value(answer: HttpAnswer) -> Any:
    document = _document(answer)
    if answer.status != 200:
        raise _error(document, answer.status)
    return document


def _document(answer: HttpAnswer) -> Any:
    return _parse_json(answer.body)


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
        f"nobody answers at {address}: {error.strerror or error}",
        remediation="Start it (casemate service), or look into its log (casemate service logs).",
    )
