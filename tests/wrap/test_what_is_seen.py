"""What a wrapped command sees, changes and reaches: its folder, without what is hidden there, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract import witness
from tests.support.walls import skip_without
from tests.wrap.conftest import WITHIN, Wrap, line_of

import casemate

Starting = Callable[..., "subprocess.Popen[bytes]"]
SECRET = b"hidden-value"


def settings(wrap: Wrap, **keys: object) -> str:
    """A settings file with srt's keys, beside the folder."""
    file = wrap.folder.parent / "settings.json"
    file.write_text(json.dumps(keys))
    return str(file)


def test_the_folder_is_at_its_own_path_and_what_is_written_there_is_there_at_once(
    wrap: Wrap, started: Starting
) -> None:
    process = started("--", "bash", "-c", "pwd; echo new > made; echo written; read line")
    assert line_of(process).decode().strip() == str(wrap.folder)
    assert line_of(process) == b"written\n"
    assert (wrap.folder / "made").read_text() == "new\n"
    assert (wrap.folder / "made").stat().st_uid == os.getuid()


@pytest.mark.parametrize("place", [".env", "sub/.env", "/workspace/.env", "link", "../project/.env"])
def test_an_env_file_cannot_be_read_by_any_way(wrap: Wrap, place: str) -> None:
    (wrap.folder / "link").symlink_to("sub/.env")
    done = wrap.shell(f"cat {place}; chmod 600 {place}; cat {place}; cp {place} x; cat x")
    assert SECRET not in done.stdout
    assert b"Permission denied" in done.stderr


@pytest.mark.parametrize("way", [
    "mv .env x; cat x", "ln .env x; cat x", "rm -f .env; cat .env", "mv sub other; cat other/.env", "echo > .env",
    "cp -a sub x; cat x/.env", "tar c . | grep -a hidden-value", "mount -t tmpfs t sub; umount .env; cat .env",
    "cat /proc/1/root$PWD/.env", "unshare -Urm sh -c 'umount .env; cat .env'",
    "python3 -c 'print(open(\".env\").read())'",
])  # fmt: skip
def test_an_env_file_stays_hidden_and_as_it_is(wrap: Wrap, way: str) -> None:
    done = wrap.shell(way)
    assert SECRET not in done.stdout
    assert (wrap.folder / ".env").read_bytes() == b"TOKEN=hidden-value\n"


def test_a_command_ends_when_what_is_hidden_from_it_is_replaced(wrap: Wrap, started: Starting) -> None:
    process = started("--", "bash", "-c", "echo ready; exec sleep 60")
    assert process.stderr
    assert line_of(process) == b"ready\n"
    (wrap.folder / "new").write_text("TOKEN=other")
    (wrap.folder / "new").rename(wrap.folder / "sub" / ".env")  # as an editor saves it
    assert process.wait(WITHIN) == 137
    assert b"sub/.env was replaced" in process.stderr.read()


def test_a_link_named_env_hides_what_it_leads_to_in_the_folder(wrap: Wrap) -> None:
    (wrap.folder / "other").write_text("TOKEN=hidden-value")
    (wrap.folder / "sub" / ".env").unlink()
    (wrap.folder / "sub" / ".env").symlink_to("../other")
    assert wrap.shell("cat other sub/.env").stdout == b""


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "/usr/x", "/x", "../home/x", ".git/hooks/pre-commit"])
def test_nothing_is_written_elsewhere_or_where_tools_act_on_it(wrap: Wrap, path: str) -> None:
    done = wrap.shell(f"echo x > {path} && echo done; mv .git git; mkdir -p .git/hooks; echo x > .git/hooks/y")
    assert done.stdout == b"" or path == "../outside"  # in the tests that is in /tmp, of which a cell has its own
    assert not (wrap.folder.parent / "outside").exists()
    assert list((wrap.folder / ".git" / "hooks").iterdir()) == []
    assert not (wrap.folder / "git").exists()


@pytest.mark.full
def test_what_tools_act_on_and_was_not_there_before_is_told(wrap: Wrap) -> None:
    done = wrap.shell("mkdir .vscode; echo {} > .vscode/tasks.json; echo x > plain")
    assert b"with names that tools act on by themselves: .vscode;" in done.stderr
    assert b"plain" not in done.stderr
    assert _new_names(wrap) == [".vscode"]


