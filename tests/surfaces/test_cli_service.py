"""Commands over the service, as processes of their own: sessions, runs, files, approvals and records."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.surfaces.conftest import At, Cli, Done

from casemate.surfaces.cli import ALIASES, COMMANDS
from casemate.surfaces.cli.answers import print_table

ASKS = """
import urllib.request
print("before", flush=True)
try:
    urllib.request.urlopen("http://ask.test/", timeout=60)
except OSError as error:
    print("not reached")
print("after")
"""
LONG = 'import time\nprint("begun", flush=True)\ntime.sleep(600)'


@pytest.fixture
def served(in_process: Cli) -> Iterator[Cli]:
    """The command, whose service ends with the test."""
    yield in_process
    in_process("service", "stop")


_HOW_LONG = b"casemate: it ends after 3600 s at the latest; --timeout gives it another limit\n"


def handle(done: Done) -> str:
    """What a command has printed: one handle."""
    assert done.code == 0, done
    assert done.stderr in (b"", _HOW_LONG), done
    return done.stdout.decode().strip()


def test_what_an_earlier_step_left_running_is_in_the_document_of_a_step(served: Cli) -> None:
    session = handle(served("sessions", "open"))
    start = "from concurrent.futures import ThreadPoolExecutor as P; pool = P(1); pool.submit(int).result()"
    assert served("exec", session, start).code == 0
    done = served("exec", session, "pool.submit(print, 'job').result(); print('end')", "--format", "json")
    document = json.loads(done.stdout)
    execution = document.get("execution", document)
    assert (execution["stdout"], execution["background"]) == ("end\n", "job")


def test_a_session_keeps_its_state_from_one_command_to_the_next(served: Cli) -> None:
    opened = handle(served("sessions", "open", "analysis"))
    assert served("exec", "analysis", "x = 20").code == 0
    assert served("exec", opened, "x + 1").stdout == b"21\n"
    done = served("exec", "analysis", "import sys; print('problem', file=sys.stderr); sys.exit(3)")
    assert (done.code, done.stderr) == (3, b"problem\n")
    assert served("sessions", "list").stdout.decode().split("\t")[:4] == [opened, "analysis", "python", "3"]
    assert served("session", "close", "analysis").code == 0
    done = served("exec", "analysis", "x")
    assert done.code == 2
    assert b"there is no session 'analysis'" in done.stderr


def test_a_step_that_cannot_be_interrupted_says_which_names_its_session_lost(shared: Cli) -> None:
    session = handle(shared("sessions", "open"))
    assert shared("exec", session, "kept = 1").code == 0
    done = shared("exec", session, "--timeout", "1", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    assert done.code == 124
    assert b"casemate: the session lost its state: kept\n" in done.stderr


@pytest.mark.parametrize(
    ("language", "program", "said"),
    [("python", "print('first')\n1 / 0", b"ZeroDivisionError"), ("node", "null.x", b"TypeError")],
)
def test_an_error_of_a_step_is_shown_once_with_its_traceback(
    shared: Cli, language: str, program: str, said: bytes
) -> None:
    shared("sessions", "open", language, "--language", language)
    done = shared("exec", language, program)
    assert done.code == 1
    assert said in done.stderr
    assert shared("exec", "-", "--language", language, program).stderr.count(said + b": ") == 1


def test_a_picture_that_was_shown_is_spoken_of(shared: Cli) -> None:
    shows = "from IPython.display import display\ndisplay({'image/png': 'AAAA', 'text/plain': 'a plot'}, raw=True)"
    assert b"displayed but not saved: 1 picture;" in shared("exec", "new", shows).stderr


def test_a_fresh_cell_and_a_new_session_are_had_by_one_command(shared: Cli) -> None:
    turn = ("--priority", "low", "--start-within", "100")
    assert shared("exec", "-", "--language", "shell", *turn, "echo $((6 * 7))").stdout == b"42\n"
    done = shared("exec", "new", "--env", "NAME=value", stdin=b"import os; y = os.environ['NAME']; y")
    assert done.stdout == b"'value'\n"
    session = done.stderr.decode().removeprefix("casemate: session ").strip()
    assert shared("exec", session, "y").stdout == b"'value'\n"


def test_a_run_goes_on_alone_and_is_followed_from_its_beginning(served: Cli) -> None:
    run = handle(
        served(
            "exec", "-", "--detach", "import time\nprint('begun', flush=True)\ntime.sleep(1)\nprint('done'); exit(5)"
        )
    )
    assert served("ps").stdout.startswith(run.encode() + b"\t")
    for command in ("attach", "wait"):
        done = served(command, run)
        assert done.code == 5
        assert done.stdout == (b"begun\ndone\n" if command == "attach" else b"")
        assert json.loads(served(command, run, "--format", "json").stdout)["execution"]["exit_code"] == 5
    assert served("logs", run).stdout == b"begun\ndone\n"
    assert served("ps").stdout == b""
    assert served("ps", "--all").stdout.split(b"\t")[3] == b"failed"


def test_ctrl_c_interrupts_a_step_and_its_session_goes_on(served: Cli) -> None:
    served("sessions", "open", "s")
    served("exec", "s", "x = 1")
    going = served.start("exec", "s", LONG)
    assert going.stdout is not None
    assert going.stdout.readline() == b"begun\n"
    going.send_signal(signal.SIGINT)
    _, stderr = going.communicate(timeout=60)
    assert going.returncode == 130, stderr
    assert served("exec", "s", "x").stdout == b"1\n"


@pytest.mark.parametrize("command", ["attach", "logs", "wait", "kill", "artifacts"])
def test_a_run_that_is_not_there_is_told_with_what_lists_those_that_are(shared: Cli, command: str) -> None:
    done = shared(command, "nothing")
    assert (done.code, done.stdout) == (2, b"")
    first, second = done.stderr.decode().splitlines()
    assert first == "casemate: RUN: there is no run 'nothing', or it is no longer kept"
    assert "`casemate ps --all` the runs" in second


def test_whoever_stops_reading_ends_what_prints_and_a_step_but_no_run_that_goes_on_alone(served: Cli) -> None:
    endless = "while True: print('line' * 100)"
    served("sessions", "open", "s")
    alone = handle(served("exec", "-", "--detach", endless))
    for words in (("attach", alone), ("logs", "--follow", alone), ("exec", "s", endless)):
        going = served.start(*words)
        assert going.stdout is not None
        assert going.stdout.readline().startswith(b"line")
        going.stdout.close()
        assert going.wait(60) == 141, words
        assert going.stderr is not None
        assert going.stderr.read() == b""
        going.stderr.close()
    assert served("exec", "s", "1").stdout == b"1\n"
    served("kill", alone)


def test_a_run_that_is_left_alone_has_the_time_that_it_was_given(served: Cli) -> None:
    done = served("exec", "-", "--detach", "--timeout", "1", "while True: pass")
    assert b"it ends after 1 s at the latest" in done.stderr
    assert served("wait", done.stdout.decode().strip()).code == 124
    assert served("exec", "-", "--detach", "1").stderr == _HOW_LONG


def test_ctrl_c_leaves_a_run_alone_that_was_attached_to_and_kill_ends_it(served: Cli) -> None:
    run = handle(served("exec", "-", "--detach", LONG))
    going = served.start("attach", run)
    assert going.stdout is not None
    assert going.stdout.readline() == b"begun\n"
    going.send_signal(signal.SIGINT)
    _, stderr = going.communicate(timeout=60)
    assert going.returncode == 130
    assert b"the run continues" in stderr
    assert b"running" in served("ps").stdout
    done = served("kill", run)
    assert done.stdout == f"{run}\tcancelled\n".encode()
    assert served("wait", run).code == 130


def test_files_are_copied_in_and_out_and_are_what_their_hashes_say(served: Cli) -> None:
    data = bytes(range(256)) * 4096
    (served.folder / "data.bin").write_bytes(data)
    served("sessions", "open", "--name", "s")
    assert json.loads(served("inspect", "s", "--format", "json").stdout)["name"] == "s"
    assert served("cp", "data.bin", "s:in/data.bin").code == 0
    assert served("cp", "data.bin", "s:").code == 0
    assert served("exec", "s", "import os; os.path.getsize('data.bin')").stdout == f"{len(data)}\n".encode()
    served("exec", "s", "open('back.bin', 'wb').write(open('in/data.bin', 'rb').read()[::-1])")
    assert served("cp", "s:back.bin", ".").code == 0
    assert (served.folder / "back.bin").read_bytes() == data[::-1]
    run = handle(served("exec", "-", "--detach", "open('left.txt', 'w').write('what is left')"))
    assert b"casemate: left 1 file: left.txt; " in served("wait", run).stderr
    name, size, _, sha256 = served("artifacts", run, "--save", "out").stdout.decode().strip().split("\t")
    assert (name, size, sha256) == ("left.txt", "12", hashlib.sha256(b"what is left").hexdigest())
    assert served("verify", "out/left.txt", sha256).code == 0
    (served.folder / "out" / "left.txt").write_bytes(b"what is lefd")
    done = served("verify", "out/left.txt", sha256)
    assert done.code == 1
    assert b"DIFFERS" in done.stdout


def test_a_file_is_not_verified_as_one_of_a_folder_that_is_called_artifacts(served: Cli) -> None:
    code = "import os; os.makedirs('x/artifacts'); open('x/artifacts/report.csv', 'w').write('1,2')"
    run = handle(served("exec", "-", "--detach", code))
    served("wait", run)
    served("artifacts", run, "--save", "out")
    (served.folder / "report.csv").write_bytes(b"1,2")
    for bundle in ("run.zip", "run.json"):
        assert served("evidence", run, "-o", bundle).code == 0
        assert served("verify", "out/x/artifacts/report.csv", "--bundle", bundle).code == 0
        done = served("verify", "report.csv", "--bundle", bundle)
        assert (done.code, b"its content is signed as" in done.stderr) == (1, True), done


def test_evidence_is_written_and_verified_by_the_public_key_alone(served: Cli) -> None:
    served("sessions", "open", "s")
    run = handle(served("exec", "s", "--detach", "open('output/left.txt', 'w').write('what is left')"))
    served("wait", run)
    served("artifacts", run, "--save", "saved")
    (served.folder / "saved" / "output").rename(served.folder / "out")  # as casemate run --output out lays it
    assert served("evidence", "s", "-o", "session.zip").code == 0
    for name in ("run.zip", "run.json"):
        assert served("evidence", run, "-o", name).code == 0
    (served.folder / "key.pem").write_bytes(served("keys", "export").stdout)
    assert b"BEGIN PUBLIC KEY" in (served.folder / "key.pem").read_bytes()
    served("service", "stop")
    old, new = served("keys").stdout.split()[0], handle(served("keys", "rotate"))
    assert [line.split()[0].decode() for line in served("keys", "list").stdout.splitlines()] == [new, old.decode()]

    def verify(*words: str) -> tuple[int, bytes]:
        done = served("verify", *words)
        return done.code, done.stdout + done.stderr

    left = served.folder / "out" / "left.txt"
    for bundle in ("run.zip", "run.json", "session.zip"):
        assert verify("--bundle", bundle, "--key", "key.pem")[0] == 0
        code, said = verify("out/left.txt", "--bundle", bundle)
        assert (code, old in said, b"retired" in said) == (0, True, True)
        left.write_bytes(b"what is lefd")
        assert verify("out/left.txt", "--bundle", bundle)[0] == 1
        left.write_bytes(b"what is left")
        left.rename(served.folder / "out" / "other.txt")
        assert verify("out/other.txt", "--bundle", bundle)[0] == 1
        (served.folder / "out" / "other.txt").rename(left)
        assert verify("key.pem", "--bundle", bundle)[0] == 1
        data = (served.folder / bundle).read_bytes()
        (served.folder / "changed").write_bytes(data[:-200] + data[-100:])
        assert verify("--bundle", "changed")[0] == 1
    other = subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519"], capture_output=True, check=True).stdout
    public = subprocess.run(["openssl", "pkey", "-pubout"], input=other, capture_output=True, check=True).stdout
    (served.folder / "other.pem").write_bytes(public)
    code, said = verify("--bundle", "run.json", "--key", "other.pem")
    assert (code, b"no trusted key" in said) == (1, True)
    assert verify("--bundle", "out/left.txt")[0] == 1
    for option, words in (
        ("--key", "--bundle run.json --key none"),
        ("--bundle", "--bundle none"),
        ("FILE", "none " + "0" * 64),
    ):
        assert verify(*words.split()) == (
            2,
            f"casemate: {option}: cannot read 'none': No such file or directory\n".encode(),
        )
    assert verify("--bundle", "run.json", "--key", "run.json")[0] == 2
    assert verify("out/left.txt")[0] == 2


def test_values_are_set_got_and_copied_between_sessions_of_any_language(served: Cli) -> None:
    served("sessions", "open", "one")
    served("sessions", "open", "two", "--language", "node")
    assert served("bridge", "one", "given", '{"a": [1, 2]}').code == 0
    assert json.loads(served("sessions", "bridge", "given", "one", "two").stdout) == {"a": [1, 2]}
    assert served("exec", "two", "given.a[1]").stdout == b"2\n"
    assert json.loads(served("sessions", "get", "two", "given").stdout) == {"a": [1, 2]}
    assert b"given" in served("sessions", "variables", "two").stdout


def test_what_waits_for_an_approval_is_listed_shown_and_answered_from_another_command(served: Cli) -> None:
    going = served.start("exec", "-", ASKS)
    assert going.stdout is not None
    assert going.stderr is not None
    assert going.stdout.readline() == b"before\n"
    said = going.stderr.readline()
    assert b"casemate approvals show " in said
    request = said.split()[-1].decode()
    listed = served("approvals", "list").stdout.decode()
    assert listed.startswith(f"{request}\tegress\t")
    assert b"ask.test" in served("approvals", "show", request[:8]).stdout
    assert served("approvals", "deny", request[:8], "--reason", "not today").code == 0
    stdout, _ = going.communicate(timeout=60)
    assert stdout == b"not reached\nafter\n"
    assert going.returncode == 0
    assert served("approvals", "list").stdout == b""
    assert served("approvals", "deny", request).code == 2


def test_a_request_whose_asker_is_gone_says_so_and_so_does_the_answer_to_it(served: Cli) -> None:
    for host in ("ask.test", "other.test"):
        handle(served("exec", "-", "--detach", ASKS.replace("ask.test", host)))
    listed: list[dict[str, str]] = []
    while len(listed) < 2:
        listed = json.loads(served("approvals", "list", "--filter", "state=asked", "--format", "json").stdout)
    assert served("approvals", "list", "-q", "--filter", "state=withdrawn").stdout == b""
    assert served("service", "stop").code == 0
    rows = served("approvals", "list").stdout.decode().splitlines()
    assert [row.split("\t")[-1] for row in rows] == ["withdrawn"] * 2
    one, other = served("approvals", "list", "-q", "--filter", "state=withdrawn").stdout.decode().split()
    assert b"The requester is gone" in served("approvals", "show", one).stdout
    allowed, denied = served("approvals", "approve", one, "--format", "json"), served("approvals", "deny", other)
    assert json.loads(allowed.stdout) == [{"id": one, "decided": True, "state": "withdrawn"}]
    gone = "the requester is gone, because the service was stopped"
    assert f"casemate: {one}: {gone}; the same caller may do exactly the same once" in allowed.stderr.decode()
    assert denied.stderr.decode() == f"casemate: {other}: {gone}; it is no longer listed\n"
    assert (allowed.code, denied.code, served("approvals", "list").stdout) == (0, 0, b"")


def test_whoever_runs_a_step_at_a_terminal_is_asked_there(served: Cli, at_terminal: At) -> None:
    at = at_terminal("exec", "-", ASKS)
    at.until(b"[y/N] ")
    assert b"ask.test" in at.shown
    at.type(b"n\n")
    done = at.done()
    assert done.code == 0
    assert b"not reached" in done.stdout


def test_a_question_is_shown_to_whoever_attaches_while_it_waits_and_not_afterwards(served: Cli) -> None:
    run = handle(served("exec", "-", "--detach", ASKS))
    with served.start("attach", run) as going:
        assert going.stderr is not None
        assert going.stderr.readline().startswith(b"casemate: waits for an approval: ")
        served("approvals", "deny", *served("approvals", "list", "-q").stdout.decode().split())
        going.communicate(timeout=60)
    done = served("attach", run)
    assert (done.code, b"not reached" in done.stdout, b"waits for" in done.stderr) == (0, True, False)


def test_a_question_at_a_terminal_is_taken_back_when_somebody_else_answers(served: Cli, at_terminal: At) -> None:
    at = at_terminal("exec", "-", ASKS)
    at.until(b"[y/N] ")
    request = json.loads(served("approvals", "list", "--format", "json").stdout)[0]["id"]
    served("approvals", "deny", request)
    done = at.done()
    assert b"this question was answered elsewhere, or withdrawn" in done.stdout
    assert b"not reached" in done.stdout


def test_a_live_prompt_asks_about_whatever_comes(served: Cli, at_terminal: At) -> None:
    at = at_terminal("approvals", "watch")
    at.until(b"Ctrl-C ends it")
    run = handle(served("exec", "-", "--detach", ASKS))
    at.until(b"[y/N] ")
    at.type(b"n\n")
    assert served("wait", run).code == 0
    assert served("logs", run).stdout == b"before\nnot reached\nafter\n"
    at.type(b"\x03")
    assert at.done().code == 130


def test_what_a_cell_says_cannot_act_upon_the_terminal_that_shows_it(served: Cli, at_terminal: At) -> None:
    hostile = "print('\\x1b[2Jred\\u202e')"
    run = handle(served("exec", "-", "--detach", hostile))
    served("wait", run)
    for command in (("logs", run), ("attach", run)):
        shown = at_terminal(*command).done().stdout
        assert b"\\x1b[2Jred\\u202e" in shown
        assert b"\x1b" not in shown
    assert served("logs", run).stdout == "\x1b[2Jred\u202e\n".encode()


def test_a_table_shows_strangers_texts_without_obeying_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "value"), [{"name": "a\tb\n", "value": "\x1b[2J\u202e"}], "")
    assert capsys.readouterr().out == "a\\x09b\\x0a\t\\x1b[2J\\u202e\n"


def test_programs_get_json_and_nothing_else(served: Cli) -> None:
    served("sessions", "open", "s")
    served("exec", "s", "value = 1")
    for words in (
        *("sessions list", "ps --all", "approvals list", "audit", "stats", "queue status", "limits", "runtimes"),
        *("inspect s", "sessions variables s", "audit verify", "audit chart", "sessions set s b 2", "bridge s b 2"),
        *("sessions interrupt s", "sessions reset s"),
    ):
        done = served(*words.split(), "--format", "json")
        assert (done.code, done.stderr) == (0, b""), words
        json.loads(done.stdout)
        assert served(*words.split()).code == 0, words
    assert re.search(rb"memory total: +[\d.]+ .iB", served("stats").stdout)
    assert re.search(rb"^\d{4}-\d\d-\d\d .*\t\d ok\t.* .iB\t", served("audit", "chart").stdout, re.MULTILINE)


def test_the_record_is_exported_verified_against_a_copy_and_pruned(served: Cli, tmp_path: Path) -> None:
    served("exec", "-", "print(1)")
    rows = [json.loads(line) for line in served("audit", "export").stdout.splitlines()]
    assert [row["sequence"] for row in rows] == [*range(1, len(rows) + 1)]
    events = [json.loads(line) for line in served("audit", "export", "--format", "ocsf").stdout.splitlines()]
    assert {event["class_uid"] for event in events} >= {1007}
    last = str(rows[-2]["sequence"])
    assert len(served("audit", "export", "--after", last).stdout.splitlines()) == 1
    assert b"signed up to row" in served("audit", "verify", "--head", rows[0]["hash"]).stdout
    (tmp_path / "copy").write_text(f"{'x' * (5 << 20)}\nno anchor\n")
    done = served("audit", "verify", "--anchor", str(tmp_path / "copy"))  # of a long copy its end
    assert (done.code, b"line 1 of the anchors is not an anchor" in done.stdout) == (1, True)
    assert b"0 rows were dropped" in served("audit", "prune", "--max-size", "1GiB").stdout


def test_limits_are_changed_within_the_most_and_hold_for_what_is_run_next(served: Cli) -> None:
    assert served("limits", "--memory", "64MiB").code == 0
    assert served("exec", "-", "x = bytearray(300 << 20)").code != 0
    done = served("limits", "--memory", "64GiB", "--format", "json")
    assert done.code == 2
    assert b"beyond the most" in done.stderr
    assert json.loads(served("limits", "--memory", "128MiB", "--format", "json").stdout)["memory"] == 128 << 20
    reset = json.loads(served("limits", "--reset", "--processes", "16", "--format", "json").stdout)
    assert (reset["memory"], reset["processes"]) == (512 << 20, 16)
    assert served("limits", "--caller", "nobody").code == 2


def test_a_session_has_the_limits_that_it_is_opened_with(shared: Cli) -> None:
    words = ("--memory", "256MiB", "--processes", "20", "--disk", "64MiB", "--open-files", "100", "--timeout", "7")
    session = handle(shared("sessions", "open", *words, "--inodes", "500", "--full-output", "2MiB"))
    limits = json.loads(shared("inspect", session, "--format", "json").stdout)["limits"]
    assert (limits["memory"], limits["processes"], limits["disk"]) == (256 << 20, 20, 64 << 20)
    assert (limits["open_files"], limits["wall"], limits["inodes"]) == (100, 7.0, 500)
    assert limits["full_output"] == 2 << 20
    tells = "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[0]"
    assert shared("exec", session, tells).stdout == b"100\n"


def test_the_beginning_of_a_handle_is_enough_for_every_command(served: Cli) -> None:
    session = handle(served("sessions", "open"))
    assert served("exec", session[:8], "x = 20; x + 1").stdout == b"21\n"
    run = handle(served("exec", "-", "--detach", LONG))
    while served("logs", run[:8]).stdout != b"begun\n":
        pass
    assert served("kill", run[:8]).stdout == f"{run}\tcancelled\n".encode()
    assert served("wait", run[:8]).code == 130
    assert served("logs", run[:8]).stdout == b"begun\n"
    assert served("session", "kill", "--id", session[:8]).code == 0
    assert served("sessions", "list", "--quiet").stdout == b""
    runs = [served("exec", "-", "--detach", "1").stdout.decode().strip() for _ in range(3)]
    for one in runs:
        served("wait", one)
    assert served("ps", "-aq", "--limit", "2").stdout.decode().split() == runs[1:], "the newest, and the newest last"


def test_lists_are_filtered_and_give_handles_alone(served: Cli, at_terminal: At) -> None:
    node = handle(served("sessions", "open", "--language", "node"))
    python = handle(served("sessions", "open", "second"))
    assert served("sessions", "list", "-q", "--filter", "language=node").stdout.decode() == f"{node}\n"
    assert served("sessions", "list", "-q", "-f", "name=second", "-f", "language=node").stdout == b""
    served("exec", python, "1 / 0")
    failed = served("ps", "-q", "--filter", "status=failed").stdout.decode().strip()
    assert served("ps", "-q", "--filter", f"session={python[:6]}").stdout == b""
    assert served("ps", "-aq", "--filter", f"session={python[:6]}").stdout.decode().strip() == failed
    assert served("ps", "-a", "--filter", "namespace=another").stdout == b""
    shown = at_terminal("ps", "--all").done().stdout.decode()
    assert failed[:12] in shown
    assert failed not in shown
    for command in ("ps", "sessions", "approvals"):
        done = served(command, "--filter", "languag=node")
        assert (done.code, done.stdout) == (2, b"")
        assert done.stderr.startswith(b"casemate: --filter: there is no key 'languag'")
    assert b"did you mean 'language'?" in served("ps", "--filter", "languag=node").stderr
    assert served("ps", "--filter", "status").code == 2


def test_a_host_that_nobody_allows_is_refused_with_a_code_of_its_own(served: Cli) -> None:
    going = served.start("egress", "ask.test")
    pending: list[dict[str, str]] = []
    while not pending:
        pending = json.loads(served("approvals", "list", "--format", "json").stdout)
    served("approvals", "deny", pending[0]["id"])
    _, stderr = going.communicate(timeout=60)
    assert going.returncode == 77
    assert stderr in (b"", b"casemate: a request waits for an answer; in another terminal, run: casemate approvals\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("exec", "nosuch", "1"),
            "SESSION: there is no session 'nosuch', or it has ended\n`casemate sessions` lists the sessions, "
            "`casemate ps --all` the runs. `casemate sessions open NAME` opens a session.\n",
        ),
        (("inspect", "nosuch"), "SESSION: there is no session 'nosuch', or it has ended\n`casemate sessions` lists"),
        (
            ("sessions", "reset", "nosuch"),
            "SESSION: there is no session 'nosuch', or it has ended\n`casemate sessions`",
        ),
        (("ps", "--filter", "nosuch=1"), "--filter: there is no key 'nosuch'\nThere are: "),
        (("sessions", "open", "a", "b"), "too many arguments: b\nTry: casemate sessions open --help"),
        (("sessions", "opn"), "sessions has no command 'opn'; did you mean 'open'?\nCommands: open, close, "),
        (("approvals", "nosuch"), "approvals has no command 'nosuch'\nCommands: "),
        (("exec", "--bogus", "1"), "SESSION: --bogus is not an option of exec\n"),
        (("exec", "-", "--bogus=1"), "CODE: --bogus=1 is not an option of exec\n"),
        (("logs", "nosuch"), "RUN: there is no run 'nosuch'"),
        (("approvals", "approve"), "REQUEST: name one or more"),
        (("approvals", "deny", "zz"), "REQUEST: no pending request begins with 'zz'"),
        (("cp", "s:", "."), "SOURCE: 's:' has no path after its colon"),
        (("cp", "a", "b"), "SOURCE: neither names a session or run\nOne of the two must be SESSION:PATH"),
        (("cp", "nosuch:a", "."), "SOURCE: there is no session or run 'nosuch', or it has ended\n`casemate sessions`"),
        (("packages", "install"), "NAME: name one or more packages"),
        (("serve", "--transport", "http", "--port", "65536"), "--port: 65536 is not a port"),
        (("verify", "x", "abc"), "SHA256: 'abc' is not a SHA-256"),
        (("expose", "nosuch", "70000"), "PORT: "),
        (("kernel", "install", "--set", "nosuch=1"), "--set: 'nosuch=1' is not KEY=VALUE"),
        (("kernel", "install", "--set", "policy=/no/such.yaml"), "CASEMATE_POLICY: cannot read '/no/such.yaml'"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
def test_a_slip_is_told_by_the_name_that_the_help_has(shared: Cli, words: tuple[str, ...], said: str) -> None:
    done = shared(*words)
    assert done.code == 2
    assert done.stderr.decode().startswith(f"casemate: {said}")


def test_a_slip_with_a_session_is_told_once_and_by_the_name_that_the_help_has(shared: Cli) -> None:
    assert shared("sessions", "open", "s").code == 0
    for words, said in (
        (("exec", "s", "--memory", "1GiB", "1"), "--memory: is not for a step of this session"),
        (("sessions", "get", "s", "nope"), "NAME: there is no variable 'nope'\n"),
        (("cp", "-", "s:"), "SOURCE: is not a complete tar archive"),
    ):
        done = shared(*words, stdin=b"")
        assert (done.code, done.stderr.decode().startswith(f"casemate: {said}")) == (2, True), done


@pytest.mark.parametrize("words", [("ps",), ("sessions", "list"), ("approvals", "list")])
def test_an_unknown_key_of_a_filter_is_told_all_keys(shared: Cli, words: tuple[str, ...]) -> None:
    assert b", namespace.\n" in shared(*words, "--filter", "nosuch=1").stderr


@pytest.mark.parametrize("words", [(), ("ps",), ("sessions", "open")])
def test_help_of_a_command_may_be_asked_for_as_a_command(in_process: Cli, words: tuple[str, ...]) -> None:
    asked, told = in_process("help", *words), in_process(*words, "--help")
    assert (asked.code, asked.stdout, asked.stderr) == (0, told.stdout, told.stderr)


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [("good.py", "x = 1\n", 0), ("bad.py", "x = (\n", 1), ("bad.js", "let x = ;\n", 1), ("bad.sh", "if true\n", 1)],
)
def test_a_program_is_validated_without_running_it(in_process: Cli, name: str, text: str, code: int) -> None:
    done = in_process("validate", in_process.program(text, name))
    assert done.code == code, done
    assert (name.encode() in done.stdout) == bool(code)
    if not code:  # nothing is to be fixed, and what is redirected to a file is whole
        assert in_process("validate", name, "--fix").stdout == text.encode()
    assert json.loads(in_process("validate", name, "--format", "json").stdout)["valid"] is not bool(code)


def test_servers_of_tools_are_there_in_a_service_that_runs_and_in_one_that_is_started(served: Cli) -> None:
    server = (sys.executable, "-S", str(Path(__file__).with_name("time_server.py")))
    program = "from mcptools import time, search\nprint(search('convert time', detail='names'))"
    served("sessions", "open", "s")
    assert served("tools", "add", "time", "--", *server).stderr == b""
    for _ in range(2):
        assert b"convert_time" in served("exec", "-", program).stdout
        served("service", "stop")
    for change in (("remove", "time"), ("add", "time", "--", *server)):  # where no service has read the file yet
        with served.start("service") as service:
            assert service.stderr
            assert b"serving at" in service.stderr.readline()
            changed, used = served("tools", *change), served("exec", "-", program)
            served("service", "stop")
        assert (changed.stderr, b"convert_time" in used.stdout) == (b"", change[0] == "add")
    served("exec", "-", "1")
    assert served("tools", "remove", "time").stderr == b""
    assert b"ModuleNotFoundError: this program has no tools" in served("exec", "-", program).stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_its_options(in_process: Cli, name: str) -> None:
    done = in_process(name, "--help")
    assert (done.code, done.stderr) == (0, b"")
    assert b"Usage: casemate " + name.encode() in done.stdout


def test_help_of_a_command_has_its_examples(in_process: Cli) -> None:
    assert b"casemate exec analysis --file step.py" in in_process("exec", "--help").stdout


def test_help_names_every_command_and_loads_no_parser(cli: Cli) -> None:
    program = (
        "import sys\nfrom casemate.surfaces.cli import command\ncommand(['--help'])\n"
        "print(sorted({'cyclopts', 'rich', 'pydantic', 'asyncio'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=cli.env, capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert [name for name in COMMANDS if f"  {name} " not in done.stdout] == []
    assert set(ALIASES.values()) <= set(COMMANDS)


def test_commands_that_only_ask_load_nothing_that_starts_or_follows_a_run(cli: Cli) -> None:
    program = (
        "import sys, casemate.remote.client, casemate.surfaces.cli.runs\n"
        "of_runs = {'following', 'run', 'inputs', 'outcome'}\n"
        "named = {'casemate.model.events'} | {f'casemate.surfaces.cli.{name}' for name in of_runs}\n"
        "print(sorted(named & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=cli.env, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_token_that_is_missing_is_asked_for_by_its_variable(cli: Cli) -> None:
    done = Cli(cli.folder, {**cli.env, "CASEMATE_URL": "http://127.0.0.1:9"})("ps")
    assert done.code == 2
    assert done.stderr.startswith(b"casemate: CASEMATE_TOKEN: ")


def test_commands_of_another_user_find_a_service_of_their_own(served: Cli) -> None:
    served("sessions", "open", "mine")
    other = Cli(served.folder, {**served.env, "XDG_STATE_HOME": served.env["XDG_STATE_HOME"] + "-other"})
    try:
        assert other("sessions", "list").stdout == b""
    finally:
        other("service", "stop")
    assert os.path.exists(served.env["XDG_STATE_HOME"] + "-other")
