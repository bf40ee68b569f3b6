"""One table of addresses, taken through everything that connects to an address that a stranger has named."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from casemate.egress import dial
from casemate.egress.accounting import EgressRefused, Unreachable
from casemate.egress.dial import Dialler
from casemate.egress.terms import ProxyLimits
from casemate.errors import InvalidArgument
from casemate.model.addresses import is_metadata, is_never_public
from casemate.packages.indexes import Index, Indexes
from casemate.packages.pages import PageLink
from casemate.packages.store import PackageStore
from casemate.packages.upstream import Unfetched, Upstream
from casemate.tools.connections.remote import check_addresses, http_client
from casemate.tools.connections.reports import OutputTail

METADATA = ("169.254.169.254", "169.254.170.2", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254",
    "fd20:ce::254", "::ffff:168.63.129.16", "64:ff9b::a83f:8110", "2002:a83f:8110::1",
    "::168.63.129.16")  # fmt: skip
NOT_PUBLIC = ("127.0.0.1", "0.0.0.0", "0.1.2.3", "10.1.2.3", "172.31.0.1", "192.168.1.1", "100.64.0.1", "169.254.1.1",
              "192.0.0.1", "192.0.2.1", "192.31.196.1", "192.88.99.1", "198.18.0.1", "203.0.113.9", "224.0.0.1",
              "255.255.255.255", "::", "::1", "fe80::1", "fec0::1", "fd00::1", "ff0e::1", "::ffff:127.0.0.1",
              "::ffff:8.8.8.8", "::7f00:1", "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "2002:7f00:1::1",
              "2002:808:808::1", "2001:0:5db8:d822::1", "2001:db8::1", "3fff::1", "5f00::1", "4000::1")  # fmt: skip
PUBLIC = ("8.8.8.8", "172.32.0.1", "168.63.129.17", "2606:4700::1111")
HOME = "https://8.8.4.4"
NOWHERE = "http://127.0.0.1:1"  # a proxy that is not there: nothing goes further


def in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


async def is_dialled(address: str) -> bool:
    """By a cell, for a name of its own."""

    async def resolve(_: str) -> list[str]:
        return [address]

    async def connect(_: str, __: int) -> socket.socket:
        raise ConnectionRefusedError

    async with asyncio.TaskGroup() as group:
        try:
            await Dialler(resolve, connect, group).dial("good.test", 443, ProxyLimits())
        except EgressRefused as refused:
            return isinstance(refused, Unreachable)
    raise AssertionError("the connection cannot have been made")


async def is_downloaded_from(address: str, tmp_path: Path, page: str) -> bool:
    upstream = Upstream(Indexes((Index(f"{page}/simple/"),), proxy=NOWHERE), PackageStore(tmp_path), 1 << 20)
    try:
        with pytest.raises(Unfetched, match=r"not a public host|cannot be reached") as refused:
            await upstream.file(PageLink("x.whl", f"https://{in_url(address)}/x.whl", page=f"{page}/simple/x/"))
    finally:
        await upstream.close()
    return "cannot be reached" in str(refused.value)


async def is_led_to(address: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """By an MCP server, for a sign-in."""
    import httpx2

    async def send(_: object, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(204, request=request)

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", send)
    async with http_client(f"{HOME}/mcp", {}, words=OutputTail()) as client:
        return (await client.get(f"https://{in_url(address)}/token")).status_code == httpx2.codes.NO_CONTENT


@pytest.mark.parametrize("address", [*METADATA, *NOT_PUBLIC, *PUBLIC])
async def test_all_that_connects_is_of_one_mind_about_an_address(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_public = address in PUBLIC
    monkeypatch.setattr(dial, "is_own", lambda _: False)  # some machines let sockets be bound to any address
    assert await is_dialled(address) == (is_public and ":" not in address)  # cells have IPv4 alone
    assert await is_downloaded_from(address, tmp_path, HOME) == is_public
    assert await is_led_to(address, monkeypatch) == is_public
    assert is_never_public(address) == (not is_public)


@pytest.mark.parametrize("address", METADATA)
async def test_nothing_makes_an_exception_for_a_clouds_metadata(address: str, tmp_path: Path) -> None:
    assert is_metadata(address)
    assert not await is_downloaded_from(address, tmp_path, "https://10.1.2.3")
    with pytest.raises(InvalidArgument, match="credentials"):
        check_addresses("meta.test", [address])


@pytest.mark.parametrize("network", ["0.0.0.0/0", "10.0.0.0/7", "168.63.129.0/24", "2000::/3", "::/0"])
def test_a_network_with_public_addresses_is_not_taken_for_refused(network: str) -> None:
    assert not is_never_public(network)


@pytest.mark.parametrize("network", ["10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "fc00::/7", "fe80::/10"])
def test_a_network_without_public_addresses_is_refused_anyhow(network: str) -> None:
    assert is_never_public(network)
