"""A site with the hostile and odd pages of real sites, a SearXNG, and a search engine's page of results."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import zlib
from collections.abc import Callable
from urllib.parse import unquote

PORT = 8090
SEARCH = 8091  # on the host's loopback, too
WORDS = "Rivers carry what the hills have lost, and nobody who lives beside them asks where it came from. " * 6
ARTICLE = f"""<!doctype html><html><head><title>Rivers</title></head><body><nav><a href="/menu">Menu entry</a></nav>
<article><h1>Rivers</h1><p>{WORDS}</p><h2>Delta</h2><p>See <a href="/more?a=1">more of it</a>. {WORDS}</p>
<pre><code>def flow(rate):
    return rate * 2
</code></pre><table><tr><th>river</th><th>length</th></tr><tr><td>Elbe</td><td>1094</td></tr></table></article>
<script>var junk = "script text";</script></body></html>"""
RESULTS = """<html><body><div class="body"><h2><a>Rivers of {0}</a></h2><a href="https://rivers.test/">All about
{0}</a></div></body></html>"""


def pdf(text: str) -> bytes:
    """A PDF of one page for each line, whose title is "Paper"."""
    lines = text.split("\n")
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(lines)))
    objects = ["<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Kids[{kids}]/Count {len(lines)}>>",
               "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]  # fmt: skip
    for number, line in enumerate(lines):
        stream = f"BT /F1 12 Tf 72 700 Td ({line}) Tj ET"
        objects.append(f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>"
                       f"/Contents {5 + 2 * number} 0 R>>")  # fmt: skip
        objects.append(f"<</Length {len(stream)}>>stream\n{stream}\nendstream")
    objects.append("<</Title(Paper)>>")
    out, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj{one}endobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    head = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    end = f"trailer<</Size {len(objects) + 1}/Root 1 0 R/Info {len(objects)} 0 R>>\nstartxref\n{len(out)}\n%%EOF"
    return out + f"{head}{end}".encode()


Reply = tuple[str, dict[str, str], bytes]


def fixed(path: str, query: str, headers: dict[str, str]) -> Reply | None:  # noqa: C901 - a table of what there is
    """What is answered at once and whole."""
    html = {"Content-Type": "text/html; charset=utf-8"}
    page = ARTICLE.encode()
    match path:
        case "/page" | "/private/page" | "/more":
            return "200 OK", html, page
        case "/close":
            return "200 OK", {**html, "Connection": "close"}, page
        case "/missing":
            return "404 Not Found", html, b"<html><body><p>There is no such page.</p></body></html>"
        case "/redirect":
            return "302 Found", {"Location": unquote(query)}, b"moved"
        case "/loop":
            return "301 Moved", {"Location": f"/loop?{int(query or 0) + 1}"}, b""
        case "/robots.txt":
            return "200 OK", {"Content-Type": "text/plain"}, b"User-agent: *\nDisallow: /private/\n"
        case "/type":
            return "200 OK", {"Content-Type": unquote(query)}, b"{}"
        case "/typeless":
            return "200 OK", {}, {"html": page, "pdf": pdf("bare"), "text": b"plain words", "": b"\0\1\2"}[query]
        case "/pdf":
            return "200 OK", {"Content-Type": "application/pdf"}, pdf("First page words\nSecond page words")
        case "/bad-pdf":
            return "200 OK", {"Content-Type": "application/pdf"}, b"%PDF-1.4 and nothing else"
        case "/json":
            return "200 OK", {"Content-Type": "application/json"}, b'{"rivers": ["Elbe"]}'
        case "/charset":
            return "200 OK", {"Content-Type": f"text/plain; charset={query}"}, "Käse €".encode(query, "replace")
        case "/wrong-charset":
            return "200 OK", {"Content-Type": f"text/plain; charset={query}"}, "Käse".encode()
        case "/meta":
            text = '<html><head><meta charset="iso-8859-1"><title>Käse</title></head><body><p>Käse</p></body></html>'
            return "200 OK", {"Content-Type": "text/html"}, text.encode("latin-1")
        case "/encoded":
            bodies = {"gzip": gzip.compress(page), "deflate": zlib.compress(page), "raw": zlib.compress(page)[2:-4],
                      "x-gzip": gzip.compress(page), "br": b"whatever", "lie": page, "gzip, gzip": b"",
                      "cut": gzip.compress(page)[:-20]}  # fmt: skip
            names = {"raw": "deflate", "lie": "gzip", "cut": "gzip"}
            name = unquote(query)
            return "200 OK", {**html, "Content-Encoding": names.get(name, name)}, bodies[name]
        case "/bomb":
            packer = zlib.compressobj(9, wbits=31)
            body = b"".join(packer.compress(bytes(1 << 20)) for _ in range(512)) + packer.flush()
            return "200 OK", {"Content-Type": "text/html", "Content-Encoding": "gzip"}, body
        case "/cookie":
            return "302 Found", {"Set-Cookie": "id=1; Path=/", "Location": "/said"}, b""
        case "/said":
            return "200 OK", {"Content-Type": "text/plain"}, json.dumps(headers).encode()
        case "/etag":
            if headers.get("if-none-match") == '"v1"':
                return "304 Not Modified", {"ETag": '"v1"'}, b""
            return "200 OK", {**html, "ETag": '"v1"'}, page
        case "/modified":
            moment = "Mon, 01 Jan 2024 00:00:00 GMT"
            if headers.get("if-modified-since") == moment:
                return "304 Not Modified", {}, b""
            return "200 OK", {**html, "Last-Modified": moment}, page
        case "/liar":
            return "304 Not Modified", {}, b""
        case "/deep":
            return "200 OK", html, b"<div>" * 200_000 + b"deep"
        case "/control":
            return "200 OK", {"Content-Type": "text/plain"}, "a\x1b[31mred\x00\u202eb".encode()
    return None


async def endless(path: str, writer: asyncio.StreamWriter) -> None:
    """What does not come to an end, or not to the one that it says."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
    if path == "/silent":
        await asyncio.Event().wait()
    if path == "/slow":
        writer.write(head + b"Content-Length: 1000000\r\n\r\n")
        while True:
            writer.write(b"<p>")
            await writer.drain()
            await asyncio.sleep(0.05)
    if path == "/endless":
        writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()
    if path == "/endless-head":
        writer.write(head)
        while True:
            writer.write(b"X-More: " + b"x" * 1000 + b"\r\n")
            await writer.drain()
    bodies = {"/long": b"Content-Length: 99999999999\r\n\r\nx", "/short": b"Content-Length: 500\r\n\r\nonly this",
              "/lengthless": b"Content-Length: many\r\nConnection: close\r\n\r\n" + b"words"}  # fmt: skip
    writer.write(head + bodies[path] if path in bodies else b"this is no HTTP\r\n\r\n")
    await writer.drain()


