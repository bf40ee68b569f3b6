"""What a token of one namespace may do to the machine, to other namespaces and to the record: nothing."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.service.daemon import Daemon, environment, reserved_port, serving
from tests.support.waiting import until

from casemate.errors import CasemateError, Denied, InvalidArgument
from casemate.remote.client import RemoteOperations, connect
from casemate.remote.facade import ConnectedSandbox

APPROVER = ("--operator", "--namespace", "b", "--may-approve")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, str]]:
    env = environment(tmp_path_factory.mktemp("rights"))
    with reserved_port() as port, serving(env, "--listen", f"127.0.0.1:{port}") as daemon:
        yield daemon, f"http://127.0.0.1:{port}"


async def come(served: tuple[Daemon, str], open_clients: AsyncExitStack, *options: str) -> RemoteOperations:
    """Somebody who comes over TCP with a token of these options."""
    daemon, url = served
    remote = await connect(url, daemon.token(os.urandom(4).hex(), *options))
    open_clients.push_async_callback(remote.close)
    return remote


def marking(folder: Path) -> dict[str, object]:
    return {"command": "/bin/sh", "args": ["-c", f"touch {folder / 'ran'}"], "cwd": str(folder)}


async def test_a_token_starts_commands_only_with_the_right_that_is_the_users_account(
    served: tuple[Daemon, str], tmp_path: Path
) -> None:
    public = {"url": "https://mcp.example.org/mcp"}
    async with AsyncExitStack() as clients:
        approver = await come(served, clients, *APPROVER)
        for definition in (
            marking(tmp_path), {**marking(tmp_path), "wall": True}, {**marking(tmp_path), "command": "public"},
            {**public, "variables": ["HOME"]}, {**public, "addresses": ["127.0.0.1"]}, {**public, "auth": "oauth"},
        ):  # fmt: skip
            with pytest.raises(Denied, match="only add servers at public addresses"):
                await approver("tools.add", {"name": "x", "definition": definition})
        await approver("tools.add", {"name": "x", "definition": {**public, "addresses": "public"}})
        runs = await come(served, clients, *APPROVER, "--may-run-commands")
        await runs("tools.add", {"name": "y", "definition": marking(tmp_path)})
        await runs("tools.list")
    until((tmp_path / "ran").exists)
    assert "may run commands" in served[0].command("service", "token", "list").stdout


async def test_a_server_that_a_token_has_added_is_in_the_public_network(served: tuple[Daemon, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as inner:
        async with AsyncExitStack() as clients:
            approver = await come(served, clients, *APPROVER)
            for name, host in (("address", "127.0.0.1"), ("name", "localhost")):
                url = f"http://{host}:{inner.getsockname()[1]}/mcp"
                await approver("tools.add", {"name": name, "definition": {"url": url, "connect_timeout": 5}})
            problems = await approver("tools.problems")
        assert all("only public addresses" in problems[name] for name in ("address", "name")), problems
        inner.setblocking(False)
        with pytest.raises(BlockingIOError):
            inner.accept()


async def test_a_token_that_may_approve_allows_no_command_of_the_machine(
    served: tuple[Daemon, str], tmp_path: Path
) -> None:
    async with AsyncExitStack() as clients:
        approver = await come(served, clients, *APPROVER)
        asking = asyncio.ensure_future(approver("tools.register", {"name": "z", "definition": marking(tmp_path)}))
        async for event in approver.stream("approvals.events"):
            if event["event"] == "asked":
                break
        with pytest.raises(Denied, match="may not allow host commands"):
            await approver("approvals.decide", {"request": event["id"], "allow": True})
        assert await approver("approvals.decide", {"request": event["id"], "allow": False}) is True
        with pytest.raises(Denied, match="not added"):
            await asking
    assert not (tmp_path / "ran").exists()


async def test_a_token_that_may_not_approve_calls_no_tool_without_a_question(served: tuple[Daemon, str]) -> None:
    async with AsyncExitStack() as clients:
        quiet = await come(served, clients, "--operator", "--namespace", "b")
        with pytest.raises(Denied, match="nor call tools"):
            await quiet("tools.call", {"server": "x", "tool": "y"})
        approver = await come(served, clients, *APPROVER)
        with pytest.raises(InvalidArgument, match="server"):
            await approver("tools.call", {"server": "none", "tool": "y"})


async def test_the_whole_record_is_pruned_over_the_unix_socket_alone_and_the_record_says_by_whom(
    served: tuple[Daemon, str],
) -> None:
    async with AsyncExitStack() as clients:
        user = await served[0].connect()
        clients.push_async_callback(user.close)
        await user("runs.start", {"code": "print(1)", "wait": 30.0})
        before = len(await user("audit.tail", {"limit": 1000}))
        for options in (APPROVER, (*APPROVER, "--may-run-commands"), ("--operator", "--may-approve")):
            remote = await come(served, clients, *options)
            with pytest.raises(Denied, match="all namespaces"):
                await remote("audit.prune", {"max_age": 0})
        assert len(await user("audit.tail", {"limit": 1000})) >= before
        dropped = await user("audit.prune", {"max_age": 0})
        assert dropped >= before
        [row] = await user("audit.tail", {"kind": "pruned"})
        assert row["detail"] == {"dropped": dropped, "max_age": 0.0, "caller": "user"}
        assert (await user("audit.verify"))["ok"] is True


async def test_no_time_or_size_is_too_large_for_an_answer(served: tuple[Daemon, str]) -> None:
    user = await served[0].connect()
    try:
        assert await user("audit.prune", {"max_age": 2**40, "max_size": 2**62}) == 0
        assert await user("audit.crossings", {"since": 2**40}) == []
        for kind in (["http"], {"http": 1}):
            with pytest.raises(CasemateError, match="is not known"):
                await user("tools.add", {"name": "t", "definition": {"url": "https://example.org", "type": kind}})
        with pytest.raises(CasemateError, match="at most a day"):
            await user("tools.add", {"name": "t", "definition": {"url": "https://example.org", "timeout": 10**400}})
    finally:
        await user.close()


async def test_an_agent_that_is_cancelled_waits_no_longer_for_a_secret(served: tuple[Daemon, str]) -> None:
    operator = ConnectedSandbox(await served[0].connect())
    async with AsyncExitStack() as clients:
        await clients.enter_async_context(operator)
        agent = ConnectedSandbox(await come(served, clients))
        await operator.vault.set("ASKED_FOR", "a-secret-value")
        run = asyncio.ensure_future(agent.run("1", secrets=["ASKED_FOR"]))
        while not await operator.invoke("approvals.pending"):
            assert not run.done()
            await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        while await operator.invoke("approvals.pending"):
            await asyncio.sleep(0.01)
