"""The host against programs, repositories, agents and code in cells that try for more than was opened."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract import witness
from tests.host.conftest import Opened
from tests.host.test_commands import is_alive
from tests.mcp_server.conftest import operations_of
from tests.support.waiting import until_async as until

from casemate import CasemateError, InvalidArgument, Sandbox
from casemate.errors import Denied, Fault, Unavailable
from casemate.model.operation import Audience, Principal
from casemate.operations.invoke import Invoke, local
from casemate.operations.operations import Operations

EVERY_WRITE: dict[str, Any] = {"action": "write", "change": {"any": True}}


def how_many(mark: str) -> int:
    """Processes with ``mark`` among their arguments."""
    found = 0
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += mark.encode() in place.read_bytes().split(b"\0")
    return found


def git(folder: Path, *words: str) -> None:
    named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(folder), *named, *words], check=True, capture_output=True)


@pytest.fixture
def marker(opened: Opened) -> Path:
    return opened.place / "marker"


@pytest.fixture
def repository(opened: Opened) -> Path:
    folder = opened.place / "project"
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


@pytest.fixture
def agents(runner: asyncio.Runner, opened: Opened) -> Iterator[Callable[[str], Invoke]]:
    """Callers of operations on one sandbox, in which any write is allowed below the folder for that."""
    path = {"path": f"{opened.place}/out/**"}
    write = {"allow": "files", "arguments": {**EVERY_WRITE, "path": path}}
    with operations_of(Sandbox(policy=opened.policy(write), audit=opened.place / "audit.db"), runner) as operations:
        yield lambda name: local(operations, Principal(name, Audience.AGENT, account=name))


async def run_step(agent: Invoke, session: str, code: str) -> str:
    """What a program prints in a session of an agent's."""
    run = await agent("runs.start", {"session": session, "code": code})
    return str((await agent("runs.wait", {"run": run["run"]}))["execution"]["stdout"])


async def test_a_command_that_prints_without_end_is_ended_in_time(opened: Opened) -> None:
    async with opened.sandbox() as sandbox:
        result = await sandbox.host.exec(["sh", "-c", "yes & yes & yes & yes >&2 & yes >&2 & yes"], timeout=1.0)
    assert result.status == "timeout"


async def test_what_a_command_says_of_its_end_does_not_count_as_output(opened: Opened) -> None:
    async with opened.sandbox(output=1) as sandbox:
        result = await sandbox.host.exec(["sh", "-c", "echo hello; exit 7"])
    assert (result.exit_code, result.stdout, result.truncated) == (7, "h", True)


async def test_a_command_cannot_end_what_looks_after_it(opened: Opened) -> None:
    script = "for signal in INT TERM HUP KILL STOP USR1; do kill -$signal 1; done; echo alive"
    async with opened.sandbox() as sandbox:
        result = await sandbox.host.exec(["sh", "-c", script])
    assert (result.status, result.stdout) == ("ok", "alive\n")


async def test_a_runner_that_was_killed_is_replaced_and_what_runs_ends_with_its_sandbox(opened: Opened) -> None:
    mark = f"3{os.getpid()}.75"
    async with opened.sandbox() as sandbox:
        running = asyncio.create_task(sandbox.host.exec(["sleep", mark]))
        await until(lambda: is_alive(mark))
        runner = sandbox.host._runner._pid
        os.kill(runner, signal.SIGKILL)
        await until(lambda: witness.state(runner) == "Z")  # a command that it got just before is lost with it
        for _ in range(3):
            assert (await sandbox.host.exec(["true"])).ok
        assert is_alive(mark)
    await until(lambda: not is_alive(mark))
    with contextlib.suppress(CasemateError):
        await running


async def test_one_callers_commands_do_not_hold_up_anothers(opened: Opened) -> None:
    mark = f"3{os.getpid()}.875"
    sandbox = opened.sandbox({"allow": "host", "command": "sleep *"}, {"allow": "host", "command": ["true"]})
    operations = await Operations(sandbox).load()
    mine, theirs = (local(operations, Principal(name, Audience.AGENT, account=name)) for name in ("mine", "theirs"))
    many = [asyncio.create_task(mine("host.exec", {"command": ["sleep", mark]})) for _ in range(20)]
    await until(lambda: how_many(mark) == 16)
    assert (await theirs("host.exec", {"command": ["true"]}))["exit_code"] == 0
    assert how_many(mark) == 16
    for one in reversed(many):
        one.cancel()
    await asyncio.gather(*many, return_exceptions=True)
    assert how_many(mark) == 0
    await operations.close()
    await sandbox.close()


