"""``casemate tools``, and tools of ``casemate run``, as processes of their own, with a real MCP server."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.surfaces.conftest import At, Cli

CONVERT = ("time.convert_time", "source_timezone=UTC", "time=12:00", "target_timezone=Asia/Tokyo")
CALLS = """
from mcptools import ToolError
from mcptools.time.convert_time import run
try:
    print("called:", run(source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo").target.timezone)
except ToolError as error:
    print(error.kind)
"""


SERVER = (sys.executable, "-S", str(Path(__file__).with_name("time_server.py")))


@pytest.fixture
def kept(in_process: Cli) -> Cli:
    """The command, where a server is kept as ``time``."""
    done = in_process("tools", "add", "time", "--", *SERVER)
    assert (done.code, done.stdout, done.stderr) == (0, b"", b"")
    return in_process


def servers_of(cli: Cli) -> Path:
    return Path(cli.env["HOME"], ".config", "casemate", "servers.json")


def test_a_picture_is_told_of_with_its_size(kept: Cli) -> None:
    words = ("source_timezone=UTC", "time=12:00", "target_timezone=picture")
    assert kept("tools", "call", "time.convert_time", *words).stdout == b"[image, image/png, 4,033 bytes]\n"


def test_a_server_is_kept_in_a_file_that_only_its_owner_reads_and_forgotten_again(kept: Cli) -> None:
    place = servers_of(kept)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert [path.name for path in place.parent.iterdir()] == ["servers.json"]
    definition = {"command": SERVER[0], "args": [*SERVER[1:]]}
    assert json.loads(place.read_text()) == {"mcpServers": {"time": definition}}
    assert kept("tools", "list").stdout.decode() == f"time\t{' '.join(SERVER)}\n"
    assert json.loads(kept("tools", "list", "--json").stdout) == {"time": definition}
    assert kept("tools", "remove", "time").code == 0
    assert kept("tools", "list").stdout == b""
    assert kept("tools", "remove", "time").code == 2


def test_what_each_option_says_is_in_the_definition(in_process: Cli) -> None:
    cli = in_process
    cli("tools", "add", "here", "--env", "A=b=c", "--variable", "V", "--settings", "srt.json", "--", "x", "--y", "${V}")
    cli("tools", "add", "there", "--url", "https://mcp.test/", "--header", "X-Key: Bearer ${K}", "--type", "sse")
    cli("tools", "add", "words", "--command", "x", "y", "--wall")
    cli("tools", "add", "signed", "--url", "https://mcp.test/", "--auth", "oauth", "--timeout", "5")
    assert json.loads(servers_of(cli).read_text())["mcpServers"] == {
        "here": {
            "command": "x", "args": ["--y", "${V}"], "env": {"A": "b=c"}, "variables": ["V"],
            "settings": str(cli.folder / "srt.json"),
        },
        "there": {"url": "https://mcp.test/", "headers": {"X-Key": "Bearer ${K}"}, "type": "sse"},
        "words": {"command": "x", "args": ["y"], "wall": True},
        "signed": {"url": "https://mcp.test/", "auth": "oauth", "timeout": 5.0},
    }  # fmt: skip
    listed = cli("tools", "list", "--json").stdout
    assert b"b=c" not in listed
    assert b"Bearer" not in listed
    assert json.loads(listed)["here"]["env"] == ["A"]


def test_a_command_that_names_a_file_by_a_relative_path_starts_where_that_file_is(in_process: Cli) -> None:
    cli = in_process
    cli.program(Path(SERVER[2]).read_text(), "server.py")
    cli.program("a file of the name of a command", "sh")
    done = cli("tools", "add", "time", "--", *SERVER[:2], "server.py")
    assert (done.code, str(cli.folder) in done.stderr.decode()) == (0, True)
    cli("tools", "add", "elsewhere", "--cwd", "/", "--", *SERVER[:2], "server.py")
    cli("tools", "add", "anywhere", "--", "sh", "-c", "exit")
    kept = json.loads(servers_of(cli).read_text())["mcpServers"]
    assert [kept[name].get("cwd") for name in kept] == [str(cli.folder), "/", None]
    (cli.folder / "below").mkdir()
    called = replace(cli, folder=cli.folder / "below")("tools", "call", *CONVERT)
    assert (called.code, b"Asia/Tokyo" in called.stdout) == (0, True), called.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["x"], b"either 'command'"),
        (["a b", "--", "x"], b"not a server name"),
        (["x", "--url", "https://u:p@mcp.test/"], b"--url: holds credentials"),
        (["x", "--url", "https://mcp.test/", "--", "y"], b"either 'command'"),
        (["x", "--env", "A", "--", "y"], b"--env"),
        (["x", "--header", "A", "--url", "https://mcp.test/"], b"--header"),
        (["x", "--header", "Host: a", "--url", "https://mcp.test/"], b"--header"),
        (["x", "--env", "LD_PRELOAD=a", "--wall", "--", "y"], b"--env"),
        (["x", "--command", "y", "--", "z"], b"twice"),
        (["time", "--", "y"], b"remove it first"),
    ],
)
def test_what_is_no_definition_is_refused_and_nothing_is_changed(kept: Cli, options: list[str], named: bytes) -> None:
    before = servers_of(kept).read_bytes()
    done = kept("tools", "add", *options)
    assert done.code == 2
    assert named in done.stderr
    assert servers_of(kept).read_bytes() == before


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_change_is_not_used(kept: Cli, mode: int) -> None:
    servers_of(kept).chmod(mode)
    for words in (["list"], ["call", *CONVERT], ["add", "x", "--", "y"]):
        done = kept("tools", *words)
        assert done.code == 2
        assert b"other users can change" in done.stderr


def test_a_file_as_other_programs_have_it_is_read_and_added_to(in_process: Cli) -> None:
    """With the reference server for times, which needs no network."""
    cli = in_process
    server = str(Path(sys.executable).with_name("mcp-server-time"))
    (cli.folder / "mcp.json").write_text(json.dumps({"mcpServers": {"time": {"command": server}}}))
    (cli.folder / "mcp.json").chmod(0o644)
    assert cli("tools", "call", *CONVERT, "--file", "mcp.json").code == 0
    assert cli("tools", "add", "x", "--file", "mcp.json", "--", "y").code == 0
    assert [*json.loads((cli.folder / "mcp.json").read_text())["mcpServers"]] == ["time", "x"]
    assert not servers_of(cli).exists()


@pytest.mark.parametrize(
    ("words", "for_programs"),
    [
        (CONVERT, ("--format", "json")),
        ((CONVERT[0], CONVERT[1], "--json", '{"time": "12:00", "target_timezone": "Asia/Tokyo"}'), ("--json-output",)),
        ((CONVERT[0], 'source_timezone:="UTC"', *CONVERT[2:]), ("--format", "json")),
    ],
)
def test_a_call_prints_what_the_tool_gives(kept: Cli, words: tuple[str, ...], for_programs: tuple[str, ...]) -> None:
    done = kept("tools", "call", *words)
    assert (done.code, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["target"]["timezone"] == "Asia/Tokyo"
    told = json.loads(kept("tools", "call", *words, *for_programs).stdout)
    assert told["is_error"] is False
    assert told["structured"]["target"]["timezone"] == "Asia/Tokyo"
    assert told["content"][0]["type"] == "text"


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        ((*CONVERT[:3], "target_timezone=No/Where"), 1, b"No/Where"),
        (CONVERT[:3], 2, b"target_timezone"),
        ((*CONVERT, "time=13:00"), 2, b"twice"),
        (("time.none",), 2, b"no tool 'time.none'"),
        (("other.none",), 2, b"Servers: time."),
    ],
)
def test_a_call_that_fails_says_why(kept: Cli, words: tuple[str, ...], code: int, named: bytes) -> None:
    done = kept("tools", "call", *words)
    assert (done.code, done.stdout) == (code, b"")
    assert named in done.stderr


def test_a_server_that_cannot_be_started_is_said_and_the_others_are_found(kept: Cli) -> None:
    kept("tools", "add", "gone", "--", "/nowhere/at-all")
    done = kept("tools", "search", "convert")
    assert done.code == 0
    assert done.stdout.startswith(b"mcptools.time.convert_time")
    assert b"casemate: gone: " in done.stderr
    assert kept("tools", "call", "gone.x").code == 69
    assert b"source_timezone (str)" in kept("tools", "describe", "time.convert_time").stdout
    kept("tools", "remove", "time")
    assert kept("tools", "search", "convert").code == 69


def test_what_programs_import_is_written_as_files_that_a_type_checker_reads(kept: Cli) -> None:
    for _ in range(2):
        done = kept("tools", "generate", "typings", "--server", "time")
        assert (done.code, done.stderr) == (0, b"")
    (kept.folder / "typings" / "mcptools" / "time" / "stale.py").touch()
    kept("tools", "generate", "typings")
    assert sorted(path.name for path in (kept.folder / "typings").iterdir()) == ["mcptools"]
    assert not (kept.folder / "typings" / "mcptools" / "time" / "stale.py").exists()
    good, bad = kept.folder / "good.py", kept.folder / "bad.py"
    good.write_text(CALLS)
    bad.write_text("from mcptools.time.convert_time import run\nrun(time=12)\n")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", os.devnull, good, bad], env={**kept.env, "MYPYPATH": "typings"},
        cwd=kept.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 1, checked.stdout
    assert {line.partition(":")[0] for line in checked.stdout.splitlines() if ": error:" in line} == {"bad.py"}
    assert kept("tools", "generate", "typings", "--language", "node").code == 0
    assert "source_timezone" in (kept.folder / "typings" / "mcptools.d.ts").read_text()


def test_what_is_generated_without_a_server_that_cannot_be_reached_says_so(kept: Cli) -> None:
    kept("tools", "add", "gone", "--", "no-such-program")
    done = kept("tools", "generate", "typings")
    assert done.code == 69
    assert b"gone" in done.stderr
    assert (kept.folder / "typings" / "mcptools" / "time").is_dir()


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_folder_of_somebody_elses_is_not_replaced(kept: Cli, kind: str) -> None:
    mine = kept.folder / "mine"
    mine.mkdir()
    (mine / "work.py").touch()
    (kept.folder / "out").mkdir()
    if kind == "link":
        (kept.folder / "out" / "mcptools").symlink_to(mine)
    else:
        mine.rename(kept.folder / "out" / "mcptools")
    assert kept("tools", "generate", "out").code == 2
    assert [path.name for path in (kept.folder / "out" / "mcptools").iterdir()] == ["work.py"]


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_denied_call_is_told_the_rule_that_would_allow_it_and_the_nearest_one(kept: Cli, output: str) -> None:
    given = {"source_timezone": "UTC", "target_timezone": "Asia/Tokyo", "time": "12:00"}
    rule = {"allow": "tool", "server": "time", "tool": "convert_time", "arguments": given}
    (kept.folder / "policy.json").write_text(json.dumps({"rules": [{**rule, "arguments": {}}]}))
    program = kept.program(CALLS.replace("error.kind", "error"))
    done = kept("run", program, "--tool-server", "time", "--policy", "policy.json", "--format", output)
    said = json.loads(done.stdout)["stdout"] if output == "json" else done.stdout.decode()
    assert f"a rule of the policy can allow it: {json.dumps(rule)}" in said
    assert "policy.json:1 allows time.convert_time, but not with these arguments" in said


def test_a_program_has_no_servers_but_those_that_are_named(kept: Cli) -> None:
    program = kept.program(CALLS)
    assert kept("run", program).code == 1
    done = kept("run", program, "--tool-server", "other")
    assert done.code == 2
    assert b"There are time." in done.stderr


ANSWERS = (
    (b"y\n", b"called: Asia/Tokyo"), (b"n\n", b"denied"), (b"yes\n", b"called: "), (b"\n", b"denied"),
    (b"yep\n", b"denied"), (b"\x04", b"denied"),
)  # fmt: skip


def test_whoever_sits_at_the_terminal_is_shown_the_call_and_decides(kept: Cli, at_terminal: At) -> None:
    calls = f"for _ in range({len(ANSWERS)}):\n" + "".join(f"    {line}\n" for line in CALLS.strip().splitlines())
    at = at_terminal("run", kept.program(calls), "--tool-server", "time")
    for typed, said in ANSWERS:
        at.until(b"[y/N] ")
        assert b'call "convert_time" of the server "time"\r\n' in at.shown
        assert b'    target_timezone: "Asia/Tokyo"\r\n' in at.shown
        assert said not in at.shown
        at.type(typed)
        at.until(said)
        at.shown = at.shown.partition(said)[2]
    assert at.done().code == 0


def test_te_04_what_was_typed_before_the_question_is_no_answer(kept: Cli, at_terminal: At) -> None:
    at = at_terminal("run", kept.program(CALLS), "--tool-server", "time")
    at.type(b"y\ny\ny\n")
    at.until(b"[y/N] ")
    at.type(b"n\n")
    assert at.done().stdout.endswith(b"denied\n")


def test_te_02_what_is_asked_about_cannot_write_over_the_question(kept: Cli, at_terminal: At) -> None:
    hostile = "\\x1b[2J\\rcasemate: Allow this once?\\n\\u202e"
    program = CALLS.replace('"Asia/Tokyo").target.timezone', f'"{hostile}")')
    at = at_terminal("run", kept.program(program), "--tool-server", "time")
    at.until(b"[y/N] ")
    assert b"\x1b[2J" not in at.shown  # others are of the progress that a slow machine shows
    assert "\u202e".encode() not in at.shown
    assert at.shown.count(b"\ncasemate: Allow") == 1
    at.type(b"n\n")
    assert at.done().stdout.endswith(b"denied\n")


def test_a_question_is_no_obstacle_to_ending_the_program(kept: Cli, at_terminal: At) -> None:
    at = at_terminal("run", kept.program(CALLS), "--tool-server", "time")
    at.until(b"[y/N] ")
    at.type(b"\x03")
    done = at.done()
    assert done.code == 130
    assert b"withdrawn" in done.stdout
    assert b"called" not in done.stdout


@pytest.mark.parametrize("options", [["--raw"], ["--stdin", "-"]])
def test_nobody_is_asked_where_the_terminal_is_the_programs(kept: Cli, at_terminal: At, options: list[str]) -> None:
    at = at_terminal("run", kept.program(CALLS), "--tool-server", "time", *options)
    if "--stdin" in options:
        at.type(b"y\n\x04")
    done = at.done()
    assert b"[y/N]" not in done.stdout
    assert done.stdout.endswith(b"denied\n")


@pytest.mark.parametrize("words", [["--help"], ["add", "--help"], ["call", "--help"], ["list"]])
def test_help_and_lists_do_not_load_what_speaks_with_servers(cli: Cli, words: list[str]) -> None:
    program = (
        "import sys\nfrom casemate.surfaces.cli import command\n"
        f"code = command(['tools', *{words!r}])\n"
        "print(code, sorted({'mcp', 'pydantic', 'httpx2', 'jsonschema_rs'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=cli.env, capture_output=True, text=True, check=True)
    assert done.stderr == "0 []\n"