@pytest.mark.full
def test_what_appeared_is_on_record_also_of_a_command_that_had_to_be_ended_by_force(
    wrap: Wrap, started: Starting
) -> None:
    process = started("--", "bash", "-c", "mkdir .vscode; trap '' TERM; echo ready; while :; do sleep 1; done")
    assert line_of(process) == b"ready\n"
    for supervisor in witness.supervisors(process.pid):
        os.kill(supervisor, signal.SIGKILL)
    assert process.wait(WITHIN)
    assert _new_names(wrap) == [".vscode"]


def _new_names(wrap: Wrap) -> object:
    rows = subprocess.run(
        [sys.executable, "-m", "casemate", "audit", "--format", "json"], env=wrap.env, capture_output=True, check=True
    )
    [outcome] = [one["detail"] for one in json.loads(rows.stdout) if one["kind"] == "outcome"]
    return outcome["new_names"]


def test_the_home_folder_and_other_folders_are_not_there(wrap: Wrap) -> None:
    (wrap.folder.parent / "home" / "key").write_text("TOKEN=hidden-value")
    (wrap.folder.parent / "beside").mkdir()
    done = wrap.shell('ls -A "$HOME" ..; cat ../home/key; env')
    assert done.stdout.startswith(b"..:\nproject\n\n/home/user:\n")
    assert SECRET not in done.stdout
    assert b"XDG_STATE_HOME" not in done.stdout


def test_what_may_be_read_appears_where_it_lies_and_in_the_home_folder(wrap: Wrap) -> None:
    shown = wrap.folder.parent / "home" / "data"
    shown.mkdir()
    (shown / "file").write_text("seen\n")
    (shown / ".env").write_text("TOKEN=hidden-value")
    done = wrap.shell(
        f"cat {shown}/file ~/data/file {shown}/.env ~/data/.env; echo x > ~/data/file", "--read", str(shown)
    )
    assert done.stdout == b"seen\nseen\n"
    assert (shown / "file").read_text() == "seen\n"


def environment(folder: Path, marker: str) -> Path:
    """One of Python's with 450 packages, each of which has a name that is kept."""
    (folder / marker).parent.mkdir(parents=True)
    (folder / marker).write_text("")
    for number in range(450):
        (folder / f"lib/p{number}/__pycache__").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("marker", ["pyvenv.cfg", "conda-meta/history"])
def test_an_environment_with_many_packages_is_one_name(wrap: Wrap, marker: str) -> None:
    environment(wrap.folder / "env", marker)
    done = wrap.shell("echo x >file; echo x >env/lib/p7/m.py; cat env/lib/../pyvenv.cfg sub/.env; true")
    assert (done.returncode, (wrap.folder / "file").read_text()) == (0, "x\n")
    assert not (wrap.folder / "env/lib/p7/m.py").exists()
    assert b"hidden-value" not in done.stdout


def test_of_a_folder_that_is_only_read_what_is_hidden_counts_alone(wrap: Wrap, tmp_path: Path) -> None:
    folder = environment(tmp_path / "venv", "pyvenv.cfg")
    done = wrap("--read", str(folder), "--", "ls", str(folder))
    assert (done.returncode, done.stdout.split()) == (0, [b"lib", b"pyvenv.cfg"])
    for number in range(401):
        (folder / f"lib/p{number}/.env").touch()
    refused = wrap("--read", str(folder), "--", "true")
    assert b"401 names" in refused.stderr
    assert b"--read" in refused.stderr.splitlines()[0]
    assert b"--workspace" not in refused.stderr


def test_what_is_written_to_a_copy_is_gone_with_the_command(wrap: Wrap) -> None:
    cache = wrap.folder.parent / "home" / "cache"
    cache.mkdir()
    (cache / "file").write_text("old\n")
    done = wrap.shell("echo new > ~/cache/file; cat ~/cache/file; rm ~/cache/file", "--copy", str(cache))
    assert done.stdout == b"new\n"
    assert [(one.name, one.read_text()) for one in cache.iterdir()] == [("file", "old\n")]


