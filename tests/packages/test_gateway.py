"""What the gateway answers in an installing cell, and what of it reaches the operator's index."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.packages.index import JSON, Index, sdist, wheel

from casemate.egress.accepting import accept
from casemate.packages.gateway import Gateway
from casemate.packages.indexes import Indexes
from casemate.packages.indexes import index as index_at
from casemate.packages.pages import PageLink
from casemate.packages.store import PackageStore
from casemate.packages.upstream import Unfetched, Upstream


@contextlib.asynccontextmanager
async def serving(index: Index, folder: Path) -> AsyncIterator[tuple[Gateway, int]]:
    store = PackageStore(folder / "files")
    upstream = Upstream(Indexes((index_at(index.url),)), store, 1 << 20)
    gateway = Gateway(upstream)
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    try:
        async with gateway.serve_at(listening, accept):
            yield gateway, port
    finally:
        await upstream.close()


async def said(port: int, request: bytes) -> bytes:
    """All that is answered to ``request`` on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def got(port: int, path: str, method: str = "GET", fields: str = "") -> tuple[int, bytes]:
    answer = await said(port, f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def test_a_page_has_links_to_the_gateway_alone_and_only_those_lead_anywhere(index: Index, tmp_path: Path) -> None:
    file = index.add(wheel("alpha"))
    async with serving(index, tmp_path) as (gateway, port):
        before, _ = await got(port, f"/files/alpha/0/{file.name}")
        status, body = await got(port, "/simple/alpha/", fields=f"Accept: {JSON}\r\n")
        (entry,) = json.loads(body)["files"]
        fetched = await got(port, entry["url"])
        metadata = await got(port, f"{entry['url']}.metadata")
    assert (before, status) == (404, 200)
    assert entry["url"] == f"/files/alpha/0/{file.name}"
    assert fetched == (200, file.content)
    assert metadata[0] == 200
    assert [one.filename for one in gateway.served.values()] == [file.name]


async def test_a_file_is_known_as_served_to_a_cell_that_ends_with_its_last_byte(index: Index, tmp_path: Path) -> None:
    file = index.add(wheel("alpha"))
    left = threading.Event()

    class Slow(io.BytesIO):
        """At its end it waits until nobody is served any more."""

        def read(self, size: int | None = -1) -> bytes:
            return super().read(size) or (left.wait(30) and b"") or b""

    async with serving(index, tmp_path) as (gateway, port):
        await got(port, "/simple/alpha/")
        gateway.upstream.store.open = lambda sha256: Slow(file.content)  # type: ignore[method-assign, assignment, return-value]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /files/alpha/0/{file.name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(len(file.content)) == file.content
    left.set()
    writer.close()
    assert [one.filename for one in gateway.served.values()] == [file.name]


@pytest.mark.parametrize("sources", [False, True])
async def test_what_would_have_to_be_built_is_offered_only_where_that_was_asked_for(
    index: Index, tmp_path: Path, sources: bool
) -> None:
    index.add(wheel("alpha"))
    index.add(sdist("alpha", "2.0", ""))
    index.add(("alpha-3.0.exe", b"MZ"))
    async with serving(index, tmp_path) as (gateway, port):
        gateway.sources = sources
        _, body = await got(port, "/simple/alpha/", fields=f"Accept: {JSON}\r\n")
        hidden, _ = await got(port, "/files/alpha/2/alpha-3.0.exe")
    names = [file["filename"] for file in json.loads(body)["files"]]
    assert names == ["alpha-1.0-py3-none-any.whl", *(["alpha-2.0.tar.gz"] if sources else [])]
    assert hidden == 404


@pytest.mark.parametrize("path", [
    "/", "/simple/", "/simple", "/simple/Alpha/", "/simple/../alpha/", "/simple/alpha/../../x", "/simple/%61lpha/",
    "/simple/alpha/?secret=1", "/simple/alpha?secret", "/simple/al_pha/", "/files/", "/files/alpha/0/x.whl",
    "http://evil.test/simple/alpha/", "/simple/alpha//", "/simple/" + "a" * 200 + "/", "/simple/-r/",
])  # fmt: skip
async def test_pk_11_other_paths_lead_nowhere_and_nothing_of_them_goes_on(
    index: Index, tmp_path: Path, path: str
) -> None:
    index.add(wheel("alpha"))
    async with serving(index, tmp_path) as (_, port):
        status, _ = await got(port, path)
    assert status == 404
    assert index.asked == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "PATCH"])
async def test_pk_11_only_get_and_head_are_answered(index: Index, tmp_path: Path, method: str) -> None:
    index.add(wheel("alpha"))
    async with serving(index, tmp_path) as (_, port):
        status, _ = await got(port, "/simple/alpha/", method)
    assert status == 405
    assert index.asked == []


