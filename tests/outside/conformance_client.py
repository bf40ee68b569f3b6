"""Clients for the scenarios of MCP's conformance suite, which casemate's tools are.

``--serve SOCKET``: loads casemate once, and does what each scenario wants to see in a sandbox of its own, until its
standard input ends. ``--at SOCKET URL`` is the program that the suite runs, once for each scenario: it has the first do
it, and ends as that went. ``--browse URL`` is the user's browser, whose user agrees to everything.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import traceback
import urllib.error
import urllib.request
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casemate.tools.connections.answers import Elicitation, Elicited
    from casemate.tools.tools import Tools

SECONDS = 240.0  # for one scenario, while all are done at once and the machine is busy
_AT_ONCE = 8
NAMED = "https://conformance-test.local/client-metadata.json"  # the client that auth/basic-cimd knows


async def serve(path: str) -> None:
    """Do what is asked at the Unix socket ``path``: a line with a scenario, a line with how it went.

    A server that does not say within ten seconds which revision it speaks is taken for one of the past by the SDK, so
    on a busy machine it would be judged by another revision than its own: it has more time here.
    """
    from mcp.client import session

    session.DISCOVER_TIMEOUT_SECONDS = SECONDS
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(await reader.readline())
        try:
            async with room, asyncio.timeout(SECONDS):
                await done(**asked)
            said = ""
        except Exception:  # noqa: BLE001 - sent to the suite, which goes on with the other cases
            said = traceback.format_exc()
        writer.write(json.dumps(said).encode() + b"\n")
        await writer.drain()
        writer.close()

    loop = asyncio.get_running_loop()
    async with await asyncio.start_unix_server(one, path):
        print("ready", flush=True)
        await loop.run_in_executor(None, sys.stdin.read)


async def done(scenario: str, url: str, context: dict[str, Any]) -> None:
    """What ``scenario`` wants to see of a client of the server at ``url``; ``context`` is what the suite says of it."""
    from casemate import Sandbox

    server = scenario.replace("/", "-").replace(".", "-")
    async with Sandbox() as sandbox:
        await sandbox.tools.add(server, await asyncio.to_thread(definition, scenario, url, context))
        await use(sandbox.tools, server, scenario, context)


def definition(scenario: str, url: str, given: dict[str, Any]) -> dict[str, Any]:
    """How the server of a scenario is reached."""
    if not scenario.startswith("auth/"):
        return {"url": url, "connect_timeout": SECONDS}
    auth: dict[str, Any] = {"type": "authorization_code"}
    if scenario == "auth/basic-cimd":
        auth["client_metadata_url"] = NAMED
    if scenario == "auth/client-credentials-basic":
        auth = {"type": "client_credentials", "issuer": issuer(url)}
    auth |= {key: given[key] for key in ("client_id", "client_secret") if key in given}
    return {"url": url, "auth": auth, "connect_timeout": SECONDS}


def issuer(url: str) -> str:
    """Who gives tokens for the server at ``url``, as it says itself (RFC 9728)."""
    place = url.removesuffix("/mcp") + "/.well-known/oauth-protected-resource/mcp"
    with urllib.request.urlopen(place, timeout=SECONDS) as answer:
        return str(json.load(answer)["authorization_servers"][0])


async def use(tools: Tools, server: str, scenario: str, given: dict[str, Any]) -> None:
    """List the tools, and call those that the scenario looks at."""
    found = [row.tool for row in await tools.list()]
    if not found:
        raise AssertionError(str(dict(await tools.problems())))
    match scenario:
        case "http-custom-headers":
            for call in given["toolCalls"]:
                arguments = {name: value for name, value in call["arguments"].items() if value is not None}
                await tools.call(server, call["name"], arguments)
        case "tools_call":
            answer = await tools.call(server, "add_numbers", {"a": 5, "b": 3})
            assert answer.content[0]["text"].endswith("8"), answer
        case "json-schema-2020-12-preservation":
            known = await tools.resolve_tool(server, "json_schema_2020_12_tool")
            await tools.call(server, "json_schema_echo", {"schema": known.tool.input_schema})
        case _:
            for name in found:
                await asked(tools, server, name)
                if scenario == "auth/authorization-server-migration":
                    await asked(tools, server, name)


async def asked(tools: Tools, server: str, name: str) -> None:
    """Call a tool with what its schema asks for, and agree to all that its server asks."""
    from casemate.tools.connections.answers import Elicited

    def agree(asked: Elicitation) -> Future[Elicited]:
        told: Future[Elicited] = Future()
        told.set_result(Elicited("accept", {"confirmed": True}))
        return told

    known = await tools.resolve_tool(server, name)
    schema = known.tool.input_schema
    required = schema.get("required", ()) if isinstance(schema, dict) else ()
    arguments = {key: sample(schema["properties"][key]) for key in required}
    await asyncio.wrap_future(tools.send_call(known, arguments, elicit=agree))


def sample(schema: dict[str, Any]) -> Any:
    """A value that a plain schema allows."""
    return {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "array": []}.get(schema.get("type", ""), {})


def browse(url: str) -> None:
    """Be a browser whose user agrees: follow where the page leads."""
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        print(error, file=sys.stderr)


def ask(path: str, url: str) -> int:
    """Have a scenario done at the socket; the exit code."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    asked = {"scenario": os.environ["MCP_CONFORMANCE_SCENARIO"], "url": url, "context": context}
    with socket.socket(socket.AF_UNIX) as there, there.makefile("rw") as stream:
        there.connect(path)
        print(json.dumps(asked), file=stream, flush=True)
        said = json.loads(stream.readline())
    sys.stderr.write(said)
    return 1 if said else 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--serve", path]:
            asyncio.run(serve(path))
        case ["--at", path, url]:
            sys.exit(ask(path, url))
        case ["--browse", url]:
            browse(url)
