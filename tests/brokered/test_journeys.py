"""Servers that others wrote, used by code in cells: from every language, with answers of every kind, and with rules."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.brokered.conftest import Opened, Witness
from tests.tools.connections.conftest import OWN
from tests.tools.connections.peers import everything, peers, script

from casemate import Execution, Sandbox, Session

__all__ = ["peers"]

TOOLS = ("echo", "get-sum", "get-tiny-image", "get-structured-content", "get-resource-links", "get-annotated-message",
         "trigger-long-running-operation", "gzip-file-as-resource", "get-env", "resources/read")  # fmt: skip


def allowed(server: str, *tools: str) -> list[dict[str, Any]]:
    return [{"allow": "tool", "server": server, "tool": tool, "arguments": "any"} for tool in tools]


ALLOW = {"rules": allowed("e", *TOOLS)}


def said(execution: Execution) -> str:
    assert execution.ok, execution.text or execution.error
    return execution.stdout


@pytest.fixture(params=["stdio", "streamableHttp", "sse"])
def definition(request: pytest.FixtureRequest, peers: Path) -> Iterator[dict[str, Any]]:
    """The reference server with everything, over one transport."""
    if request.param == "stdio":
        yield of_everything(peers)
        return
    with everything(peers, request.param) as url:
        path, kind = ("/mcp", "http") if request.param == "streamableHttp" else ("/sse", "sse")
        yield {"url": f"{url}{path}", "type": kind}


def of_everything(peers: Path) -> dict[str, Any]:
    return {"command": "node", "args": [script(peers, "server-everything")]}


@asynccontextmanager
async def with_server(tmp_path: Path, name: str, server: dict[str, Any], **arguments: Any) -> AsyncIterator[Sandbox]:
    async with Sandbox(audit=tmp_path / "audit.db", **arguments) as sandbox:
        await sandbox.tools.add(name, server)
        yield sandbox


@asynccontextmanager
async def with_session(tmp_path: Path, peers: Path, language: str = "python") -> AsyncIterator[Session]:
    async with (
        with_server(tmp_path, "e", of_everything(peers), policy=ALLOW) as sandbox,
        sandbox.session(language) as session,
    ):
        yield session


MISSING = """
import importlib, mcptools
def told(code):
    try: exec(code)
    except (ImportError, AttributeError) as error: print(type(error).__name__, str(error), sep=": ")
    else: print("nothing is missing")
told("from mcptools.own.ecko import run")
told("import mcptools.own.list_schema")
told("from mcptools.own import list_schema")
told("mcptools.own.ecko")
told("from mcptools import owm")
print(hasattr(mcptools.own, "ecko"), getattr(mcptools, "none_such", None))
"""


async def test_a_tool_that_is_not_there_is_told_with_the_reason_or_what_was_meant(tmp_path: Path) -> None:
    own = {"command": sys.executable, "args": ["-S", str(OWN), "malformed"]}
    async with with_server(tmp_path, "own", own) as sandbox:
        lines = said(await sandbox.run(MISSING)).splitlines()
    why = "own has no tool 'list_schema' that can be called: its inputSchema is a list, which is not a schema"
    meant = "own has no tool 'ecko'; did you mean echo?"
    assert lines == [
        f"ModuleNotFoundError: {meant}",
        f"ModuleNotFoundError: {why}",
        f"ModuleNotFoundError: {why}",
        f"AttributeError: {meant}; dir(mcptools.own) lists all",
        "ModuleNotFoundError: there is no server 'owm'; did you mean own?",
        "False None",
    ]


PYTHON = """
import asyncio, os, threading
import mcptools
from mcptools.e import echo, get_sum, get_structured_content

weather = get_structured_content.run(location="Chicago")
assert isinstance(weather, get_structured_content.Result), type(weather)
print(sorted(weather), weather.temperature == weather["temperature"])
print(get_sum.run(get_sum.Params(a=2, b=3)))

async def together():
    return await asyncio.gather(*(echo.arun(message=str(n)) for n in range(8)))
print([str(one) for one in asyncio.run(together())] == [f"Echo: {n}" for n in range(8)])

