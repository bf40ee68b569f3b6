"""How long a server's processes live, and what becomes of its calls when they do not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.waiting import until
from tests.tools.connections.conftest import OWN, SECONDS, Made, is_alive, said

from casemate.errors import InvalidArgument, SandboxClosed, ToolUnavailable
from casemate.tools.connections.connection import Connection
from casemate.tools.connections.reports import OutputTail
from casemate.tools.connections.servers import Servers
from casemate.tools.connections.stdio import StdioReader

Own = Callable[..., dict[str, Any]]


def starts(marks: Path) -> int:
    return marks.read_text(encoding="utf-8").count("start ")


def test_nothing_is_started_before_a_server_is_used(good: Servers, marks: Path) -> None:
    assert good.last_tools("own") is None
    assert [definition.name for definition in good.definitions()] == ["own"]
    assert starts(marks) == 0
    assert "casemate-tools" not in [thread.name for thread in threading.enumerate()]


def test_a_server_is_started_once_and_kept(good: Servers, marks: Path) -> None:
    assert {said(good, "pid") for _ in range(5)} == {said(good, "pid")}
    assert starts(marks) == 1


def test_calls_at_once_share_one_start(good: Servers, marks: Path) -> None:
    futures = [good.call("own", "wait", {"seconds": 0.2}) for _ in range(20)]
    assert [future.result(SECONDS).content[0]["text"] for future in futures] == ["waited"] * 20
    assert starts(marks) == 1


def test_a_reset_starts_it_anew(good: Servers) -> None:
    before = int(said(good, "pid"))
    good.reset("own")
    until(lambda: not is_alive(before), "the server is ended")
    assert int(said(good, "pid")) != before


def test_a_removed_server_is_ended_and_unknown(good: Servers) -> None:
    pid = int(said(good, "pid"))
    pending = good.call("own", "wait", {"seconds": 100})
    until(lambda: not pending.done(), "it is on its way")
    good.remove("own")
    with pytest.raises(ToolUnavailable):
        pending.result(SECONDS)
    until(lambda: not is_alive(pid), "the server is ended")
    with pytest.raises(InvalidArgument, match="no server 'own'"):
        good.call("own", "pid", {})


@pytest.mark.parametrize("mode", ["good", "stays"])
def test_closing_ends_the_server_and_all_that_it_started(connections: Made, own: Own, mode: str) -> None:
    servers = connections()
    servers.add("own", own(mode))
    pids = [int(said(servers, "pid")), int(said(servers, "daemonise"))]
    assert all(is_alive(pid) for pid in pids)
    servers.close()
    assert [pid for pid in pids if is_alive(pid)] == []
    with pytest.raises(SandboxClosed):
        servers.call("own", "pid", {})


def test_a_server_that_dies_leaves_nothing_behind(good: Servers) -> None:
    daemon = int(said(good, "daemonise"))
    with pytest.raises(ToolUnavailable):
        good.call("own", "die", {}).result(SECONDS)
    until(lambda: not is_alive(daemon), "what it started is ended")


def test_a_server_that_shouts_without_end_is_heard_and_it_and_others_are_of_use(connections: Made, own: Own) -> None:
    servers = connections()
    servers.add("own", own())
    servers.add("loud", own())
    until(lambda: int(said(servers, "shout", "loud")) > 4 << 20, "far more than a pipe holds is read")
    assert said(servers, "echo", a="b") == '{"a": "b"}'
    with pytest.raises(ToolUnavailable) as failure:
        servers.call("loud", "die", {}).result(SECONDS)
    assert len(failure.value.message) < 16 << 10


@pytest.mark.parametrize("wall", [False, True])
def test_servers_end_when_the_host_is_killed(tmp_path: Path, wall: bool) -> None:
    definition = {
        "command": sys.executable, "args": ["-S", str(OWN), "stays", f"of-{tmp_path}"],
        **({"read": [str(OWN)], "cwd": str(tmp_path)} if wall else {}),
    }  # fmt: skip
    program = textwrap.dedent(f"""
        import os, time
        from casemate.tools.connections.context import Surroundings
        from casemate.tools.connections.servers import Servers
        class Nothing:
            def get(self, name): return None
        servers = Servers(Surroundings(dict(os.environ), Nothing()))
        servers.add("own", {definition!r})
        for tool in ("pid", "daemonise"):
            servers.call("own", tool, {{}}).result(60)
        print("ready", flush=True)
        time.sleep(300)
    """)
    host = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert host.stdout
    assert host.stdout.readline() == "ready\n"
    pids = beneath(host.pid)
    assert len(pids) >= 3, "the reaper, the server and its daemon"
    host.send_signal(signal.SIGKILL)
    host.wait()
    host.stdout.close()
    until(lambda: not any(is_alive(pid) for pid in pids), "all that came of the server is ended")


def beneath(pid: int) -> list[int]:
    """The processes that live beneath ``pid``."""
    children: list[int] = []
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return children + [one for child in children for one in beneath(child)]


def test_a_server_that_dies_fails_its_calls_at_once_with_its_last_words(good: Servers) -> None:
    waiting = good.call("own", "wait", {"seconds": 100})
    with pytest.raises(ToolUnavailable) as failure:
        good.call("own", "die", {"words": "the disk is gone", "code": 9}).result(SECONDS)
    assert failure.value.server == "own"
    assert failure.value.reason == "died"
    assert "the disk is gone" in failure.value.remediation
    assert "the disk is gone" not in failure.value.message, "which a program gets"
    assert "exit code 9" in failure.value.message
    with pytest.raises(ToolUnavailable):
        waiting.result(SECONDS)


def test_a_server_that_died_is_started_again_and_nothing_is_sent_twice(good: Servers, marks: Path) -> None:
    first = said(good, "pid")
    with pytest.raises(ToolUnavailable):
        good.call("own", "die", {}).result(SECONDS)
    assert said(good, "pid") != first
    assert marks.read_text(encoding="utf-8").count("die ") == 1


def test_a_server_that_was_killed_is_named_with_the_signal(good: Servers) -> None:
    waiting = good.call("own", "wait", {"seconds": 100})
    os.kill(int(said(good, "pid")), signal.SIGKILL)
    with pytest.raises(ToolUnavailable, match="signal 9"):
        waiting.result(SECONDS)


def test_a_server_that_cannot_live_is_left_alone_until_it_is_reset(connections: Made, own: Own, marks: Path) -> None:
    servers = connections()
    servers.add("own", own("dies"))
    with pytest.raises(ToolUnavailable) as failure:
        servers.tools("own").result(SECONDS)
    assert "no database\\x1b[2J at home" in failure.value.remediation  # what a terminal would obey is shown
    assert "exit code 7" in failure.value.message
    assert failure.value.reason == "connect"
    connection = servers._connections["own"]
    assert isinstance(connection, Connection)
    connection._backoff.failures = 6
    with pytest.raises(ToolUnavailable, match="not started again for some minutes"):
        servers.tools("own").result(SECONDS)
    assert starts(marks) == 1
    servers.reset("own")
    with pytest.raises(ToolUnavailable, match="no database"):
        servers.tools("own").result(SECONDS)
    assert starts(marks) == 2


def test_a_program_that_is_not_there_is_named(connections: Made) -> None:
    servers = connections()
    servers.add("own", {"command": "no-such-program-here"})
    with pytest.raises(ToolUnavailable, match="no-such-program-here: No such file"):
        servers.tools("own").result(SECONDS)


def test_a_folder_that_is_not_there_is_named(connections: Made, own: Own, tmp_path: Path) -> None:
    servers = connections()
    servers.add("own", own(cwd=str(tmp_path / "nowhere")))
    with pytest.raises(ToolUnavailable, match="nowhere"):
        servers.tools("own").result(SECONDS)


def test_a_silent_server_is_given_up(connections: Made, own: Own, marks: Path) -> None:
    servers = connections()
    servers.add("own", own("silent", connect_timeout=5))
    with pytest.raises(ToolUnavailable, match=r"not ready within 5 s"):
        servers.tools("own").result(SECONDS)
    pid = int(marks.read_text(encoding="utf-8").split()[1])
    until(lambda: not is_alive(pid), "it is ended")


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("torrent", "not an MCP message"),
        ("blanks", "not an MCP message"),
        ("line", "more than 64 MiB"),
        ("chatter", "sends too many messages"),
    ],
)
def test_a_server_that_floods_is_ended_and_no_other(connections: Made, own: Own, mode: str, why: str) -> None:
    servers = connections()
    servers.add("loud", own(mode))
    servers.add("own", own())
    loud = servers.call("loud", "wait", {"seconds": 100})
    assert said(servers, "echo") == "{}"
    with pytest.raises(ToolUnavailable, match=why):
        loud.result(SECONDS)
    assert said(servers, "echo") == "{}"


def test_a_long_message_is_whole_although_the_first_reader_gave_up_in_its_middle() -> None:
    async def read() -> None:
        stream = asyncio.StreamReader(limit=1 << 10)
        reader = StdioReader(stream, cast(Any, None), OutputTail(), asyncio.Event())
        text = "x" * 5000
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"text": text}}).encode() + b"\n"
        stream.feed_data(line[:4000])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await reader.receive()
        stream.feed_data(line[4000:] + line)
        stream.feed_eof()
        for _ in range(2):
            assert (await reader.receive()).message.model_dump()["result"] == {"text": text}

    asyncio.run(read())


def test_what_is_no_message_does_no_harm(connections: Made, own: Own) -> None:
    servers = connections()
    servers.add("own", own("rubbish"))
    assert said(servers, "echo", a=1) == '{"a": 1}'


def test_a_server_sees_few_variables_of_the_host(connections: Made, own: Own) -> None:
    host = {"PATH": os.environ["PATH"], "HOME": "/home/of/mine", "AWS_SECRET_ACCESS_KEY": "x", "LD_PRELOAD": "y"}
    servers = connections(host)
    servers.add("own", own(env={"GIVEN": "${NAMED}", "SECRET": "${TOKEN}"}, variables=["NAMED"]))
    with pytest.raises(InvalidArgument, match=r"\$\{NAMED\} has no value"):
        servers.tools("own").result(SECONDS)
    host["NAMED"] = "by name"
    seen = said(servers, "environment")
    assert '"GIVEN": "by name"' in seen
    assert '"HOME": "/home/of/mine"' in seen
    assert "AWS" not in seen
    assert "LD_PRELOAD" not in seen


def test_a_wrapped_server_is_started_through_casemate_wrap(connections: Made, own: Own) -> None:
    from casemate.tools.connections.definition import read_definition
    from casemate.tools.connections.transport import resolve_definition

    surroundings = connections()._surroundings
    words = resolve_definition(read_definition("own", own(wall=True)), surroundings).command
    rules = resolve_definition(read_definition("own", own(policy="rules.yaml")), surroundings).command
    assert words
    assert rules
    begin = [sys.executable, "-E", "-P", "-m", "casemate", "wrap"]
    command = [sys.executable, "-S", str(OWN), "good"]
    apart = ["--env-prefix", "_CASEMATE_OF_THE_SERVER_"]
    assert words.words == [*begin, *apart, "--", *command]
    assert rules.words == [*begin, "--policy", "rules.yaml", *apart, "--", *command]
    assert "MARKS" not in words.env
    assert "_CASEMATE_OF_THE_SERVER_MARKS" in words.env
