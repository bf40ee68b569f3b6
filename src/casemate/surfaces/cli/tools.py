"""``casemate tools``: the user's MCP servers, their tools, and calls of them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import App, Parameter

import casemate
from casemate.api.sandbox import Sandbox
from casemate.errors import InvalidArgument
from casemate.surfaces.cli import interrupts
from casemate.surfaces.cli.answers import json_of, print_json
from casemate.surfaces.cli.connection import tell_service
from casemate.surfaces.cli.failures import say
from casemate.surfaces.cli.inert import inert, visible
from casemate.surfaces.cli.parameters import AsJson, Name, Output
from casemate.tools.files import add_to_file, begun_at_home, choose_servers, read_file, remove_from_file, users_file
from casemate.vault.vault import users_store

if TYPE_CHECKING:
    from casemate.tools.modules.catalogue import Catalogue


_UNAVAILABLE = 69  # the exit code if a server cannot be reached (sysexits.h)
T = TypeVar("T")
File = Annotated[str | None, Parameter(help="Another file of servers than your own.")]
_FAILED = 1  # the exit code if a tool reports a failure

app = App(name="tools", help="Keep MCP servers for programs, and call their tools.")


@app.command
def add(
    name: Name,
    /,
    *words: str,
    command: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    url: str | None = None,
    header: tuple[str, ...] = (),
    env: tuple[str, ...] = (),
    wall: bool = False,
    policy: str | None = None,
    settings: str | None = None,
    read: tuple[str, ...] = (),
    copy: tuple[str, ...] = (),
    cwd: str | None = None,
    type: Literal["http", "sse"] | None = None,  # noqa: A002 - the definition's key
    auth: Literal["oauth", "device"] | None = None,
    variable: tuple[str, ...] = (),
    timeout: float | None = None,
    file: File = None,
) -> int:
    """Keep an MCP server: casemate tools add NAME [OPTIONS] -- COMMAND [ARGS...]

    It is started when one of its tools is first needed. ${V} stands for a secret of casemate vault or a --variable.

    casemate tools add time -- uvx mcp-server-time

    casemate tools add files --wall --copy ~/.npm -- npx -y @modelcontextprotocol/server-filesystem .

    casemate tools add tickets --url https://mcp.example.org/mcp --header 'Authorization: Bearer ${TICKETS_TOKEN}'

    Args:
        name: Its name in programs: letters, digits, _ and -.
        words: The command that starts it, and its arguments, after --.
        command: The same, if no argument begins with a hyphen.
        url: The address of a server that runs elsewhere.
        header: A header of requests to it, as 'Name: value'. May be repeated.
        env: A variable of the command, as NAME=VALUE. May be repeated.
        wall: Run the command behind a wall, as casemate wrap does.
        policy: A file of rules for that wall, in casemate's keys.
        settings: A file of rules for that wall, in srt's keys.
        read: A file or folder that the command can read behind its wall. May be repeated.
        copy: A folder that the command gets a writable copy of. Behind a wall without a network npx finds only the
            packages in its cache: run the command once without the wall, then give --copy ~/.npm. May be repeated.
        cwd: The folder that the command is started in. Default: the current one if the command names a file by a
            relative path, else the one that casemate is started in.
        type: Transport for a --url: http (streamable HTTP, the default) or sse.
        auth: How to sign in to a --url: oauth, by a browser, or device, by a code.
        variable: A variable of this machine that ${V} may stand for. May be repeated.
        timeout: Seconds for a call; 120 by default.
    """
    if words and command:
        raise InvalidArgument("command", "is given twice: after -- and as --command")
    started = [*words, *command]
    definition: dict[str, Any] = {"command": started[0], "args": started[1:]} if started else {}
    if cwd is None and (relative := _relative_file(started)):
        cwd = os.getcwd()
        say(inert(f"{name} starts in {cwd}, where {relative} is; --cwd names another folder"))
    signing = {"oauth": "oauth", "device": {"type": "device"}}
    further = {
        "url": url,
        "headers": dict(_pair("header", one, ":") for one in header),
        "env": dict(_pair("env", one, "=") for one in env),
        "wall": wall or None,
        "policy": _place(policy),
        "settings": _place(settings),
        "read": [os.path.abspath(os.path.expanduser(one)) for one in read],
        "copy": [os.path.abspath(os.path.expanduser(one)) for one in copy],
        "cwd": _place(cwd),
        "type": type,
        "auth": None if auth is None else signing[auth],
        "variables": list(variable),
        "timeout": timeout,
    }
    definition |= {key: value for key, value in further.items() if value not in (None, {}, [])}
    try:
        add_to_file(_file(file), name, definition)
    except InvalidArgument as error:  # it names a key of the definition, which here is an option
        error.argument = error.argument.removeprefix(f"{name}.")
        raise
    if file is None:
        tell_service("tools.add", name=name, definition=begun_at_home(definition, os.environ))
    return 0


@app.command(name="list")
def list_servers(*, output: Output = "text", as_json: AsJson = False, file: File = None) -> int:
    """Print the servers: the name, a tab, and how to reach it. JSON omits values of variables and headers."""
    kept = read_file(_file(file))
    if as_json or output == "json":
        print_json({name: _without_values(definition) for name, definition in kept.items()})
        return 0
    for name, definition in kept.items():
        how = definition.get("url") or " ".join([definition["command"], *definition.get("args", ())])
        wall = "  (behind a wall)" if {"wall", "policy", "settings", "read", "copy"} & definition.keys() else ""
        sys.stdout.write(f"{name}\t{visible(how)}{wall}\n")
    return 0


@app.command
def remove(name: Name, /, *, file: File = None) -> int:
    """Forget a server."""
    remove_from_file(_file(file), name)
    if file is None:
        tell_service("tools.remove", InvalidArgument, name=name)
    return 0


@app.command
def search(*words: Name, output: Output = "text", file: File = None) -> int:
    """Print the tools that match the words best; without words all names.

    casemate tools search convert time zones

    Args:
        words: What the tool should do.
    """

    async def search_tools(sandbox: Sandbox) -> tuple[str, bool]:
        text = (await sandbox.tools.search_all(" ".join(words))).text
        unavailable = await _tell_problems(sandbox)
        return text, 0 < unavailable == len(sandbox.tools.servers.definitions())

    text, is_nothing_there = _with_servers(file, search_tools)
    _print_answer(text, output)
    return _UNAVAILABLE if is_nothing_there else 0


@app.command
def describe(tool: Name, /, *, output: Output = "text", file: File = None) -> int:
    """Print how a program calls a tool.

    casemate tools describe time.convert_time

    Args:
        tool: SERVER.TOOL
    """

    async def describe_tool(sandbox: Sandbox) -> str:
        found = await _tool(sandbox, tool)
        return await sandbox.tools.describe(found.server, found.name)

    return _print_answer(_with_servers(file, describe_tool), output)


@app.command
def call(
    tool: Name,
    /,
    *arguments: str,
    json: tuple[str, ...] = (),
    output: Output = "text",
    json_output: Annotated[bool, Parameter(negative=(), show=False)] = False,
    file: File = None,
) -> int:
    """Call a tool. You are the caller, so no approval is needed. The exit code is 1 if the tool reports a failure.

    casemate tools call time.convert_time source_timezone=UTC time=12:00 target_timezone=Asia/Tokyo

    casemate tools call files.edit_file path=a.txt --json '{"edits": []}' dryRun:=true

    Args:
        tool: SERVER.TOOL
        arguments: KEY=VALUE, parsed by the parameter's type, or KEY:=JSON.
        json: Several arguments as one JSON object.
    """

    async def call_tool(sandbox: Sandbox) -> tuple[bool, dict[str, Any]]:
        from casemate.tools.shell import BadWords, arguments_of

        found = await _tool(sandbox, tool)
        try:
            given = arguments_of(found, [*arguments, *(word for text in json for word in ("--json", text))])
        except BadWords as error:
            raise InvalidArgument("arguments", str(error)) from None
        answer = await sandbox.tools.call(found.server, found.name, given)
        document: dict[str, Any] = {"content": answer.content, "is_error": answer.is_error}
        return answer.is_error, {**document, "structured": answer.structured} if answer.has_structured else document

    failed, document = _with_servers(file, call_tool)
    if json_output or output == "json":
        print_json(document)
    elif failed:
        say(inert(_text_of(document["content"])))
    else:
        _print(_text_of(document["content"]) if document["content"] else json_of(document.get("structured")))
    return _FAILED if failed else 0


@app.command
def generate(
    folder: str, /, *, server: tuple[str, ...] = (), language: Literal["python", "node"] = "python", file: File = None
) -> int:
    """Write the modules that programs import as files for an editor or a type checker.

    casemate tools generate typings --server time

    Args:
        folder: Where to write a folder mcptools, or a file mcptools.d.ts. Earlier ones are replaced.
        server: One server; may be repeated. Default: all.
        language: python (default), or node for TypeScript declarations.
    """

    async def read_catalogue(sandbox: Sandbox) -> tuple[Any, bool]:
        catalogue = await sandbox.tools.catalogue()
        return catalogue, not await _tell_problems(sandbox)

    catalogue, is_whole = _with_servers(file, read_catalogue, server)
    if language == "node":
        declarations_into(Path(folder), catalogue)
    else:
        package_into(Path(folder), catalogue)
    return 0 if is_whole else _UNAVAILABLE


async def _tool(sandbox: Sandbox, path: str) -> Any:
    """The tool that ``SERVER.TOOL`` names, on the wire or in Python. Starts only its server."""
    from casemate.tools.schemas.types import package_names

    given = path.removeprefix("mcptools.").partition(".")[0]
    names = package_names(definition.name for definition in sandbox.tools.servers.definitions())
    server = next((server for server, package in names.items() if given in (server, package)), None)
    if server is None:
        known = f"Servers: {', '.join(names)}." if names else "Add one with `casemate tools add`."
        raise InvalidArgument("tool", f"there is no server {given[:100]!r}", remediation=known)
    found = (await sandbox.tools.catalogue(server)).by_path(path)
    if found is None:
        raise InvalidArgument(
            "tool", f"there is no tool {path[:100]!r}", remediation="`casemate tools search` lists them all."
        )
    return found


async def _tell_problems(sandbox: Sandbox) -> int:
    """Print what is missing, and why. Returns how many servers are not available."""
    problems = await sandbox.tools.problems()
    for name, why in problems.items():
        say(inert(f"{name}: {why}"))
    return sum(definition.name in problems for definition in sandbox.tools.servers.definitions())


def _with_servers(file: File, work: Callable[[Sandbox], Awaitable[T]], only: tuple[str, ...] = ()) -> T:
    kept = choose_servers(_file(file), only)
    return interrupts.run_in(Sandbox(tools=kept, vault=users_store(os.environ)), work)


def _file(given: File) -> Path:
    return users_file(os.environ) if given is None else Path(given).expanduser()


def _relative_file(words: list[str]) -> str | None:
    """The first word that is a relative path of an existing file. A command without a slash is looked up on PATH."""
    paths = (word for place, word in enumerate(words) if place or "/" in word)
    return next((path for path in paths if not os.path.isabs(path) and os.path.isfile(path)), None)


def _place(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(os.path.expanduser(path))


def _pair(option: str, given: str, between: str) -> tuple[str, str]:
    name, found, value = given.partition(between)
    if not found or not name.strip():
        raise InvalidArgument(option, f"{given[:40]!r} is not NAME{between}VALUE")
    return (name.strip(), value.strip()) if between == ":" else (name, value)


def _without_values(definition: dict[str, Any]) -> dict[str, Any]:
    shown = {key: value for key, value in definition.items() if key not in ("env", "headers", "auth")}
    return {**shown, **{key: sorted(definition[key]) for key in ("env", "headers") if key in definition}}


def _text_of(content: list[dict[str, Any]]) -> str:
    from casemate.tools.shell import text_of_block

    return "\n".join(text_of_block(block) for block in content)


def _print(text: str) -> None:
    sys.stdout.write(f"{inert(text) if sys.stdout.isatty() else text}\n")


def _print_answer(text: str, output: str) -> int:
    if output == "json":
        print_json(text)
    else:
        _print(text)
    return 0


_PACKAGE = "mcptools"
_MARK = "_wire.py"  # a file in every package written here


def package_into(folder: Path, catalogue: Catalogue) -> None:
    """Write ``folder/mcptools`` in place of an earlier one. Raises ``InvalidArgument`` if something else is there."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / _PACKAGE
    if target.is_symlink() or (target.exists() and not (target / _MARK).is_file()):
        raise InvalidArgument("folder", f"{target} exists and was not made by casemate; name another folder")
    own = Path(casemate.__file__).parent / "guest" / "modules" / _PACKAGE
    runtime = {path.name: path.read_text(encoding="utf-8") for path in sorted(own.glob("*.py"))}
    made = Path(tempfile.mkdtemp(prefix=f".{_PACKAGE}-", dir=folder))
    try:
        for name, text in catalogue.package(runtime).items():
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        (made / _PACKAGE / "py.typed").touch()
        if target.exists():
            target.rename(made / "before")
        (made / _PACKAGE).rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def declarations_into(folder: Path, catalogue: Catalogue) -> None:
    """Write ``folder/mcptools.d.ts``. Raises ``OSError``."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{_PACKAGE}.d.ts"
    if target.is_symlink():
        raise InvalidArgument("folder", f"{target} is a link; name another folder")
    target.write_text(f'declare module "{_PACKAGE}" {{\n{catalogue.declarations()}}}\n', encoding="utf-8")