async def test_headers_of_the_cell_stay_in_it(index: Index, tmp_path: Path) -> None:
    index.add(wheel("alpha"))
    fields = "Authorization: Basic c2VjcmV0\r\nCookie: secret=1\r\nUser-Agent: secret\r\nX-Secret: secret\r\n"
    async with serving(index, tmp_path) as (_, port):
        assert (await got(port, "/simple/alpha/", fields=fields))[0] == 200
    assert "secret" not in repr(index.asked)
    assert "c2VjcmV0" not in repr(index.asked)


@pytest.mark.parametrize(
    "request_", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 9000 + b"\r\n", b"\0" * 99]
)
async def test_what_is_no_request_ends_the_connection_and_no_other(
    index: Index, tmp_path: Path, request_: bytes
) -> None:
    index.add(wheel("alpha"))
    async with serving(index, tmp_path) as (_, port):
        assert not (await said(port, request_)).startswith(b"HTTP/1.1 200")
        assert (await got(port, "/simple/alpha/"))[0] == 200


async def test_one_page_is_asked_for_once_however_many_ask(index: Index, tmp_path: Path) -> None:
    index.add(wheel("alpha"))
    async with serving(index, tmp_path) as (_, port), asyncio.TaskGroup() as group:
        asking = [group.create_task(got(port, "/simple/alpha/")) for _ in range(20)]
    assert {task.result()[0] for task in asking} == {200}
    assert index.paths() == ["/simple/alpha/"]


NOWHERE = "http://127.0.0.1:1"  # a proxy that is not there: what is followed by mistake goes no further
LINKS: list[tuple[str, dict[str, Any]]] = [
    ("without encryption", {"url": "http://93.184.216.35/x.whl", "index": "https://93.184.216.34/simple/"}),
    ("not a public host", {"url": "https://127.0.0.1:9/x.whl", "index": "https://93.184.216.34/simple/"}),
    ("not a public host", {"url": "https://169.254.169.254/x.whl", "index": "https://93.184.216.34/simple/"}),
    ("not a public host", {"url": "https://[::1]/x.whl", "index": "https://93.184.216.34/simple/"}),
]


@pytest.mark.parametrize(("why", "where"), LINKS)
async def test_a_page_cannot_send_the_host_to_its_own_network(tmp_path: Path, why: str, where: dict[str, str]) -> None:
    upstream = Upstream(Indexes((index_at(where["index"]),), proxy=NOWHERE), PackageStore(tmp_path), 1 << 20)
    try:
        with pytest.raises(Unfetched, match=why):
            await upstream.file(PageLink("x.whl", where["url"]))
    finally:
        await upstream.close()


@pytest.mark.parametrize("address", [
    "127.0.0.1", "10.0.0.1", "169.254.169.254", "224.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]",
    "[2002:7f00:1::1]", "[2001:0:5db8:d822::1]", "[::7f00:1]", "[fec0::1]", "[ff0e::1]", "[fd00::1]",
])  # fmt: skip
async def test_a_public_page_leads_to_no_private_host_whatever_other_indexes_are(tmp_path: Path, address: str) -> None:
    places = index_at("http://127.0.0.1:1/simple/"), index_at("https://93.184.215.14/simple/")
    indexes = Indexes(places, proxy=NOWHERE)
    upstream = Upstream(indexes, PackageStore(tmp_path), 1 << 20)
    link = PageLink("a-1.0-py3-none-any.whl", f"https://{address}/a-1.0-py3-none-any.whl",
                page="https://93.184.215.14/simple/a/")  # fmt: skip
    plain = PageLink(link.filename, "http://127.0.0.1:1/a-1.0-py3-none-any.whl", page=link.page)
    try:
        with pytest.raises(Unfetched, match="not a public host"):
            await upstream.file(link)
        with pytest.raises(Unfetched, match="without encryption"):
            await upstream.file(plain)
    finally:
        await upstream.close()


async def test_two_files_of_one_name_are_not_both_served(index: Index, tmp_path: Path) -> None:
    first, other = wheel("alpha"), wheel("alpha", files={"more.py": ""})
    one = index.add(first, url="../../files/one")
    index.add(other, url="../../files/other")
    index.answers["/files/one"] = lambda handler: handler.answer(200, one.content)
    index.answers["/files/other"] = lambda handler: handler.answer(200, other[1])
    async with serving(index, tmp_path) as (gateway, port):
        await got(port, "/simple/alpha/")
        statuses = [(await got(port, f"/files/alpha/{number}/{first[0]}"))[0] for number in (0, 1)]
    assert statuses == [200, 403]
    assert [served.size for served in gateway.served.values()] == [len(first[1])]


@pytest.mark.parametrize("body", [b"<a href=x>" * 50_001, b"<![<![<!["], ids=["many", "broken"])
async def test_a_page_that_is_none_is_told_in_words(index: Index, tmp_path: Path, body: bytes) -> None:
    index.answers["/simple/alpha/"] = lambda handler: handler.answer(200, body, Content_Type="text/html")
    async with serving(index, tmp_path) as (gateway, port):
        status, _ = await got(port, "/simple/alpha/")
    assert status == 403
    assert len(gateway.problems) == 1