async def serve(note: Callable[[asyncio.StreamWriter, str], None]) -> None:
    """Begin to serve, at every address."""

    async def site(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, KeyError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines[1:])}
                note(writer, lines[0])
                path, _, query = lines[0].split()[1].partition("?")
                reply = fixed(path, query, headers)
                if reply is None:
                    await endless(path, writer)
                    break
                status, more, body = reply
                fields = {**more, "Content-Length": str(len(body))}
                if status.startswith("304"):
                    fields.pop("Content-Length")
                text = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
                writer.write(f"HTTP/1.1 {status}\r\n{text}\r\n".encode() + body)
                await writer.drain()
        writer.close()

    await asyncio.start_server(site, "0.0.0.0", PORT)
    await asyncio.start_server(searxng, "0.0.0.0", SEARCH)


async def searxng(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As SearXNG answers ``/search?q=...&format=json``; some words make it fail."""
    line = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()[0]
    words = unquote(line.split("q=")[1].partition("&")[0]).replace("+", " ") if "q=" in line else ""
    results = [{"url": f"https://rivers.test/{n}", "title": f"{words} {n}", "content": "All about it",
                "engine": "some engine", "score": 1.0} for n in range(20)]  # fmt: skip
    status, body = "200 OK", json.dumps({"query": words, "results": [] if words == "nothing" else results})
    if "format=json" not in line or words == "forbidden":
        status, body = "403 Forbidden", "no"
    if words == "broken":
        body = '{"results": [1, 2'
    if words == "hostile":
        body = json.dumps({"results": [{"url": "javascript:alert(1)", "title": "x", "content": "y"},
                                       {"url": "https://ok.test/", "title": ["x"], "content": None}]})  # fmt: skip
    if words == "silent":
        await asyncio.Event().wait()
    if words == "500":
        status = "500 Broken"
    data = body.encode()
    writer.write(
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
    )
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    writer.close()
