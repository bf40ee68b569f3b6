"""A token that is taken back while something is open with it: all of that ends, with the reason, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.daemon import Daemon, environment, reserved_port, serving
from tests.service.test_shares import KINDS, called, of_tool
from tests.support.waiting import MAX_WAIT

from casemate.errors import Denied, InvalidArgument, Unavailable
from casemate.model.operation import Audience, Principal
from casemate.remote.client import RemoteOperations, connect
from casemate.surfaces.http.identity import Admitted, Refused
from casemate.surfaces.http.tokens import Tokens

ENDLESS = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
INFO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
Service = tuple[Daemon, int]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("revoked")
    with reserved_port() as port, serving(environment(folder), "--listen", f"127.0.0.1:{port}") as daemon:
        yield daemon, port


@contextlib.asynccontextmanager
async def clients(
    service: Service, name: str, **given: Any
) -> AsyncGenerator[tuple[str, RemoteOperations, RemoteOperations]]:
    """A token, a client that comes with it, and one of the user's own. Nobody else is being answered then: what an
    earlier test has left, the service notices a little later."""
    daemon, port = service
    token = Tokens(daemon.places.state).add(name, **given)
    remote, user = await connect(f"http://127.0.0.1:{port}", token), await daemon.connect()
    while (await user.health())["activity"]["requests"]:
        await asyncio.sleep(0.01)
    try:
        yield token, remote, user
    finally:
        Tokens(daemon.places.state).remove(name)
        for run in await user("runs.list"):
            await user("runs.cancel", {"run": run["run"]})
        await remote.close()
        await user.close()


def removed(daemon: Daemon, name: str) -> None:
    assert Tokens(daemon.places.state).remove(name)


def other_scope(daemon: Daemon, name: str) -> None:
    rewritten(daemon, name, namespace="elsewhere")


def expired(daemon: Daemon, name: str) -> None:
    rewritten(daemon, name, expires=1.0)


def open_to_others(daemon: Daemon, _name: str) -> None:
    (daemon.places.state / "tokens.json").chmod(0o644)


def rewritten(daemon: Daemon, name: str, **changed: Any) -> None:
    file = daemon.places.state / "tokens.json"
    told = [{**one, **(changed if one["name"] == name else {})} for one in json.loads(file.read_text())]
    new = file.with_name("new")
    new.write_text(json.dumps(told))
    new.chmod(0o600)
    os.replace(new, file)


@pytest.mark.parametrize("taken_back", [removed, other_scope, expired, open_to_others])
async def test_a_stream_ends_with_the_reason_when_its_token_holds_no_longer(
    service: Service, taken_back: Callable[[Daemon, str], None]
) -> None:
    async with clients(service, "taken") as (_, remote, user), clients(service, "stays") as (_, other, _):
        run = (await remote("runs.start", {"code": ENDLESS}))["run"]
        others = (await other("runs.start", {"code": ENDLESS}))["run"]
        waiting = asyncio.create_task(other("runs.wait", {"run": others, "seconds": 60.0}))
        events = remote.stream("runs.stream", {"run": run})
        try:
            assert (await anext(events))["text"] == "begun\n"
            taken_back(service[0], "taken")
            with pytest.raises(Denied, match="was removed, has expired or was changed"):
                async with asyncio.timeout(MAX_WAIT):
                    await anext(events)
            if taken_back is not open_to_others:
                assert not waiting.done()
        finally:
            (service[0].places.state / "tokens.json").chmod(0o600)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert (await user("runs.get", {"run": run}))["status"] == "running"
        await user("runs.cancel", {"run": run})


async def test_what_waits_for_a_run_is_told_and_the_run_goes_on(service: Service) -> None:
    async with clients(service, "waiting") as (_, remote, user):
        run = (await remote("runs.start", {"code": ENDLESS}))["run"]
        waiting = asyncio.create_task(remote("runs.wait", {"run": run, "seconds": 600.0}))
        await until_asked(user, 1)
        removed(service[0], "waiting")
        async with asyncio.timeout(MAX_WAIT):
            with pytest.raises(Denied, match="was removed"):
                await waiting
        assert (await user("runs.get", {"run": run}))["status"] in ("running", "queued")


async def test_a_call_that_a_caller_waits_in_ends_with_its_program(service: Service) -> None:
    async with clients(service, "running") as (_, remote, user):
        waiting = asyncio.create_task(remote("run", {"code": ENDLESS}))
        while not [one for one in await user("runs.list") if one["status"] == "running"]:
            await asyncio.sleep(0.01)
        (run,) = (one["run"] for one in await user("runs.list") if one["status"] == "running")
        removed(service[0], "running")
        async with asyncio.timeout(MAX_WAIT):
            with pytest.raises(Denied, match="was removed"):
                await waiting
            while (state := await user("runs.get", {"run": run}))["status"] != "done":
                await asyncio.sleep(0.01)
        assert state["execution"]["status"] == "cancelled"


async def test_what_happens_is_no_longer_told_to_an_operator_whose_token_is_removed(service: Service) -> None:
    async with clients(service, "watching", audience="operator") as (_, remote, user):
        events = remote.stream("audit.events", {"cursor": 0})
        await user("run", {"code": "1"})
        assert (await anext(events))["name"]
        removed(service[0], "watching")
        async with asyncio.timeout(MAX_WAIT):
            with pytest.raises(Denied, match="was removed"):
                async for _ in events:
                    pass


async def until_asked(user: RemoteOperations, count: int) -> None:
    while (await user.health())["activity"]["requests"] < count:
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def asking(
    port: int, line: str, token: str, body: bytes | None = None, headers: str = ""
) -> AsyncGenerator[asyncio.StreamReader]:
    """What comes back when this is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        size = "" if body is None else f"Content-Length: {len(body)}\n"
        head = f"{line} HTTP/1.1\nHost: 127.0.0.1:{port}\nAuthorization: Bearer {token}\n{headers}{KINDS}\n{size}\n"
        writer.write(head.replace("\n", "\r\n").encode() + (body or b""))
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def answered(port: int, token: str, body: Any, headers: str = "") -> dict[str, str]:
    """The headers of an answer of the MCP server, which is not read."""
    async with asking(port, "POST /mcp", token, json.dumps(body).encode(), headers) as reader:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lines = (line.partition(":") for line in head.splitlines()[1:])
    return {name.lower(): value.strip() for name, _, value in lines}


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What is left of a stream, to its end."""
    async with asyncio.timeout(MAX_WAIT):
        return await reader.readuntil(b"\r\n0\r\n\r\n")


async def test_a_client_that_listens_to_the_mcp_server_is_told(service: Service) -> None:
    daemon, port = service
    async with clients(service, "listening") as (token, _, _):
        told = await answered(port, token, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INFO})
        session = f"Mcp-Session-Id: {told['mcp-session-id']}\n"
        await answered(port, token, {"jsonrpc": "2.0", "method": "notifications/initialized"}, session)
        async with asking(port, "GET /mcp", token, headers=session) as reader:
            assert b" 200 " in await reader.readline()
            await reader.readuntil(b"\r\n\r\n")
            removed(daemon, "listening")
            assert b"was removed, has expired or was changed" in await ended(reader)


async def test_an_old_client_of_the_mcp_server_is_told(service: Service) -> None:
    daemon, port = service
    async with clients(service, "sse") as (token, _, _), asking(port, "GET /sse", token) as reader:
        assert b" 200 " in await reader.readline()
        await reader.readuntil(b"endpoint")
        removed(daemon, "sse")
        assert b"was removed, has expired or was changed" in await ended(reader)


async def test_a_call_of_a_tool_ends_with_its_program(service: Service) -> None:
    daemon, port = service
    async with clients(service, "calling") as (token, _, user):
        body = called("execute_code", {"code": ENDLESS, "timeout_seconds": 600})
        async with asking(port, "POST /mcp", token, body, of_tool("execute_code")) as reader:
            while not (running := [one for one in await user("runs.list") if one["status"] == "running"]):
                await asyncio.sleep(0.01)
            removed(daemon, "calling")
            async with asyncio.timeout(MAX_WAIT):
                assert b"was removed, has expired or was changed" in await reader.readuntil(b"changed")
        while (await user("runs.get", {"run": running[0]["run"]}))["status"] != "done":
            await asyncio.sleep(0.01)


async def test_a_body_that_is_still_coming_is_no_longer_read(service: Service) -> None:
    daemon, port = service
    more = "Content-Length: 100\n"
    async with (
        clients(service, "uploading") as (token, _, user),
        asking(port, "PUT /v1/uploads", token, headers=more) as reader,
    ):
        await until_asked(user, 1)
        removed(daemon, "uploading")
        async with asyncio.timeout(MAX_WAIT):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"was removed" in answer


async def test_all_that_is_open_costs_one_look_and_nothing_when_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casemate.surfaces.http.identity._LOOK_EVERY", 0.01)
    somebody = Principal("token:one", Audience.AGENT)
    looks: list[list[str]] = []
    known = {"a": somebody, "b": somebody}
    news = asyncio.Event()

    def principals_of(tokens: Any) -> dict[str, Principal]:
        looks.append(sorted(tokens))
        news.set()
        return {token: known[token] for token in tokens if token in known}

    admitted = Admitted(principals_of)
    ended: list[str] = []

    async def is_open(token: str) -> None:
        with pytest.raises(Refused):
            async with admitted.while_it_holds(token, somebody):
                await asyncio.Event().wait()
        ended.append(token)

    async with asyncio.timeout(MAX_WAIT), asyncio.TaskGroup() as tasks:
        for token in "aab":
            tasks.create_task(is_open(token))
        while ["a", "b"] not in looks:
            await news.wait()
            news.clear()
        del known["a"]
        while ended != ["a", "a"]:
            await asyncio.sleep(0)
        news.clear()
        await news.wait()
        assert looks[-1] == ["b"]
        del known["b"]
    count = len(looks)
    async with admitted.while_it_holds("c", somebody):
        pass
    await asyncio.sleep(0.05)  # several times as long as it takes until the next look
    assert len(looks) <= count + 1


async def test_a_time_out_of_what_is_done_within_stays_one() -> None:
    somebody = Principal("token:one", Audience.AGENT)
    admitted = Admitted(lambda tokens: dict.fromkeys(tokens, somebody))
    with pytest.raises(TimeoutError):
        async with admitted.while_it_holds("a", somebody):
            raise TimeoutError
    with pytest.raises(InvalidArgument):
        async with admitted.while_it_holds("a", somebody):
            raise InvalidArgument("x", "y")


def test_tokens_are_looked_up_together(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "kept")
    one, two = tokens.add("one"), tokens.add("two")
    assert set(tokens.principals_of([one, two, one + "x", ""])) == {one, two}


@pytest.mark.parametrize("error", [Unavailable("it is being written"), OSError(24, "too many open files")], ids=repr)
async def test_one_look_that_fails_ends_nothing_and_two_end_all(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("casemate.surfaces.http.identity._LOOK_EVERY", 0.01)
    somebody = Principal("token:one", Audience.AGENT)
    failures, looks, news = 1, 0, asyncio.Event()

    def principals_of(tokens: Any) -> dict[str, Principal]:
        nonlocal failures, looks
        looks += 1
        news.set()
        if failures:
            failures -= 1
            raise error
        return dict.fromkeys(tokens, somebody)

    async with asyncio.timeout(MAX_WAIT):
        with pytest.raises(Refused):
            async with Admitted(principals_of).while_it_holds("a", somebody):
                while looks < 4:
                    news.clear()
                    await news.wait()
                failures = 2
                await asyncio.Event().wait()
    assert failures == 0


def made_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir(mode=0o700)


def made_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, mode=0o600)


def made_a_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def nested(file: Path) -> None:
    file.write_text("[" * 200_000)


def with_an_end_that_is_no_time(file: Path) -> None:
    file.write_text(json.dumps([{**one, "expires": "never"} for one in json.loads(file.read_text())]))


@pytest.mark.parametrize(
    "changed", [made_a_folder, made_a_pipe, made_a_link, cut_off, nested, with_an_end_that_is_no_time]
)
def test_a_file_that_cannot_be_read_lets_in_nobody_and_says_so(tmp_path: Path, changed: Callable[[Path], None]) -> None:
    tokens = Tokens(tmp_path / "kept")
    token = tokens.add("one")
    assert tokens.principals_of([token])
    changed(tmp_path / "kept" / "tokens.json")
    with pytest.raises(Unavailable, match="cannot be read"):
        tokens.principals_of([token])
