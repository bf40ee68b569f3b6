"""The host's side of the line protocol with canned tools: on the loopback, or as a service in a cell's network."""

from __future__ import annotations

import ast
import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jsonschema_rs

from casemate.tools.modules.catalogue import Catalogue
from casemate.tools.requests import Read, Search, ToolCall
from casemate.tools.schemas.validation import Validator
from casemate.tools.shell import BadWords, answer_text, resolve_words
from casemate.tools.tool import Tool

if TYPE_CHECKING:
    from casemate.approvals.requester import Requester
    from casemate.egress.stream import TcpStream

# An import that waits for the peer, in the same process, holds up the peer's own.
LOADED = (ast, jsonschema_rs)
Json = dict[str, Any]
# One pixel.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PICTURE = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}


def text(said: str) -> Json:
    return {"type": "text", "text": said}


def takes(*required: str, **properties: Any) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


INTEGER = {"type": "integer"}
ENTRY = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
    "required": ["name"],
}
TOOLS = [
    Tool("files", "list_directory", "List a directory.", takes("path", path={"type": "string"}, depth=INTEGER),
         {"type": "object", "properties": {"content": {"type": "string"}, "entries": {"type": "array", "items": ENTRY}},
          "required": ["content"]}),
    Tool("files", "echo", "Its arguments.", takes(a={"type": ["string", "null"]}, b=INTEGER, c={"type": "number"})),
    Tool("files", "picture", "A picture.", takes()),
    Tool("files", "fail", "Fails.", takes("kind", kind={"type": "string"})),
    Tool("files", "hang", "Never answers.", takes()),
    Tool("files", "import", "Named like a keyword.", takes("class", **{"class": {"type": "string"}})),
    Tool("admin-server", "admin.tools.list", "Dots.", takes()),
]  # fmt: skip


def request_of(words: Sequence[str], catalogue: Catalogue) -> ToolCall | Search | Read | str:
    """What the words of ``tool`` ask for, where these are all tools."""
    asking = resolve_words(words, _Known(catalogue), _here)  # type: ignore[arg-type]
    try:
        asking.send(None)
    except StopIteration as done:
        found: ToolCall | Search | Read | str = done.value
        return found
    raise AssertionError("it waits for something")


@dataclass
class _Known:
    found: Catalogue

    async def catalogue(self) -> Catalogue:
        return self.found

    async def describe_aside(self, server: str, tool: str, _: object) -> str | None:
        return self.found.describe(server, tool)


async def _here(step: Callable[..., Any], *given: Any) -> Any:
    return step(*given)