received = []
threads = [threading.Thread(target=lambda n=n: received.append(echo.run(message=str(n)))) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(received) == [f"Echo: {n}" for n in range(8)])

reading, writing = os.pipe()
if (child := os.fork()) == 0:
    os.write(writing, echo.run(message="forked").encode())
    os._exit(0)
os.waitpid(child, 0)
print(os.read(reading, 100).decode(), "|", echo.run(message="parent"))
"""


@pytest.mark.needs("npm")
async def test_a_python_program_uses_the_server_with_everything(tmp_path: Path, definition: dict[str, Any]) -> None:
    async with with_server(tmp_path, "e", definition, policy=ALLOW) as sandbox:
        execution = await sandbox.run(PYTHON)
    assert said(execution).splitlines() == [
        "['conditions', 'humidity', 'temperature'] True",
        "The sum of 2 and 3 is 5.",
        "True",
        "True",
        "Echo: forked | Echo: parent",
    ]


@pytest.mark.needs("npm")
async def test_a_python_session_shows_images_and_reads_links(tmp_path: Path, peers: Path) -> None:
    async with with_session(tmp_path, peers) as session:
        shown = await session.run("from mcptools.e import get_tiny_image as picture\npicture.run()")
        assert [image.media_type for image in shown.images] == ["image/png"], shown.text
        assert shown.images[0].data.startswith(b"\x89PNG")
        again = await session.run("display(*(await picture.arun()).images)")
        assert [image.data for image in again.images] == [image.data for image in shown.images]
        links = await session.run(
            "import mcptools\n"
            "given = mcptools.e.get_resource_links.run(count=2)\n"
            "found = [one for one in given.content if isinstance(one, mcptools.Link)]\n"
            "contents = [one.read()[0] for one in found]\n"
            "print(len(found), [bool(getattr(c, 'text', None) or getattr(c, 'data', None)) for c in contents])"
        )
        assert said(links) == "2 [True, True]\n"
        text = await session.run("!tool e.echo message=hello")
        assert "Echo: hello" in said(text)
        uris = await session.run("print(found[0].uri)")
        read = await session.run(f"!tool read e {said(uris).strip()}")
        assert "resource" in said(read).lower(), read.text


@pytest.mark.needs("npm")
async def test_node_reads_what_a_link_leads_to(tmp_path: Path, peers: Path) -> None:
    code = """
const { e, contentOf } = require('mcptools');
(async () => {
  const given = await e.get_resource_links({ count: 2 });
  const links = contentOf(given).filter((block) => block.type === 'resource_link');
  for (const link of links) console.log((await link.read())[0].uri === link.uri);
})();
"""
    async with with_server(tmp_path, "e", of_everything(peers), policy=ALLOW) as sandbox:
        done = await sandbox.run(code, language="node")
    assert done.stdout == "true\ntrue\n", done.text


@pytest.mark.needs("npm")
async def test_what_a_tool_reports_as_its_error_is_an_exception_with_what_it_said(tmp_path: Path, peers: Path) -> None:
    server = {"command": "node", "args": [script(peers, "server-filesystem"), str(tmp_path)]}
    code = """
import mcptools
from mcptools.files import read_text_file
try:
    read_text_file.run(path="/etc/passwd")
except mcptools.ToolError as error:
    print(type(error).__name__, error.kind, error.content[0].text == str(error), "denied" in str(error))
try:
    read_text_file.run(path=5)
except mcptools.InvalidArguments as error:
    print(error.kind)