def test_in_an_overlay_what_was_written_is_there_when_it_has_ended(wrap: Wrap, started: Starting) -> None:
    process = started("--mode", "overlay", "--", "bash", "-c", "cat .env; echo new > made; echo written; read line")
    assert process.stdin
    assert line_of(process) == b"written\n"
    assert not (wrap.folder / "made").exists()
    process.stdin.close()
    assert process.wait(WITHIN) == 1
    assert (wrap.folder / "made").read_text() == "new\n"


def test_settings_of_srt_hold_path_by_path(wrap: Wrap) -> None:
    shown = wrap.folder.parent / "shown"
    (shown / "private").mkdir(parents=True)
    (shown / "file").write_text("seen\n")
    (shown / "private" / "key").write_text("TOKEN=hidden-value")
    (wrap.folder / "a.pem").write_text("TOKEN=hidden-value")
    file = settings(wrap, filesystem={
        "allowWrite": [str(wrap.folder)], "denyWrite": [str(wrap.folder / "notes.txt")],
        "allowRead": [str(shown)], "denyRead": [str(shown / "private"), f"{wrap.folder}/**/*.pem"],
    }, network={"allowedDomains": []})  # fmt: skip
    text = f"cat {shown}/file {shown}/private/key a.pem sub/.env; ls {shown}/private; echo x > notes.txt; echo x > new"
    done = wrap.shell(text, "--settings", file)
    assert done.stdout == b"seen\n"
    assert (wrap.folder / "notes.txt").read_text() == "notes\n"
    assert (wrap.folder / "new").read_text() == "x\n"


