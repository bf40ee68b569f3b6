"""Every surface that runs programs: each runs one under a policy, and gives all that it says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.kernel.notebook import Notebook
from tests.service.daemon import casemate_command, http, serving, unix
from tests.settings.groups import SECRET
from tests.support.waiting import MAX_WAIT
from tests.support.whole import whole

from casemate import CasemateError, Sandbox, sync
from casemate.remote.facade import ConnectedSandbox

NOBODY_ANSWERS = 3  # seconds after which a question counts as denied


@dataclass(frozen=True)
class Task:
    """A program, and what is configured: ``policy`` is a file, ``env`` has what a process needs."""

    code: str
    policy: Path
    project: Path
    wall: str
    env: Mapping[str, str]
    secrets: tuple[str, ...] = ()
    indexes: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """For a sandbox of this process."""
        known = {"policy": self.policy, "workspace": self.project, "isolation": self.wall}
        indexes = {"package_indexes": [self.indexes]} if self.indexes else {}
        return {
            **known,
            "preload": (),
            "approval_timeout": NOBODY_ANSWERS,
            "audit": Path(self.env["HOME"]) / "audit.db",
            **indexes,
        }

    @property
    def variables(self) -> dict[str, str]:
        """For another process."""
        indexes = {"CASEMATE_PACKAGE_INDEXES": self.indexes} if self.indexes else {}
        return {
            **self.env, "CASEMATE_POLICY": str(self.policy), "CASEMATE_WORKSPACE": str(self.project),
            "CASEMATE_ISOLATION": self.wall, "CASEMATE_SECRET_DEFAULT_KEY": SECRET,
            "CASEMATE_APPROVAL_TIMEOUT": str(NOBODY_ANSWERS), **indexes,
        }  # fmt: skip

    @property
    def options(self) -> dict[str, Any]:
        """Of one run."""
        return {"secrets": list(self.secrets)} if self.secrets else {}

    def command(self, *words: str, given: Mapping[str, str] | None = None) -> str:
        """All that ``casemate`` says."""
        ran = subprocess.run(
            casemate_command(*words), env=self.variables if given is None else given, cwd=self.project,
            stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=MAX_WAIT,
        )  # fmt: skip
        return (ran.stdout + ran.stderr).decode(errors="replace")

    @property
    def secret_words(self) -> tuple[str, ...]:
        return tuple(word for name in self.secrets for word in ("--secret", name))


async def _run(task: Task) -> str:
    async with Sandbox(**task.arguments) as sandbox:
        return whole(await sandbox.run(task.code, **task.options))


async def _session(task: Task) -> str:
    async with Sandbox(**task.arguments) as sandbox, sandbox.session(**task.options) as session:
        return whole(await session.run(task.code))


async def _sync(task: Task) -> str:
    def run() -> str:
        with sync.Sandbox(**task.arguments) as sandbox:
            return whole(sandbox.run(task.code, **task.options))

    return await asyncio.to_thread(run)


async def _cli_run(task: Task) -> str:
    program = Path(task.env["HOME"]) / "program.py"
    program.write_text(task.code)
    return await asyncio.to_thread(task.command, "run", *task.secret_words, str(program))


async def _cli_exec(task: Task) -> str:
    return await asyncio.to_thread(_in_service, task, "exec", *task.secret_words, "-", task.code)


async def _cli_exec_new(task: Task) -> str:
    return await asyncio.to_thread(_in_service, task, "exec", *task.secret_words, "new", task.code)


def _in_service(task: Task, *words: str) -> str:
    with serving(task.variables) as daemon:
        return task.command(*words, given=daemon.env)


def _wrap(mode: str) -> Callable[[Task], Awaitable[str]]:
    async def wrap(task: Task) -> str:
        options = ("--mode", mode, "--policy", str(task.policy), "--isolation", task.wall, *task.secret_words)
        own = {name: value for name, value in task.variables.items() if name != "CASEMATE_WORKSPACE"}
        words = ("wrap", *options, "--", "/usr/bin/python3", "-c", task.code)
        return await asyncio.to_thread(task.command, *words, given=own)

    return wrap


@contextlib.asynccontextmanager
async def _connected(task: Task) -> AsyncIterator[ConnectedSandbox]:
    with serving(task.variables) as daemon:
        async with ConnectedSandbox(await daemon.connect()) as sandbox:
            yield sandbox


async def _connect_run(task: Task) -> str:
    async with _connected(task) as sandbox:
        return whole(await sandbox.run(task.code, **task.options))


async def _connect_session(task: Task) -> str:
    async with _connected(task) as sandbox, sandbox.session(**task.options) as session:
        return whole(await session.run(task.code))


async def _http(task: Task) -> str:
    def post() -> str:
        body = json.dumps({"code": task.code, "wait": MAX_WAIT, **task.options}).encode()
        with serving(task.variables) as daemon, unix(daemon) as where:
            head = "POST /v1/runs/start HTTP/1.1\nHost: casemate\nContent-Type: application/json"
            return http(where, head, body)[2].decode()

    return await asyncio.to_thread(post)


def _mcp(*options: str) -> Callable[[Task], Awaitable[str]]:
    async def execute(task: Task) -> str:
        words = ["-P", "-m", "casemate", "serve", *options]
        server = StdioServerParameters(command=sys.executable, args=words, env=task.variables, cwd=task.project)
        async with Client(stdio_client(server)) as client:
            return repr(await client.call_tool("execute_code", {"code": task.code, **task.options}))

    return execute


async def _mcp_in_service(task: Task) -> str:
    with serving(task.variables):
        return await _mcp()(task)


async def _kernel(task: Task) -> str:
    def run() -> str:
        with Notebook("casemate-python", task.project, task.variables) as notebook:
            outcome = notebook.run(task.code, allow_stdin=False)
            return repr((outcome.reply, outcome.messages))

    return await asyncio.to_thread(run)


async def _session_files(task: Task) -> str:
    """Not by a program: the application itself writes as the policy lets a program."""
    async with Sandbox(**task.arguments) as sandbox, sandbox.session(**task.options) as session:
        said = []
        for name in ("new.txt", "kept.txt", "open/new.txt", "open/there.txt"):
            try:
                await session.files.write(name, b"new")
            except CasemateError as error:
                said.append(str(error))
        await session.run("pass")  # then what was written is applied
        return "\n".join(said)


SURFACES: Mapping[str, Callable[[Task], Awaitable[str]]] = {
    "Sandbox.run": _run,
    "session": _session,
    "session.files": _session_files,
    "sync": _sync,
    "casemate run": _cli_run,
    "casemate exec -": _cli_exec,
    "casemate exec new": _cli_exec_new,
    "casemate wrap, overlay": _wrap("overlay"),
    "casemate wrap, direct": _wrap("direct"),
    "connect, run": _connect_run,
    "connect, session": _connect_session,
    "HTTP": _http,
    "MCP, embedded": _mcp("--embedded"),
    "MCP, in the service": _mcp_in_service,
    "kernel": _kernel,
}


async def run_on(surface: str, task: Task) -> str:
    """What the surface says, also where it refuses, or waits for an answer that nobody gives."""
    try:
        return await asyncio.wait_for(SURFACES[surface](task), MAX_WAIT)
    except (Exception, ExceptionGroup) as refused:  # noqa: BLE001 - whatever it says is looked at
        return repr(refused) if isinstance(refused, ExceptionGroup) else f"{type(refused).__name__}: {refused}"