"""
    async with with_server(tmp_path, "files", server, policy={"rules": allowed("files", "read_text_file")}) as sandbox:
        assert said(await sandbox.run(code)).splitlines() == ["ToolError tool True True", "invalid"]


NODE = """
const { e, search } = require('mcptools');
(async () => {
  const weather = await e['get-structured-content']({ location: 'Chicago' });
  console.log(Object.keys(weather).sort().join());
  console.log((await Promise.all([1, 2].map((n) => e.echo({ message: `${n}` })))).map((one) => one.text).join());
  console.log((await e.get_tiny_image()).content.map((one) => one.type).join());
  console.log((await search('sum')).split('\\n')[0].split(':')[0]);
  const received = [];
  await e.trigger_long_running_operation({ duration: 0.5, steps: 2 }, { onProgress: (one) => received.push(one) });
  console.log(received.length > 0, received.at(-1).progress, received.at(-1).total);
})();
"""


@pytest.mark.needs("npm")
async def test_a_node_program_uses_the_server_with_everything(tmp_path: Path, peers: Path) -> None:
    async with with_server(tmp_path, "e", of_everything(peers), policy=ALLOW) as sandbox:
        execution = await sandbox.run(NODE, language="node")
    assert said(execution).splitlines() == [
        "conditions,humidity,temperature",
        "Echo: 1,Echo: 2",
        "text,image,text",
        "mcptools.e.get_sum",
        "true 2 2",
    ]


@pytest.mark.needs("npm")
async def test_a_program_hears_how_far_a_call_is(tmp_path: Path, peers: Path) -> None:
    code = """
import asyncio, mcptools
from mcptools.e import trigger_long_running_operation as long
received = []
with mcptools.on_progress(lambda *said: received.append(said)):
    long.run(duration=0.5, steps=2)
print(received[-1][:2] == (2, 2))
received.clear()
long.run(duration=0.1, steps=1)
print(received)

async def main():
    with mcptools.on_progress(lambda *said: received.append(said)):
        await long.arun(duration=0.5, steps=2)
asyncio.run(main())
print(received[-1][:2] == (2, 2))
"""
    async with with_server(tmp_path, "e", of_everything(peers), policy=ALLOW) as sandbox:
        lines = said(await sandbox.run(code)).splitlines()
    assert lines == ["True", "[]", "True"]


async def test_a_server_that_reports_without_end_is_told_of_a_few_times(opened: Opened, witness: Witness) -> None:
    code = """
import mcptools
from mcptools.w import steps
received = []
with mcptools.on_progress(lambda *said: received.append(said)):
    print(steps.run(number=2000))
print(1 <= len(received) < 1000, received[-1], [one[0] for one in received] == sorted(one[0] for one in received))
"""
    async with opened(policy={"rules": allowed("w", "steps")}) as sandbox:
        lines = said(await sandbox.run(code)).splitlines()
    assert lines == ["steps done", "True (2000.0, None, 'step') True"]


async def test_a_callback_that_fails_cancels_its_call(opened: Opened, witness: Witness) -> None:
    code = """
import mcptools
from mcptools.w import steps, note
def fail(*said):
    raise KeyError("mine")
try:
    with mcptools.on_progress(fail):
        steps.run(number=-1)
except KeyError:
    print(note.run(text="after"))
"""
    async with opened(policy={"rules": allowed("w", "steps", "note")}) as sandbox:
        assert said(await sandbox.run(code)) == "note done\n"
        async with asyncio.timeout(30):
            while not witness.is_cancelled:
                await asyncio.sleep(0.02)


async def test_progress_has_no_secrets_of_the_run(opened: Opened) -> None:
    from casemate.vault.store import MemoryStore

    code = """
import mcptools, os
from mcptools.w import steps
received = []
with mcptools.on_progress(lambda *said: received.append(said)):
    steps.run(number=3, text=os.environ["MINE"])
print(received[-1][0] == 3, received[-1][2])
"""
    async with opened(policy={"rules": allowed("w", "steps")}, vault=MemoryStore()) as sandbox:
        await sandbox.vault.set("MINE", "a-secret-of-the-run")
        shown = "print(os.environ['MINE'] in received[-1][2])"  # printed values would be hidden by themselves
        execution = await sandbox.run(code + shown, secrets=["MINE"])
    assert said(execution).splitlines() == ["True [secret:MINE]", "False"]


@pytest.mark.needs("npm")
@pytest.mark.parametrize("has_settings", [False, True])
async def test_a_server_behind_a_wall_cannot_read_what_is_hidden_there(
    tmp_path: Path, peers: Path, has_settings: bool
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "notes.txt").write_text("hello")
    (project / ".env").write_text("TOKEN=of-the-project")
    (project / "keys.txt").write_text("of-the-project")
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"filesystem": {"denyRead": [str(project / "keys.txt")]}}))
    server = {
        "command": str(peers.parent / ".bin" / "mcp-server-filesystem"), "args": ["."], "cwd": str(project),
        "wall": True, **({"settings": str(settings)} if has_settings else {}),
    }  # fmt: skip
    code = f"""