@pytest.mark.full
def test_what_an_interpreter_needs_cannot_be_hidden_from_its_program(wrap: Wrap) -> None:
    environment = wrap.folder.parent / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (environment / "lib" / "key.pem").write_text("TOKEN=hidden-value")
    file = settings(wrap, filesystem={"denyRead": [f"{environment}/**/*.pem"]})
    done = wrap("--settings", file, "--", f"{environment}/bin/python", "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (2, b"")
    assert wrap("--", f"{environment}/bin/python", "-c", "print('ran')").stdout == b"ran\n"


@pytest.fixture(params=["native", pytest.param("landlock", marks=pytest.mark.full)])
def isolation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The wall that holds the command."""
    skip_without(str(request.param), tmp_path_factory)
    return str(request.param)


def test_what_may_not_be_written_is_not_though_it_is_made_moved_or_replaced(wrap: Wrap, isolation: str) -> None:
    for name in ("g/s.txt", "secrets/key"):
        (wrap.folder / name).parent.mkdir()
        (wrap.folder / name).write_text("mine\n")
    file = settings(wrap, filesystem={"allowWrite": ["."], "denyWrite": ["g/*.txt", "secrets/"]})
    options = ("--settings", file, "--mode", "overlay", "--isolation", isolation)
    done = wrap.shell(
        "echo M > g/s.txt; echo M > g/new.txt; rm -rf secrets; mkdir secrets; echo M > secrets/other;"
        "echo M > fine; mv g h || mv h g; rm -rf g; ln -sT h g; mkdir h; echo M > h/s.txt",
        *options,
    )
    assert done.returncode == 0
    kept = {
        str(path.relative_to(wrap.folder)) for place in ("g", "secrets") for path in (wrap.folder / place).iterdir()
    }
    assert kept == {"g/s.txt", "secrets/key"}
    assert (wrap.folder / "g" / "s.txt").read_text() == (wrap.folder / "secrets" / "key").read_text() == "mine\n"
    assert (wrap.folder / "fine").read_text() == "M\n"
    assert isolation == "native" or b"denyWrite" in done.stderr  # there the command's own call fails


def test_a_wall_that_writes_no_folder_through_names_the_mode_that_it_has(wrap: Wrap, isolation: str) -> None:
    done = wrap.shell("true", "--isolation", isolation, "--workspace", ".")
    assert isolation == "native" or b"wrap --mode overlay" in done.stderr


@pytest.mark.parametrize("mode", ["overlay", "direct"])
@pytest.mark.parametrize("listed", [(), ("sub",)])
def test_a_command_writes_in_the_folders_that_are_listed_alone(
    wrap: Wrap, isolation: str, mode: str, listed: tuple[str, ...]
) -> None:
    if (isolation, mode) == ("landlock", "direct"):
        pytest.skip("no folder is written through there")
    before = {path.name for path in wrap.folder.iterdir()}
    file = settings(wrap, filesystem={"allowWrite": [*listed]})
    options = ("--settings", file, "--mode", mode, "--isolation", isolation, "--workspace", ".")
    text = "echo x > new; echo x > notes.txt; echo x > sub/new; echo x > $TMPDIR/own && cat $TMPDIR/own"
    done = wrap.shell(text, *options)
    assert done.stdout == b"x\n"
    assert {path.name for path in wrap.folder.iterdir()} == before
    assert (wrap.folder / "notes.txt").read_text() == "notes\n"
    assert (wrap.folder / "sub" / "new").exists() == bool(listed)
    assert isolation == "native" or b"left out: new: the policy lets nothing be written there" in done.stderr


@pytest.mark.parametrize("mode", ["overlay", "direct"])
def test_what_a_protected_link_leads_to_is_not_written(wrap: Wrap, mode: str) -> None:
    (wrap.folder / "scripts").mkdir()
    (wrap.folder / "scripts" / "pre-commit").write_text("mine\n")
    (wrap.folder / ".git" / "hooks" / "pre-commit").symlink_to("../../scripts/pre-commit")
    (wrap.folder / ".vscode").symlink_to("tools")
    (wrap.folder / "tools").mkdir()
    wrap.shell(
        "echo M > scripts/pre-commit; echo M > tools/tasks.json; mv scripts s; mkdir scripts;"
        "echo M > scripts/pre-commit; rm .vscode; mkdir .vscode; echo M > .vscode/tasks.json",
        "--mode", mode,
    )  # fmt: skip
    assert (wrap.folder / ".git" / "hooks" / "pre-commit").read_text() == "mine\n"
    assert list((wrap.folder / ".vscode").iterdir()) == []


def test_a_file_that_names_no_folder_to_write_in_lets_nothing_be_written(wrap: Wrap) -> None:
    done = wrap.shell("echo x > new; cat notes.txt", "--settings", settings(wrap, filesystem={"denyRead": []}))
    assert done.stdout == b"notes\n"
    assert not (wrap.folder / "new").exists()
    assert b"allowWrite names no folder" in done.stderr


@pytest.mark.parametrize("keys", [
    {"filesystem": {"allowWrite": ["/"]}}, {"filesystem": {"allowExecute": []}}, {"network": {"httpProxyPort": 1}},
    {"filesystem": {"allowRead": ["/nowhere/at/all"]}}, {"filesystem": {"allowRead": ["/*/x"]}},
])  # fmt: skip
def test_a_key_that_cannot_be_honoured_is_an_error_and_nothing_runs(wrap: Wrap, keys: dict[str, object]) -> None:
    done = wrap.shell("echo ran", "--settings", settings(wrap, **keys))
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize(
    "options", [("--workspace", "/"), ("--workspace", "/usr"), ("--read", "/"), ("--read", "/proc")]
)
def test_a_folder_that_would_show_too_much_is_refused(wrap: Wrap, options: tuple[str, str]) -> None:
    done = wrap.shell("echo ran", *options)
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.fixture
def service() -> Iterator[int]:
    """A service of this machine's own loopback; its port. It says hello and no more."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"hello\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(WITHIN)


def test_a_cell_that_cannot_be_made_is_an_error_in_words(wrap: Wrap) -> None:
    program = wrap.folder.parent / "program"
    program.write_text("#!/usr/bin/env no-such-interpreter\n")
    program.chmod(0o755)
    done = wrap("--", "../program")
    assert done.returncode == 2
    assert done.stderr.startswith(b"casemate: COMMAND:")
    program.write_bytes(b"\x7fELF of no machine")
    done = wrap("--", "../program")
    assert done.returncode == 2
    assert done.stderr.startswith(b"casemate: COMMAND:")
    assert b"Traceback" not in done.stderr


def test_there_is_no_network_unless_it_is_allowed(wrap: Wrap, service: int) -> None:
    policy = wrap.folder.parent / "policy.json"
    policy.write_text(json.dumps({"allow_local": [service]}))
    ask = f"timeout 50 cat < /dev/tcp/%s/{service}"
    named = ask % "host.casemate.internal"
    assert wrap.shell(named).stdout == b""
    assert wrap.shell(ask % "127.0.0.1", "--policy", str(policy)).stdout == b""
    assert wrap.shell(named, "--policy", str(policy)).stdout == b"hello\n"


def test_a_name_that_is_not_allowed_is_refused_and_that_is_told(wrap: Wrap) -> None:
    done = wrap.shell("getent hosts other.test || echo refused", "--allow", "some.test")
    assert done.stdout == b"refused\n"


@pytest.mark.full
def test_a_secret_that_the_egress_proxy_puts_in_is_a_placeholder_inside(wrap: Wrap) -> None:
    given = {
        **wrap.env,
        "CASEMATE_SECRET_DEFAULT_TOKEN": "very-secret-value",
        "CASEMATE_INJECT_DEFAULT_TOKEN": '{"hosts": ["api.good.test"]}',
    }
    script = 'echo "${#TOKEN}"; test "$TOKEN" != very-secret-value -a -f "$SSL_CERT_FILE" && echo trusts'
    done = Wrap(wrap.folder, given).shell(script, "--secret", "TOKEN", "--allow", "api.good.test")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= 17
    assert done.stdout.split()[1] == b"trusts"


def test_variables_and_secrets_are_given_by_name_and_a_secret_does_not_come_out(wrap: Wrap) -> None:
    given = {**wrap.env, "GIVEN": "yes", "OTHER": "no", "CASEMATE_SECRET_DEFAULT_TOKEN": "very-secret-value"}
    done = Wrap(wrap.folder, given).shell(
        'echo $GIVEN$OTHER; echo "${#TOKEN} $TOKEN"', "-e", "GIVEN", "--secret", "TOKEN"
    )
    assert done.stdout.splitlines()[0] == b"yes"
    assert done.stdout.splitlines()[1].startswith(b"17 ")
    assert b"very-secret-value" not in done.stdout


def test_each_command_is_on_record_before_and_after(wrap: Wrap) -> None:
    wrap.shell("exit 3")
    import sqlite3

    (file,) = Path(wrap.env["XDG_STATE_HOME"]).rglob("*.db")
    rows = [str(row) for row in sqlite3.connect(file).execute("select * from record order by 1")]
    assert len(rows) == 2
    assert "bash" in rows[0]
    assert "exit 3" in rows[0]
    assert "exit_code" in rows[1]


def test_the_plan_is_printed_and_nothing_runs(wrap: Wrap) -> None:
    done = wrap.shell("touch ran", "--explain")
    assert done.returncode == 0
    assert b"no time limit" in done.stdout
    assert b"/workspace/sub/.env" in done.stdout
    assert not (wrap.folder / "ran").exists()


def test_a_folder_can_be_worked_in_from_one_of_its_own(wrap: Wrap) -> None:
    done = Wrap(wrap.folder / "sub", wrap.env).shell("pwd; ls ..", "--workspace", "..")
    assert done.stdout == f"{wrap.folder}/sub\nnotes.txt\nsub\n".encode()


def test_variables_with_a_prefix_are_the_commands_and_not_casemates(wrap: Wrap, tmp_path: Path) -> None:
    names = {"HOME": str(tmp_path / "theirs"), "XDG_STATE_HOME": str(tmp_path / "theirs"), "GIVEN": "given"}
    other = replace(wrap, env={**wrap.env, "OTHER": "x", **{f"_A_{name}": value for name, value in names.items()}})
    shown = other.shell('echo "$HOME $XDG_STATE_HOME $GIVEN$OTHER$_A_GIVEN"', "--env-prefix", "_A_")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.decode().split() == [names["HOME"], names["XDG_STATE_HOME"], "given"]
    assert not (tmp_path / "theirs").exists()
    assert (tmp_path / "state").exists()


def test_casemate_in_a_cell_says_that_it_is_in_one(wrap: Wrap) -> None:
    source = Path(casemate.__file__).parents[1]
    done = wrap("--read", str(source), "--", sys.executable, "-m", "casemate", "run", "-", stdin=b"print(1)")
    assert (done.returncode, b"This process already runs in a cell" in done.stderr) == (69, True), done.stderr