@dataclass
class Peer:
    """Answers with canned results; ``calls`` are those that came, ``cancelled`` those whose client left."""

    tools: list[Tool] = field(default_factory=lambda: list(TOOLS))
    calls: list[Json] = field(default_factory=list)
    connections: int = 0
    cancelled: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def answer(self, request: Json) -> Json | str | None:
        """The answer to one request; None for none, ever."""
        catalogue = Catalogue(self.tools)
        match request:
            case {"do": "source", "module": str(module)}:
                found = catalogue.source(module)
                if found is None:
                    return {"ok": False, "kind": "unknown", "message": f"no {module}"}
                return {"ok": True, "source": found[0], "package": found[1]}
            case {"do": "list"}:
                return {"ok": True, "text": catalogue.search("", "names")[0], "tools": catalogue.list_rows()}
            case {"do": "search", "query": query, "detail": detail}:
                said, rows = catalogue.search(query, detail)
                return {"ok": True, "text": said, "tools": rows}
            case {"do": "read", "server": server, "uri": uri}:
                return {"ok": True, "content": [{"uri": uri, "text": f"from {server}", "mimeType": "text/plain"}]}
            case {"do": "shell", "words": words}:
                return self._shell(catalogue, words)
            case {"do": "call", "server": str(server), "tool": str(name), "arguments": dict(arguments), **rest} if (
                not rest.keys() - {"line"}
            ):
                return self._call(server, name, arguments)
        return {"ok": False, "kind": "invalid", "message": f"what is {request}?"}

    def _call(self, server: str, name: str, arguments: Json) -> Json | None:
        known = [tool for tool in self.tools if (tool.server, tool.name) == (server, name)]
        if not known:
            return {"ok": False, "kind": "unknown", "message": f"no {server}.{name}"}
        if wrong := Validator(known[0].input_schema).errors(arguments):
            return {"ok": False, "kind": "invalid", "message": "; ".join(wrong)}
        self.calls.append({"server": server, "tool": name, "arguments": arguments})
        if name == "list_directory":
            entries = [{"name": "a.txt", "size": 3}, {"name": "sub"}]
            structured = {"content": f"of {arguments['path']}", "entries": entries}
            return {"ok": True, "structured": structured, "content": [text("as text")]}
        if name == "picture":
            link = {"type": "resource_link", "uri": "demo://x", "name": "x"}
            resource = {
                "type": "resource",
                "resource": {"uri": "demo://y", "blob": "aGk=", "mimeType": "application/zip"},
            }
            return {"ok": True, "content": [text("see"), PICTURE, link, resource, {"type": "audio", "data": "aGk="}]}
        if name == "fail":
            return {"ok": False, "kind": arguments["kind"], "message": "as asked", "content": [text("it said so")]}
        return None if name == "hang" else {"ok": True, "content": [text(json.dumps(arguments, sort_keys=True))]}

    def _shell(self, catalogue: Catalogue, words: list[str]) -> str:
        try:
            wanted = request_of(words, catalogue)
            if isinstance(wanted, ToolCall):
                answer = self._call(wanted.server, wanted.tool, wanted.arguments) or {}
                if not answer.get("ok"):
                    return answer_text(answer.get("kind", "none"), answer.get("message", ""))
                said = answer.get("structured") or answer["content"][0]["text"]
                return answer_text("ok", said if isinstance(said, str) else json.dumps(said))
            about = wanted.query if isinstance(wanted, Search) else ""
            return answer_text("ok", wanted if isinstance(wanted, str) else catalogue.search(about)[0])
        except BadWords as error:
            return answer_text("invalid", str(error))


def lines_of(answer: Json | str) -> bytes:
    return (answer if isinstance(answer, str) else json.dumps(answer) + "\n").encode()


@contextmanager
def on_the_loopback(peer: Peer) -> Iterator[str]:
    """``host:port`` where ``peer`` answers; it ends, with all of its connections, with the block."""
    started: list[Any] = []
    ready = threading.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer.connections += 1
        while line := await reader.readline():
            answer = peer.answer(json.loads(line))
            if answer is None:
                await reader.read()
                peer.cancelled.release()
                break
            writer.write(lines_of(answer))
            if isinstance(answer, str):
                break
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**24)
        stop = asyncio.Event()
        started.extend((asyncio.get_running_loop(), stop, server.sockets[0].getsockname()[1]))
        ready.set()
        await stop.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(60)
    try:
        yield f"127.0.0.1:{started[2]}"
    finally:
        started[0].call_soon_threadsafe(started[1].set)
        thread.join(60)


@dataclass(frozen=True)
class Tools:
    """``peer`` as a service in a cell's network."""

    peer: Peer
    name: str = "tools.casemate.internal"
    port: int = 7

    def begin(self, whose: Callable[[], Requester | None]) -> Tools:
        return self

    async def serve(self, client: TcpStream) -> None:
        self.peer.connections += 1
        try:
            while await client.fill():
                while b"\n" in client.ahead:
                    line = client.take(client.ahead.index(b"\n") + 1)
                    answer = self.peer.answer(json.loads(line))
                    if answer is None:
                        await client.fill()
                        return
                    await client.send(lines_of(answer))
                    if isinstance(answer, str):
                        return
        finally:
            self.peer.cancelled.release()