def _take_all_but(few: int) -> list[int]:
    """Descriptors, so many that only a few are left."""
    held = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.dup(0))
    for _ in range(few):
        os.close(held.pop())
    return held


async def test_commands_that_cannot_be_begun_leave_no_descriptor(opened: Opened) -> None:
    async with opened.sandbox() as sandbox:
        assert (await sandbox.host.exec(["true"])).ok
        before = os.listdir("/proc/self/fd")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + 40, hard))
        try:
            held = _take_all_but(4)
            for _ in range(5):
                with pytest.raises(Unavailable, match="Too many open files"):
                    await sandbox.host.exec(["true"])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in held:
                os.close(fd)
        assert len(os.listdir("/proc/self/fd")) == len(before)
        assert (await sandbox.host.exec(["true"])).ok


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_command_is_ended_though_a_fork_of_the_application_lives(opened: Opened) -> None:
    mark = f"3{os.getpid()}.625"
    async with opened.sandbox() as sandbox:
        running = asyncio.create_task(sandbox.host.exec(["sleep", mark]))
        await until(lambda: is_alive(mark))
        if not (child := os.fork()):
            signal.pause()
        try:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert not is_alive(mark)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


FORGE = """
import os
for place in os.scandir("/proc"):
    try:
        lines = open(place.path + "/status").read().split("NSpid:")[1].splitlines()
        if lines[0].split()[1:] == ["1"]:
            for end in os.scandir(place.path + "/fd"):
                os.write(os.open(end.path, os.O_WRONLY | os.O_NONBLOCK), b"{")
    except (OSError, IndexError):
        pass
"""


async def test_a_forged_word_of_a_commands_end_is_an_error_or_has_no_effect(opened: Opened) -> None:
    async with opened.sandbox() as sandbox:
        try:
            result = await sandbox.host.exec(["python3", "-c", FORGE])
        except Fault:
            assert os.geteuid() == 0, "only a command of root's reaches what is written there"
        else:
            assert result.exit_code == 0
        assert (await sandbox.host.exec(["true"])).ok


async def test_a_command_gets_no_descriptor_but_its_three(opened: Opened) -> None:
    async with opened.sandbox() as sandbox:
        result = await sandbox.host.exec(["python3", "-c", "import os; print(os.listdir('/proc/self/fd')[:-1])"])
    assert result.stdout == "['0', '1', '2']\n"


@pytest.mark.parametrize("hook", ["pre-commit", "post-index-change", "reference-transaction"])
async def test_ht_05_git_runs_no_hook_of_a_repository(
    opened: Opened, repository: Path, marker: Path, hook: str
) -> None:
    for key, value in (("user.name", "a"), ("user.email", "a@example.org")):
        git(repository, "config", key, value)
    place = repository / ".git" / "hooks" / hook
    place.parent.mkdir(exist_ok=True)
    place.write_text(f"#!/bin/sh\ntouch {marker}\n")
    place.chmod(0o755)
    (repository / "file").write_text("x")
    async with opened.sandbox() as sandbox:
        assert (await sandbox.host.exec(["git", "add", "file"])).ok
        assert (await sandbox.host.exec(["git", "commit", "-m", "second"])).ok
    assert not marker.exists()


async def test_ht_05_git_is_not_run_where_a_repository_within_could_start_something(
    opened: Opened, repository: Path, marker: Path
) -> None:
    inner = repository / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    git(inner, "commit", "-q", "--allow-empty", "-m", "first")
    git(inner, "config", "core.fsmonitor", f"touch {marker}")
    async with opened.sandbox() as sandbox:
        assert (await sandbox.host.exec(["git", "status"])).ok
        git(repository, "add", "inner")
        marker.unlink(missing_ok=True)
        with pytest.raises(Denied, match="submodules"):
            await sandbox.host.exec(["git", "status"])
    assert not marker.exists()


async def test_ht_05_git_is_not_run_in_a_subfolder_where_a_repository_elsewhere_in_it_could_start_something(
    opened: Opened, repository: Path, marker: Path
) -> None:
    inner, below = repository / "inner", repository / "below"
    for folder in (inner, below):
        folder.mkdir()
    git(inner, "init", "-q")
    git(inner, "commit", "-q", "--allow-empty", "-m", "first")
    (below / "file").write_text("x")
    git(repository, "add", "below")
    rule = {"allow": "host", "command": ["git", "status", "--short"]}
    async with opened.sandbox(rule, folder=str(below)) as sandbox:
        assert (await sandbox.host.exec(["git", "status", "--short"])).stdout == "A  file\n?? ../inner/\n"
        git(repository, "add", "inner")
        git(inner, "config", "core.fsmonitor", f"touch {marker}")
        with pytest.raises(Denied, match="submodules"):
            await sandbox.host.exec(["git", "status", "--short"])
    assert opened.asked == []
    assert not marker.exists()


