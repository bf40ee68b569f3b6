"""``casemate tools``: the user's MCP servers, what their tools are called, and calls of them."""

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


_UNAVAILABLE = 69  # the exit code where a server cannot be reached (sysexits.h)
T = TypeVar("T")
File = Annotated[str | None, Parameter(help="Another file of servers than your own.")]
_FAILED = 1  # the exit code where a tool says that it failed

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
        name: What programs call it: letters, digits, _ and -.
        words: The command that starts it, and its arguments, behind --.
        command: The same, where no argument begins with a hyphen.
        url: The address of a server that runs elsewhere.
        header: A header of requests to it, as 'Name: value'. May be repeated.
        env: A variable of the command, as NAME=VALUE. May be repeated.
        wall: The command runs behind a wall, as by casemate wrap.
        policy: A file of rules for that wall, in casemate's keys.
        settings: A file of rules for that wall, in srt's keys.
        read: A file or folder that the command can read behind its wall. May be repeated.
        copy: The same for a folder that it gets a copy of to write in. Behind a wall without a network npx finds no
            packages but those in its cache: run the command once without, then give --copy ~/.npm. May be repeated.
        cwd: The folder that the command is started in; unless given, the one that casemate is started in.
        type: How to speak with a --url: http (streamable HTTP) unless given, or sse.
        auth: How to sign in to a --url: oauth, by a browser, or device, by a code.
        variable: A variable of this machine that ${V} may stand for. May be repeated.
        timeout: Seconds for a call; 120 unless given.
    """
    if words and command:
        raise InvalidArgument("command", "is there twice: behind -- and as --command")
    started = [*words, *command]
    definition: dict[str, Any] = {"command": started[0], "args": started[1:]} if started else {}
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
    except InvalidArgument as error:  # of a key of the definition, which an option has given here
        raise InvalidArgument(
            error.argument.removeprefix(f"{name}."), error.message.removeprefix(f"{error.argument}: ")
        ) from None
    if file is None:
        tell_service("tools.add", name=name, definition=begun_at_home(definition, os.environ))
    return 0


@app.command(name="list")
def list_servers(*, output: Output = "text", as_json: AsJson = False, file: File = None) -> int:
    """Print the servers that are kept, one in a line: the name, and behind a tab how it is reached.

    Args:
        output: text (unless given), or json: names and definitions; of variables and headers the names alone.
    """
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
    """Forget a server.

    Args:
        name: Its name.
    """
    remove_from_file(_file(file), name)
    if file is None:
        tell_service("tools.remove", InvalidArgument, name=name)
    return 0


@app.command
def search(*words: Name, output: Output = "text", file: File = None) -> int:
    """Print the tools that fit the words best; without words the names of all.

    casemate tools search convert time zones

    Args:
        words: What the tool should do.
    """

    async def search_tools(sandbox: Sandbox) -> str:
        text = (await sandbox.tools.search_all(" ".join(words))).text
        await _tell_problems(sandbox)
        return text

    return _print_answer(_with_servers(file, search_tools), output)


@app.command
def describe(tool: Name, /, *, output: Output = "text", file: File = None) -> int:
    """Print what a program needs to know to call a tool.

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
    """Call a tool. It is you who calls, so nobody is asked; the exit code is 1 where the tool says that it failed.

    casemate tools call time.convert_time source_timezone=UTC time=12:00 target_timezone=Asia/Tokyo

    casemate tools call files.edit_file path=a.txt --json '{"edits": []}' dryRun:=true

    Args:
        tool: SERVER.TOOL
        arguments: KEY=VALUE, read as the parameter's type says, or KEY:=JSON.
        json: Several arguments as one JSON object.
        output: text (unless given), or json: all that came back: content, structured where there is such, and is_error.
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
    """Write what programs import, as files that an editor or a type checker can read.

    casemate tools generate typings --server time

    Args:
        folder: Where to: it then has a folder mcptools, or a file mcptools.d.ts. Those of an earlier time are replaced.
        server: One server; may be repeated. All of them unless given.
        language: python, unless given, or node for TypeScript's declarations.
    """

    async def read_catalogue(sandbox: Sandbox) -> tuple[Any, bool]:
        catalogue = await sandbox.tools.catalogue()
        return catalogue, await _tell_problems(sandbox)

    catalogue, is_whole = _with_servers(file, read_catalogue, server)
    if language == "node":
        declarations_into(Path(folder), catalogue)
    else:
        package_into(Path(folder), catalogue)
    return 0 if is_whole else _UNAVAILABLE


async def _tool(sandbox: Sandbox, path: str) -> Any:
    """The tool that ``SERVER.TOOL`` names, on the wire or in Python; its server alone is started."""
    from casemate.tools.schemas.types import package_names

    given = path.removeprefix("mcptools.").partition(".")[0]
    names = package_names(definition.name for definition in sandbox.tools.servers.definitions())
    server = next((server for server, package in names.items() if given in (server, package)), None)
    if server is None:
        known = f"There are {', '.join(names)}." if names else "Add one with `casemate tools add`."
        raise InvalidArgument("tool", f"there is no server {given[:100]!r}", remediation=known)
    found = (await sandbox.tools.catalogue(server)).by_path(path)
    if found is None:
        raise InvalidArgument(
            "tool", f"there is no tool {path[:100]!r}", remediation="`casemate tools search` names them all."
        )
    return found


async def _tell_problems(sandbox: Sandbox) -> bool:
    """Say what is missing, and why; whether every server is there."""
    problems = await sandbox.tools.problems()
    for name, why in problems.items():
        say(inert(f"{name}: {why}"))
    return not any(definition.name in problems for definition in sandbox.tools.servers.definitions())


def _with_servers(file: File, work: Callable[[Sandbox], Awaitable[T]], only: tuple[str, ...] = ()) -> T:
    """Do something with the servers that are kept, or some of them; none is started before it is needed."""
    kept = choose_servers(_file(file), only)
    return interrupts.run_in(Sandbox(tools=kept, vault=users_store(os.environ)), work)


def _file(given: File) -> Path:
    return users_file(os.environ) if given is None else Path(given).expanduser()


def _place(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(os.path.expanduser(path))


def _pair(option: str, given: str, between: str) -> tuple[str, str]:
    name, found, value = given.partition(between)
    if not found or not name.strip():
        raise InvalidArgument(option, f"{given[:40]!r} is no NAME{between}VALUE")
    return (name.strip(), value.strip()) if between == ":" else (name, value)


def _without_values(definition: dict[str, Any]) -> dict[str, Any]:
    """A definition without what may be secret in it."""
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
_MARK = "_wire.py"  # a file that every package which was written here has


def package_into(folder: Path, catalogue: Catalogue) -> None:
    """Write ``folder/mcptools``, in place of one of an earlier time. Raises ``InvalidArgument`` where something else
    is there, and ``OSError``."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / _PACKAGE
    if target.is_symlink() or (target.exists() and not (target / _MARK).is_file()):
        raise InvalidArgument("folder", f"there is a {target} that is not of casemate's making; name another folder")
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
