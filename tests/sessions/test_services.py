"""What the host itself offers in a cell: its own services, by name, to whatever runs there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from casemate import Sandbox

if TYPE_CHECKING:
    from casemate.approvals.requester import Requester
    from casemate.egress.stream import TcpStream

ASK = """
import socket
def ask():
    with socket.create_connection(("who.casemate.internal", 7), 60) as one:
        return one.makefile().readline().strip()
"""


@dataclass(frozen=True)
class Who:
    """Tells each client for which run it works."""

    whose: Callable[[], Requester | None]
    name: str = "who.casemate.internal"
    port: int = 7

    async def serve(self, client: TcpStream) -> None:
        requester = self.whose()
        await client.send(f"{requester.session} {requester.run}\n".encode() if requester else b"nothing runs\n")


class Offers:
    def begin(self, whose: Callable[[], Requester | None]) -> Who:
        return Who(whose)


def offering(sandbox: Sandbox) -> Sandbox:
    offers = (Offers(),)
    context = sandbox._context
    sandbox._context = replace(context, supplies=replace(context.supplies, offers=lambda: offers))
    return sandbox


@pytest.mark.parametrize("network", ["none", "listed", "public"])
async def test_a_run_reaches_a_service_of_the_host_whatever_its_network(network: str) -> None:
    async with offering(Sandbox(network=network)) as sandbox:  # type: ignore[arg-type]
        execution = await sandbox.run(ASK + "print(ask())")
    assert execution.stdout == f"None {execution.id}\n"
    assert execution.crossings == ()


async def test_a_service_knows_which_step_is_asking_and_that_none_is() -> None:
    async with offering(Sandbox()) as sandbox, sandbox.session() as session:
        first = await session.run(ASK + "print(ask())")
        second = await session.run("print(ask())")
        await session.run(
            "import threading\n"
            "received = ''\n"
            "def later():\n"
            "    global received\n"
            "    while received != 'nothing runs':\n"
            "        received = ask()\n"
            "threading.Thread(target=later, daemon=True).start()"
        )
        async with asyncio.timeout(30):
            while await session.get("received") != "nothing runs":
                pass
    assert [first.stdout, second.stdout] == [f"{session.id} {one.id}\n" for one in (first, second)]


async def test_a_step_has_services_that_its_session_began_without() -> None:
    async with Sandbox(network="none") as sandbox, sandbox.session() as session:
        before = await session.run(ASK + "print(ask())")
        offering(sandbox)
        session.steps._context = session._cells._context = sandbox._context
        after = await session.run("print(ask())")
    assert getattr(before.error, "name", "") == "gaierror"
    assert after.stdout == f"{session.id} {after.id}\n"


async def test_a_shell_and_a_child_of_it_reach_a_service() -> None:
    async with offering(Sandbox(network="none")) as sandbox:
        execution = await sandbox.run("bash -c 'cat </dev/tcp/who.casemate.internal/7'", language="shell")
    assert execution.stdout == f"None {execution.id}\n"


async def test_other_ports_and_the_proxy_do_not_lead_to_a_service() -> None:
    async with offering(Sandbox(network="none")) as sandbox:
        execution = await sandbox.run(
            "import socket\n"
            "socket.getaddrinfo('who.casemate.internal', 7)\n"
            "try:\n"
            "    socket.create_connection(('who.casemate.internal', 8), 5)\n"
            "except OSError as error:\n"
            "    print(type(error).__name__)\n"
            "with socket.create_connection(('198.18.0.1', 3128), 60) as proxy:\n"
            "    where = b'who.casemate.internal:7'\n"
            "    proxy.sendall(b'CONNECT %b HTTP/1.1\\r\\nHost: %b\\r\\n\\r\\n' % (where, where))\n"
            "    print(proxy.recv(99).split(b'\\r\\n')[0].decode())\n"
        )
    assert execution.stdout.startswith("ConnectionRefusedError\nHTTP/1.1 403"), execution.text