def a_program(place: Path, name: str, marker: Path) -> str:
    """A folder with a program of that name, which says that it was started."""
    place.mkdir()
    (place / name).write_text(f"#!/bin/sh\necho started >> {marker}\n")
    (place / name).chmod(0o755)
    return str(place)


@pytest.mark.parametrize("name", ["pre-commit", "tig", "gh", "git-2.40", "git-lfs"])
async def test_ht_05_what_starts_git_is_not_run_where_git_would_not_be(
    opened: Opened, repository: Path, marker: Path, name: str
) -> None:
    path = [a_program(opened.place / "bin", name, marker), "/usr/bin"]
    async with opened.sandbox({"allow": "host", "command": [name, "list"]}, path=path) as sandbox:
        assert (await sandbox.host.exec([name, "list"])).ok
        marker.unlink()
        git(repository, "config", "core.fsmonitor", "true")
        with pytest.raises(Denied, match=r"core\.fsmonitor"):
            await sandbox.host.exec([name, "list"])
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("npm", ".npmrc"), ("yarn", ".yarnrc.yml"), ("cargo", ".cargo/config.toml"), ("cargo-1.80", "rust-toolchain"),
        ("pre-commit", ".pre-commit-config.yaml"), ("tox", "tox.ini"), ("pytest", "conftest.py"),
        ("pytest-3", "pytest.ini"), ("bundle", "Gemfile"), ("just", "justfile"), ("hg", ".hg/hgrc"), ("go", "go.work"),
    ],
)  # fmt: skip
async def test_ht_05_a_program_is_not_run_below_a_file_that_steers_it_and_that_the_policy_does_not_open(
    opened: Opened, marker: Path, name: str, file: str
) -> None:
    below = opened.place / "project" / "package" / "below"
    below.mkdir(parents=True)
    path, words = [a_program(opened.place / "bin", name, marker), "/usr/bin"], [name, "list"]
    async with opened.sandbox({"allow": "host", "command": words}, folder=str(below), path=path) as sandbox:
        assert (await sandbox.host.exec(words)).ok
        marker.unlink()
        found = opened.place / "project" / file
        found.parent.mkdir(exist_ok=True)
        found.write_text("")
        with pytest.raises(Denied, match=rf"it takes settings or programs from {found.parents[file.count('/')]}/"):
            await sandbox.host.exec(words)
    assert not marker.exists()
    async with opened.sandbox({"allow": "host", "command": words}, path=path) as sandbox:
        assert (await sandbox.host.exec(words)).ok


async def test_make_reads_no_file_above_the_folder_of_commands(opened: Opened, marker: Path) -> None:
    below = opened.place / "project" / "below"
    below.mkdir()
    (opened.place / "project" / "Makefile").write_text(f"all:\n\ttouch {marker}\n")
    async with opened.sandbox({"allow": "host", "command": ["make"]}, folder=str(below)) as sandbox:
        assert "No targets" in (await sandbox.host.exec(["make"])).stderr
    assert not marker.exists()


async def test_ht_05_a_configuration_that_cannot_be_read_whole_is_not_taken_for_a_harmless_one(
    opened: Opened, repository: Path, marker: Path
) -> None:
    with (repository / ".git" / "config").open("a") as config:
        config.writelines(f'[branch "{"b" * 200}{number}"]\n\tmerge = x\n' for number in range(90_000))
        config.write(f"[core]\n\tfsmonitor = touch {marker}\n")
    async with opened.sandbox() as sandbox:
        with pytest.raises(Denied, match="cannot be looked through"):
            await sandbox.host.exec(["git", "status"])
        (repository / ".git" / "config").write_text("[core\n")
        with pytest.raises(Denied, match="cannot be looked through"):
            await sandbox.host.exec(["git", "status"])
    assert not marker.exists()


@pytest.mark.parametrize("option", ["-C", "-c", "--git-dir=x", "--exec-path=/tmp/x", "--config-env=a=b", "-P"])
async def test_ht_04_git_takes_no_options_before_its_command(opened: Opened, option: str) -> None:
    rule = {"allow": "host", "command": ["git", option, "inner", "status"]}
    async with opened.sandbox(rule) as sandbox:
        with pytest.raises(InvalidArgument, match="before git's command"):
            await sandbox.host.exec(["git", option, "inner", "status"])
    assert opened.asked == []