import mcptools
from mcptools.files import list_directory, read_text_file
print(list_directory.run(path={str(project)!r}).content.count("notes.txt"))
print(read_text_file.run(path={str(project / "notes.txt")!r}).content)
for hidden in (".env", "keys.txt"):
    try:
        print(read_text_file.run(path={str(project)!r} + "/" + hidden).content)
    except mcptools.ToolError as error:
        print("no", "of-the-project" in str(error))
"""
    allow = {"rules": allowed("files", "list_directory", "read_text_file")}
    async with with_server(tmp_path, "files", server, policy=allow) as sandbox:
        lines = said(await sandbox.run(code)).splitlines()
    assert lines == ["1", "hello", "no False", "no False" if has_settings else "of-the-project"]


@pytest.mark.needs("npm")
async def test_what_a_server_remembers_is_there_for_other_sessions_and_after_a_reset(
    tmp_path: Path, peers: Path
) -> None:
    server = {
        "command": "node", "args": [script(peers, "server-memory")],
        "env": {"MEMORY_FILE_PATH": str(tmp_path / "memory.json")},
    }  # fmt: skip
    create = (
        "from mcptools.memory import create_entities as create\n"
        "made = create.run(entities=[{'name': 'Ada', 'entityType': 'person', 'observations': ['writes']}])\n"
        "print(made.entities[0].name, made.entities[0].entityType)"
    )
    find = "from mcptools.memory import search_nodes\nprint(search_nodes.run(query='Ada').entities[0].observations)"
    allow = {"rules": allowed("memory", "create_entities", "search_nodes")}
    async with (
        with_server(tmp_path, "memory", server, policy=allow) as sandbox,
        sandbox.session() as one,
        sandbox.session() as other,
    ):
        assert said(await one.run(create)) == "Ada person\n"
        assert said(await other.run(find)) == "['writes']\n"
        await sandbox.tools.reset("memory")
        assert said(await other.run(find)) == "['writes']\n"


async def test_a_repository_is_shown_to_a_program(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    who = ["-c", "user.name=A", "-c", "user.email=a@b.test"]
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (repository / "a.txt").write_text("one\n")
    subprocess.run(["git", "-C", str(repository), "add", "a.txt"], check=True)
    subprocess.run(["git", "-C", str(repository), *who, "commit", "-qm", "The first"], check=True)
    (repository / "a.txt").write_text("two\n")
    server = {"command": sys.executable, "args": ["-m", "mcp_server_git", "--repository", str(repository)]}
    code = f"""
from mcptools.git import git_diff_unstaged, git_log
print("The first" in str(git_log.run(repo_path={str(repository)!r})))
print("+two" in str(git_diff_unstaged.run(repo_path={str(repository)!r})))
"""
    allow = {"rules": allowed("git", "git_log", "git_diff_unstaged")}
    async with with_server(tmp_path, "git", server, policy=allow) as sandbox:
        assert said(await sandbox.run(code)).splitlines() == ["True", "True"]


async def test_the_tools_of_a_server_are_those_that_it_has_now(tmp_path: Path) -> None:
    own = {"command": sys.executable, "args": [str(OWN), "good"], "env": {"MARKS": str(tmp_path / "marks")}}
    rules = {"rules": [{"allow": "tool", "server": "own", "tool": "change", "arguments": "any"}]}
    added = '{"name": "latest", "inputSchema": {"type": "object"}}'
    async with with_server(tmp_path, "own", own, policy=rules) as sandbox, sandbox.session() as session:
        assert said(await session.run("import mcptools.own; print('latest' in dir(mcptools.own))")) == "False\n"
        changes = f"mcptools.own.change.run(tools=[{added}])\nwhile 'latest' not in dir(mcptools.own): pass"
        assert said(await session.run(changes, timeout=30)) == ""
