"""Listeners: the host answers inside a cell's own network, which is how a cell reaches the egress proxy."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from tests.contract import witness

from casemate import Fault, Sandbox, sync
from casemate.model.plan import ListeningSocket
from casemate.walls.native.running import RunningCell
from casemate.walls.wall import Stream

ADDRESS = ("127.0.0.1", 8801)
CLIENT = f"""
import socket
with socket.create_connection({ADDRESS!r}, timeout=60) as client:
    client.sendall(b"from the cell")
    print(client.recv(100).decode())
"""


class Kept:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.data = b""

    def output(self, _stream: Stream, data: bytes) -> None:
        self.data += data

    def frame(self, _frame: bytes) -> None:
        """Nothing is displayed here."""

    def is_full(self) -> bool:
        return False


def answer(descriptor: int) -> bytes:
    with socket.socket(fileno=descriptor) as listener:
        listener.settimeout(60)
        client, _ = listener.accept()
        with client:
            received = client.recv(100)
            client.sendall(b"from the host")
    return received


async def with_a_listener(audit: Path) -> tuple[bytes, bytes, int | None]:
    async with Sandbox(audit=audit) as sandbox:
        await sandbox.run("pass")  # proves the wall
        plan = replace(await sandbox.explain(CLIENT), listeners=(ListeningSocket("tcp", *ADDRESS),))
        kept = Kept()
        cell = sandbox._wall.start(plan, kept)  # as the egress proxy's; no public name of this version leads here
        (descriptor,) = await asyncio.wrap_future(cell.listeners())
        received = await asyncio.to_thread(answer, descriptor)
        ending = await cell.wait()
        os.close(ending.tree_fd)
        return received, kept.data, ending.wait_status


def test_the_host_answers_on_a_listener_inside_the_cell(tmp_path: Path) -> None:
    received, said, status = asyncio.run(with_a_listener(tmp_path / "audit.db"))
    assert (received, said, status) == (b"from the cell", b"from the host\n", 0)


def test_without_a_listener_nobody_answers_there(tmp_path: Path) -> None:
    async def run() -> str:
        async with Sandbox(audit=tmp_path / "audit.db") as sandbox:
            return (await sandbox.run(CLIENT)).stderr

    assert "ConnectionRefusedError" in asyncio.run(run())


def test_a_proxy_that_cannot_be_opened_is_no_network_and_the_result_says_so(tmp_path: Path) -> None:
    def refuse(_egress_proxy: object, _terms: object, _network: object, names: int, proxy: int, _told: object) -> None:
        os.close(names)
        os.close(proxy)
        raise Fault("the egress proxy's thread is gone")

    program = "import socket\ntry: socket.getaddrinfo('good.test', 80)\nexcept OSError as error: print('refused')"
    with (
        mock.patch("casemate.egress.proxy.EgressProxy.open", refuse),
        sync.Sandbox(audit=tmp_path / "audit.db", allowed_domains=["good.test"]) as sandbox,
    ):
        execution = sandbox.run(program)
        with sandbox.session() as session:
            steps = [session.run(program) for _ in range(2)]
    assert [one.stdout for one in (execution, *steps)] == ["refused\n"] * 3
    assert [[(one.decision, one.reason) for one in done.crossings] for done in (execution, *steps)] == [
        [("denied", "it could not be opened: the egress proxy's thread is gone")],
        [("denied", "it could not be opened: the egress proxy's thread is gone")],
        [],
    ]


async def listened_again(audit: Path) -> bytes:
    where = ListeningSocket("tcp", "198.18.0.9", 8000)
    program = """
import socket, sys
kept = [socket.create_connection(("198.18.0.9", 8000), 20)]
kept[0].recv(1)
kept.append(socket.create_connection(("198.18.0.9", 8000), 20))
print(kept[1].recv(10).decode())
"""
    async with Sandbox(audit=audit) as sandbox:
        await sandbox.run("pass")
        kept = Kept()
        cell = sandbox._wall.start(replace(await sandbox.explain(program), listeners=(where,)), kept)
        (first,) = await asyncio.wrap_future(cell.listeners())
        with socket.socket(fileno=first) as listener:
            client, _ = await asyncio.to_thread(listener.accept)
        (second,) = await asyncio.wrap_future(cell.listen([where]))
        with client, socket.socket(fileno=second) as listener:
            client.sendall(b"x")
            other, _ = await asyncio.to_thread(listener.accept)
            with other:
                other.sendall(b"again")
        os.close((await cell.wait()).tree_fd)
        return kept.data


def test_the_host_listens_again_where_connections_of_an_earlier_listener_go_on(tmp_path: Path) -> None:
    assert asyncio.run(listened_again(tmp_path / "audit.db")) == b"again\n"


def test_sockets_that_did_not_all_arrive_are_no_network_and_the_result_says_so(tmp_path: Path) -> None:
    real = RunningCell.take_listeners

    def some(cell: RunningCell, message: dict[str, Any], fds: list[int]) -> bool:
        os.close(fds.pop())
        return real(cell, message, fds)

    program = "import socket\ntry: socket.getaddrinfo('good.test', 80)\nexcept OSError as error: print('refused')"
    with (
        mock.patch.object(RunningCell, "take_listeners", some),
        sync.Sandbox(audit=tmp_path / "audit.db", allowed_domains=["good.test"]) as sandbox,
    ):
        sandbox.run("pass", allowed_domains=[])
        before = witness.descriptors()
        execution = sandbox.run(program)
        after = witness.descriptors()
    assert execution.stdout == "refused\n"
    assert "Too many open files" in execution.crossings[0].reason
    assert after.get("socket", 0) <= before.get("socket", 0)