async def test_ht_05_git_runs_nothing_of_another_repository_on_this_machine(
    opened: Opened, repository: Path, marker: Path
) -> None:
    other = opened.place / "other.git"
    other.mkdir()
    git(other, "init", "-q", "--bare")
    (other / "hooks").mkdir(exist_ok=True)
    (other / "hooks" / "pre-receive").write_text(f"#!/bin/sh\ntouch {marker}\n")
    (other / "hooks" / "pre-receive").chmod(0o755)
    git(repository, "remote", "add", "origin", str(other))
    async with opened.sandbox() as sandbox:
        result = await sandbox.host.exec(["git", "push", "origin", "HEAD"])
    assert "transport 'file' not allowed" in result.stderr
    assert not marker.exists()


async def test_a_program_in_a_folder_that_anybody_may_write_in_is_not_run(opened: Opened) -> None:
    place = opened.place / "anybodys"
    place.mkdir()
    (place / "mine").write_text("#!/bin/sh\n")
    (place / "mine").chmod(0o755)
    place.chmod(0o777)
    async with opened.sandbox(path=[str(place)]) as sandbox:
        with pytest.raises(InvalidArgument, match="could be changed by others"):
            await sandbox.host.exec(["mine"])


@pytest.mark.parametrize("root", ["/proc", "/proc/1", "/sys/kernel", "/dev"])
def test_a_root_of_the_kernels_own_files_is_refused(opened: Opened, root: str) -> None:
    with pytest.raises(InvalidArgument, match="memory and settings"):
        opened.sandbox(roots=[{"path": root}])


async def test_characters_that_utf_8_has_not_are_typed_errors(opened: Opened) -> None:
    async with opened.sandbox() as sandbox:
        for attempt in (
            sandbox.host.read(f"{opened.place}/data/\ud800"),
            sandbox.host.write(f"{opened.place}/out/file", "\ud800"),
            sandbox.host.exec(["echo", "\ud800"]),
        ):
            with pytest.raises(InvalidArgument):
                await attempt
    assert opened.asked == []


async def test_a_change_in_a_long_text_is_shown_and_one_too_long_to_show_is_cut_and_says_so(opened: Opened) -> None:
    lines = [f"{number}\n" for number in range(30_000)]
    target = opened.place / "out" / "long.txt"
    target.write_text("".join(lines))
    async with opened.sandbox() as sandbox:
        await sandbox.host.write(str(target), "".join([*lines[:20_000], "new\n", *lines[20_000:]]))
        await sandbox.host.write(str(target), "".join(reversed(lines)))
    shown, hidden = (request.arguments["change"] for request in opened.asked)
    assert shown["diff"].splitlines() == [
        "@@ -19998,6 +19998,7 @@", " 19997", " 19998", " 19999", "+new", " 20000", " 20001", " 20002",
    ]  # fmt: skip
    assert re.search(r"\n\[[0-9]{4,} more lines are not shown\]\Z", hidden["diff"])
    assert len(hidden["diff"]) < 1 << 17
    assert len(hidden["sha256"]) == 64


async def test_code_in_a_cell_copies_to_and_from_its_own_session_alone(
    agents: Callable[[str], Invoke], opened: Opened
) -> None:
    (opened.place / "data" / "in").write_text("planted")
    mine, theirs = agents("mine"), agents("theirs")
    own, other = [(await one("sessions.open", {"language": "python"}))["session"] for one in (mine, theirs)]
    assert await run_step(theirs, other, "open('secret', 'w').write('theirs'); print('there')") == "there\n"
    code = """
from mcptools import ToolError
from mcptools.host import copy
for source, target in {pairs!r}:
    try:
        copy.run(source=source, destination=target)
        print("copied")
    except ToolError as error:
        print(error)
"""
    data, out = f"{opened.place}/data/in", f"{opened.place}/out"
    pairs = [(f"{other}:secret", f"{out}/stolen"), (data, f"{other}:planted"), (data, f"{own}:mine")]
    refused = "session: code in a cell can only copy to and from its own session"
    assert (await run_step(mine, own, code.format(pairs=pairs))).splitlines() == [refused, refused, "copied"]
    lone = await mine("run", {"code": code.format(pairs=pairs[:1])})
    assert lone["stdout"].strip() == refused
    assert list((opened.place / "out").iterdir()) == []
    assert await run_step(theirs, other, "import os; print(os.path.exists('planted'))") == "False\n"


async def test_an_agent_is_not_told_what_others_have_asked(opened: Opened) -> None:
    sandbox = Sandbox(policy=opened.policy(), audit=opened.place / "audit.db")
    operations = await Operations(sandbox).load()
    mine, theirs = (local(operations, Principal(name, Audience.AGENT, account=name)) for name in ("mine", "theirs"))
    with sandbox.approvals.open():
        asking = asyncio.create_task(theirs("host.exec", {"command": ["echo", "private"]}))
        await until(sandbox.approvals.pending)
        assert (await mine("host.access"))["pending"] == []
        assert len((await theirs("host.access"))["pending"]) == 1
        assert len((await sandbox.host.access()).pending) == 1
        sandbox.approvals.deny_all()
        with pytest.raises(Denied):
            await asking
    await operations.close()
    await sandbox.close()


async def test_what_one_agent_may_run_another_is_asked_about(opened: Opened) -> None:
    sandbox = Sandbox(policy=opened.policy(), audit=opened.place / "audit.db")
    operations = await Operations(sandbox).load()
    mine, theirs = (local(operations, Principal(name, Audience.AGENT, account=name)) for name in ("mine", "theirs"))
    with sandbox.approvals.open():
        asking = asyncio.create_task(mine("host.request_access", {"command": ["echo", "x"]}))
        await until(sandbox.approvals.pending)
        sandbox.approvals.decide(sandbox.approvals.pending()[0].id, allow=True, scope="session", expires=600)
        assert (await asking)["scope"] == "agent"
        assert (await mine("host.exec", {"command": ["echo", "x"]}))["exit_code"] == 0
        assert (await theirs("host.access"))["approved"] == []
        other = asyncio.create_task(theirs("host.exec", {"command": ["echo", "x"]}))
        await until(sandbox.approvals.pending)
        sandbox.approvals.deny_all()
        with pytest.raises(Denied):
            await other
    await operations.close()
    await sandbox.close()


async def test_each_file_that_crosses_is_on_record_with_whose_it_is_and_without_secrets(opened: Opened) -> None:
    (opened.place / "data" / "in").write_text("x")
    code = f"""
import os
from mcptools.host import exec, copy, list, read
exec.run(command=["echo", os.environ["API_TOKEN"]])
read.run(path="{opened.place}/data/in")
list.run(path="{opened.place}/data")
"""
    async with opened.sandbox({"allow": "host", "command": "echo *"}) as sandbox:
        await sandbox.vault.set("API_TOKEN", "correct-horse-battery")
        execution = await sandbox.run(code, secrets=["API_TOKEN"])
        assert execution.ok, execution
        async with sandbox.session(name="work"):
            await sandbox.host.copy(f"{opened.place}/data/in", "work:in")
        rows = [row for row in await sandbox.audit.tail(100) if row.kind == "crossing"]
    told = [(row.detail["action"], row.run == execution.id) for row in reversed(rows) if "action" in row.detail]
    assert told == [("read", True), ("list", True), ("read", False)]
    assert "correct-horse-battery" not in repr(rows)
    record = [one for one in opened.place.rglob("*") if "audit.db" in str(one) and one.is_file()]
    assert record
    assert not any(b"correct-horse" in one.read_bytes() for one in record)


async def test_arguments_that_a_function_does_not_have_are_refused_and_tools_go_on(opened: Opened) -> None:
    code = """
from mcptools import _wire
from mcptools.host import exec
for bad in ({"command": ["echo"], "bogus": 1}, {"self": 1}, {"command": ["echo"], "timeout": "soon"}, {}):
    print(_wire.ask({"do": "call", "server": "host", "tool": "exec", "arguments": bad})["kind"])
print(exec.run(command=["echo", "on"]).result["stdout"])
"""
    async with opened.sandbox() as sandbox:
        execution = await sandbox.run(code)
    assert execution.stdout.split() == ["invalid"] * 4 + ["on"], execution


@pytest.mark.parametrize("content", [b"rm -rf /\n\xff", b"rm -rf /\0\n", b"x" * (257 << 10)])
async def test_that_a_difference_is_not_shown_is_said(opened: Opened, content: bytes) -> None:
    async with opened.sandbox() as sandbox:
        await sandbox.host.write(f"{opened.place}/out/file", content)
    assert opened.asked[0].arguments["change"]["diff"].startswith("[not shown: ")


async def test_a_line_in_a_difference_ends_where_its_file_ends_it(opened: Opened) -> None:
    async with opened.sandbox() as sandbox:
        await sandbox.host.write(f"{opened.place}/out/file", "safe\rhidden\u2028more\n")
    assert opened.asked[0].arguments["change"]["diff"].split("\n")[1:] == ["+safe\rhidden\u2028more", ""]
