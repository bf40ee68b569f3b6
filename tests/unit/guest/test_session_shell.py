"""A Shell session keeps one bash alive between steps, and what code does to it does not end that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.guest.session_shell_driver import (
    PROGRAM,
    SESSION,
    Session,
    eventually,
    get_request,
    run_request,
    session,
    set_request,
    variables_request,
)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Session]:
    with session(tmp_path) as started:
        yield started


def interrupted(step_frames: list[dict[str, Any]]) -> bool:
    error, done = step_frames
    return (error["type"], error["name"], done["exit"]) == ("error", "Interrupted", 130)


# --- What is kept ---


KEPT = {
    "a variable": ("x='a  b'", 'echo "$x"', "a  b\n"),
    "a declared variable": ("declare -i n=3", "n+=4; echo $n", "7\n"),
    "an exported variable": ("export X=1", "bash -c 'echo $X'", "1\n"),
    "an array": ("a=(1 'two words')", 'printf "<%s>" "${a[@]}"', "<1><two words>"),
    "an associative array": ("declare -A m=([a b]=c)", 'echo "${m[a b]}"', "c\n"),
    "a function": ("f() { local y=$1; echo $y; }", "f 2", "2\n"),
    "the working directory": ("cd /", "pwd", "/\n"),
    "an alias": ("shopt -s expand_aliases; alias hi='echo hello'", "hi", "hello\n"),
    "an option of shopt": ("shopt -s nullglob", "echo none*", "\n"),
    "an option of set": ("set -f", "echo *", "*\n"),
    "pipefail": ("set -o pipefail", "false | true; echo $?", "1\n"),
    "the last status": ("(exit 7)", "echo $?", "7\n"),
    "the last status under set -e": ("set -e; (exit 7)", "echo $?", "7\n"),
    "the arguments": ("set -- a 'b c'", 'echo $# "$2"', "2 b c\n"),
    "a descriptor": ("echo text >f; exec 3<f 6<f", "read -u 3 x; read -u 6 y; echo $x $y", "text text\n"),
    "a signal's trap": ("trap 'echo caught' USR1", "kill -USR1 $$", "caught\n"),
    "the umask": ("umask 077", "umask", "0077\n"),
    "a separator": ("IFS=:", "x=a:b; echo $x", "a b\n"),
}


@pytest.mark.parametrize("what", KEPT)
def test_the_next_step_finds(live: Session, what: str) -> None:
    first, second, printed = KEPT[what]
    live.run(first)
    assert live.run(second).visible == (0, printed, "")


def test_a_job_of_an_earlier_step_can_be_waited_for(live: Session) -> None:
    live.run("(exit 5) & pid=$!")
    assert live.run('jobs >/dev/null; wait "$pid"; echo $? $!').stdout.split()[0] == "5"
    assert live.run('[[ $! == "$pid" ]]').exit == 0


def test_a_descriptor_redirected_by_exec_is_the_steps_again_in_the_next_step(live: Session) -> None:
    assert live.run("exec >file 2>&1; echo hidden").visible == (0, "", "")
    assert live.run("cat file; echo error >&2").visible == (0, "hidden\n", "error\n")


# --- How a step ends ---


ENDS: dict[str, tuple[str, int, str]] = {
    "the last command fails": ("echo 1; false", 1, "1\n"),
    "nothing is there": ("", 0, ""),
    "there is only a comment": ("# nothing", 0, ""),
    "it returns": ("echo 1; return 4; echo 2", 4, "1\n"),
    "it fails under set -e": ("set -e; echo 1; (exit 3); echo 2", 3, "1\n"),
    "it fails in a function under set -e": ("set -e; f() { (exit 3); echo 2; }; f; echo 2", 3, ""),
    "it fails in a sourced file under set -e": ("set -e; echo '(exit 3); echo 2' >f; . ./f; echo 2", 3, ""),
    "it fails in a subshell under set -e": ("set -e; (false; echo 2); echo 2", 1, ""),
    "it fails in a subshell under set -eE": ("set -eE; f() { (false; echo 2); echo 2; }; f; echo 2", 1, ""),
    "a failure is tested under set -e": ("set -e; false || echo 1; if false; then :; fi; ! true; echo 2", 0, "1\n2\n"),
    "it misses a variable under set -u": ("set -u; echo 1; f() { echo $none; echo 2; }; f; echo 2", 1, "1\n"),
    "it demands a variable": ("echo 1; echo ${none:?is needed}; echo 2", 1, "1\n"),
    "it cannot exec": ("exec /none; echo still", 0, "still\n"),
    "a here-document does not end": ("cat <<E\ntext", 0, "text\n"),
    "a quote is not closed": ("echo 1; echo 'a", 2, ""),
    "its syntax is wrong": ("echo 1\nif then\necho 2", 2, "1\n"),
    "it comments its end": ("echo 1 # ' \"", 0, "1\n"),
    "it continues its last line": ("echo 1 \\", 0, "1 \\\n"),
    "it continues no loop": ("[ -f none ] || continue; echo 1", 0, "1\n"),
    "it continues more loops than it has": ("for f in a b; do echo $f; continue 2; done; echo 1", 0, "a\nb\n1\n"),
    "it breaks no loop": ("break 3; echo 1; f() { break; echo 2; }; f", 0, "1\n2\n"),
    "a trap of its own ends a subshell": ("(trap 'exit 3' USR1; kill -USR1 $BASHPID; echo 1)", 3, ""),
}


@pytest.mark.parametrize("how", ENDS)
def test_the_session_goes_on_when(live: Session, how: str) -> None:
    code, status, printed = ENDS[how]
    live.run("kept=1")
    step = live.run(code)
    assert (step.exit, step.stdout) == (status, printed)
    assert [frame["type"] for frame in step.frames] == ["done"]
    assert live.run('set +eu; echo "$kept"').visible == (0, "1\n", "")


def test_errors_name_the_program_and_the_line_of_the_step(live: Session) -> None:
    assert (
        live.run("\n\nno_such_command").stderr == f"{live.folder}/main.sh: line 3: no_such_command: command not found\n"
    )
    assert live.run("echo $LINENO\necho $LINENO").stdout == "1\n2\n"
    assert "line 2: syntax error near unexpected token `then'" in live.run("echo 1\nif then").stderr
    assert "__casemate" not in live.run("if then").stderr


def test_what_is_no_loop_and_no_status_is_said_as_bash_says_it(live: Session) -> None:
    said = live.run("\ncontinue\n( exit status )").stderr.splitlines()
    assert said == [
        f"{live.folder}/main.sh: line 2: continue: only meaningful in a `for', `while', or `until' loop",
        f"{live.folder}/main.sh: line 3: exit: status: numeric argument required",
    ]
    assert live.run("declare -F exit").visible == (1, "", "")


ENDINGS = {"exit 3": 3, "builtin exit 3": 3, "f() { set -e; exit 3; }; f": 3, "trap 'exit 3' USR1; kill -USR1 $$": 3}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_session_is_ended_by(live: Session, how: str) -> None:
    live.begin(how)
    assert live.ended() == ENDINGS[how]


def test_exit_in_a_subshell_ends_only_that(live: Session) -> None:
    assert live.run("(exit 3); x=$(exit 4); echo $?").visible == (0, "4\n", "")


def test_an_exit_trap_runs_at_the_end_of_the_session_and_prints_into_its_step(live: Session) -> None:
    assert live.run("trap 'echo bye' EXIT").stdout == ""
    step = live.run("exit 3")
    assert (step.stdout, live.ended()) == ("bye\n", 3)


def test_the_end_of_the_requests_ends_the_session_with_the_users_exit_trap_alone(live: Session) -> None:
    live.run("trap 'echo bye >said' EXIT")
    live.close_requests()
    assert live.ended() == 0
    assert (live.folder / "workspace/said").read_text() == "bye\n"


def test_after_an_error_that_ends_a_shell_everything_but_the_job_table_is_there(live: Session) -> None:
    pid = live.run("echo $$").stdout
    live.run(
        "declare -ri fixed=5; export shown=$'new\\nline'; a=(1 2); declare -A m=([k]=v); f() { echo \"f $1\"; }\n"
        "export -f f; shopt -s extglob expand_aliases; alias hi='f hi'; set -o pipefail; set -- one 'two three'\n"
        "trap 'echo usr' USR1; cd /; exec 5</dev/null"
    )
    failed = live.run("set -u; g() { local hidden=1; : $none; }; g")
    assert (failed.exit, failed.done["new"]) == (1, ["g()"])
    assert "none: unbound variable" in failed.stderr
    check = (
        'set +u; echo $$; echo $fixed "$shown" ${a[1]} ${m[k]} $2 $PWD ${hidden-}; hi\n'
        "[[ x == @(x|y) ]] && bash -c 'f 2'\n"
        "kill -USR1 $$; false | true || echo failed; : <&5; fixed=6"
    )
    again = live.run(check)
    assert again.stdout == f"{pid}5 new\nline 2 v two three /\nf hi\nf 2\nusr\nfailed\n"
    assert "fixed: readonly variable" in again.stderr
    assert live.run("set -u; : $none").exit == 1
    assert live.run("echo $shown").stdout == "new line\n"


# --- What the user's code does to the shell ---


HOSTILE = {
    "redefines builtins": 'for n in read printf eval echo local trap mapfile; do builtin eval "$n() { :; }"; done',
    "aliases builtins": "shopt -s expand_aliases; alias builtin=false read=false printf=false local=false",
    "changes IFS": "IFS=' 0123456789rundo'",
    "unsets IFS": "unset IFS",
    "freezes variables": "readonly IFS REPLY OPTIND",
    "changes the locale": "export LC_ALL=C.UTF-8 LANG=de_DE.UTF-8",
    "sets a timeout": "TMOUT=1",
    "ignores case": "shopt -s nocasematch extglob nocaseglob",
    "wants matches": "shopt -s failglob",
    "inherits locals": "shopt -s localvar_inherit 2>/dev/null",
    "closes descriptors": "exec 3>&- 6<&- 20>&- 21<&- 22<&-",
    "is strict": "set -euo pipefail",
    "exports everything": "set -a",
    "does not overwrite": "set -C",
    "reads keywords": "set -k",
    "is POSIX": "set -o posix",
    "traps each command": "trap 'seen=1' DEBUG; set -T; trap 'seen=2' RETURN; trap 'seen=3' ERR",
    "traps its end": "trap 'echo bye' EXIT",
    "deletes its code": "unset __casemate_code __casemate_words __casemate_lines",
    "has job control": "set -m",
}


@pytest.mark.parametrize("how", HOSTILE)
def test_the_session_serves_on_when_a_step(live: Session, how: str) -> None:
    live.run(HOSTILE[how])
    step = live.run("x='1 u'; command printf '<%s>' \"é$x\"")
    assert (step.exit, step.stdout) == (0, "<é1 u>")
    assert live.ask(get_request(1, "x")) == {"type": "reply", "id": 1, "text": "1 u"}
    assert live.run("false").exit == 1


def test_a_trace_shows_the_users_commands_alone(live: Session) -> None:
    def traced(code: str) -> list[str]:
        return [line.lstrip("+ ") for line in live.run(code).stderr.splitlines()]

    assert traced("set -x; echo 1") == ["echo 1"]
    assert traced("echo 2; false") == ["echo 2", "false"]
    assert traced("echo $?") == ["echo 1"]
    assert traced("set +x") == ["set +x"]
    assert traced("echo 3") == []


def test_a_trap_for_errors_runs_once_for_each(live: Session) -> None:
    assert live.run("trap 'echo failed' ERR; true; false").visible == (1, "failed\n", "")
    assert live.run("false").visible == (1, "", "")


def test_a_trap_for_commands_lasts_as_long_as_its_step(live: Session) -> None:
    assert live.run("trap 'echo before' DEBUG; echo 1").stdout == "before\n1\n"
    assert live.run("echo 2").stdout == "2\n"


CANNOT_GO_ON = {
    "it runs no command any more": "set -n",
    "it skips every command": "shopt -s extdebug; trap 'false' DEBUG; true",
    "all descriptors are closed": 'for d in /proc/$$/fd/*; do n=${d##*/}; eval "exec $n>&-"; done',
}


@pytest.mark.parametrize("why", CANNOT_GO_ON)
def test_a_session_ends_when(live: Session, why: str) -> None:
    step = live.begin(CANNOT_GO_ON[why])
    frames = list(live.frames())
    assert all(frame["type"] == "done" for frame in frames)
    live.ended()
    assert step.stdout == ""


def test_an_unknown_request_ends_the_session(live: Session) -> None:
    live.send(b"dance 1\n")
    assert live.ended() == 70


def test_a_missing_pipe_ends_the_session(live: Session) -> None:
    live.send(run_request(1, b"echo 1", "/none/out", "/none/err"))
    assert live.ended() == 70


def test_our_own_names_are_not_in_the_environment_of_a_child(live: Session) -> None:
    assert live.run("set -a; x=1").exit == 0
    assert "__casemate" not in live.run("env").stdout


# --- Descriptors ---


def test_commands_have_the_steps_descriptors_alone(live: Session) -> None:
    # The fourth is the folder that is read.
    assert live.run("ls /proc/self/fd").stdout.split() == ["0", "1", "2", "3"]
    assert live.run("(ls /proc/self/fd; :)").stdout.split() == ["0", "1", "2", "3"]
    assert live.run("(ls /proc/self/fd; :) & wait").stdout.split() == ["0", "1", "2", "3"]


def test_the_pipes_of_a_step_end_with_it(live: Session) -> None:
    step = live.run("echo 1")
    assert step.stdout == "1\n"
    assert os.read(step.out, 1) == b""


def test_a_background_job_does_not_hold_the_control_pipe(live: Session) -> None:
    live.run("sleep 50 &")
    step = live.run("exit 2")
    assert step.frames == []


@pytest.mark.parametrize(
    "text", [b"", b"no newline", b"two\nlines\n", "h\u00e9\xff\n".encode() + b"\xff", b"x" * 300_000]
)
def test_reading_finds_the_input_as_it_was_given(live: Session, text: bytes) -> None:
    assert live.run("cat >got", stdin=text).exit == 0
    assert (live.folder / "workspace/got").read_bytes() == text
    assert live.run("cat").stdout == ""


def test_an_input_stays_what_it_was_for_a_job_that_reads_it_later(live: Session) -> None:
    first = live.run("mkfifo go; exec 7<&0; { read line <go; cat <&7; } & exec 7<&-", stdin=b"first")
    live.run("echo now >go; wait", stdin=b"second")
    assert first.stdout == "first"


def test_a_step_begins_where_it_is_told(live: Session) -> None:
    strange = live.folder / "a b\n'c"
    strange.mkdir()
    assert live.run("CDPATH=/; pwd", cwd=os.fsencode(strange)).stdout == f"{strange}\n"
    assert live.run("pwd").stdout == f"{strange}\n"


def test_code_may_be_long_and_of_any_bytes(live: Session) -> None:
    assert live.run(b"x='\xff\xc3\xa9'; printf %s \"$x\" >got").exit == 0
    assert (live.folder / "workspace/got").read_bytes() == b"\xff\xc3\xa9"
    long = "x='" + "é" * (2 << 20) + "'; echo ${#x}"
    assert live.run(long).stdout == f"{2 << 20}\n"


# --- Interrupting ---


SPIN = "f() { echo start; while :; do :; done; echo NO; }; g() { f; echo NO; f; }; "
# The command itself says that it runs: bash 5.2 now and then spins when a signal comes just as it forks.
SLEEP = "s() { bash -c 'echo start >&2; exec sleep 50'; echo NO; (echo NO); }; "

STUCK = {
    "a command": SLEEP + "s; echo NO",
    "a loop": SPIN + "f; echo NO",
    "nested functions": SPIN + "for i in 1 2; do g || echo NO; done; (echo NO); echo NO",
    "a tested function": SPIN + "if g; then echo NO; else echo NO; fi; until ! g; do echo NO; done",
    "a sourced file": SPIN + "echo 'g; echo NO; (echo NO)' >f; . ./f; (echo NO)",
    "an eval": SPIN + "eval 'eval g; echo NO'; echo NO",
    "a pipeline": SLEEP + "s | cat; echo NO",
    "a subshell": SLEEP + "(s; echo NO); (echo NO)",
    "a command substitution": SLEEP + 'x=$(s); echo "NO $x"',
    "a process substitution": SLEEP + "cat <(s); echo NO",
    "a wait": "sleep 50 & echo start; wait; echo NO",
    "a read": SLEEP + "read x < <(s); echo NO",
    "another bash": "bash -c 'echo start; sleep 50; echo NO'; echo NO",
    "an arithmetic loop": "echo start; for ((i = 0; ; i++)); do ((i)); done",
    "a strict step": SLEEP + "set -euo pipefail; s; echo NO",
    "a trapped step": SPIN + "trap ':' DEBUG ERR RETURN; set -ET; g; echo NO",
    "a step with job control": SPIN + "set -m; g",
}


@pytest.mark.parametrize("where", STUCK)
def test_an_interrupt_ends_the_step_and_keeps_the_state_in(live: Session, where: str) -> None:
    live.run("before=1")
    step = live.begin(f"during=2; {STUCK[where]}")
    eventually(lambda: "start" in step.stdout + step.stderr)
    live.interrupt()
    live.finish(step)
    assert interrupted(step.frames)
    assert "NO" not in step.stdout
    after = live.run("echo $before $during $?; set +euET; trap -p DEBUG; case $- in *T*) echo traced;; esac")
    assert after.visible == (0, "1 2 130\n", "")


@pytest.mark.parametrize("where", ["a loop", "nested functions", "a wait", "an eval"])
def test_an_interrupt_of_bash_alone_ends_what_bash_does_itself(live: Session, where: str) -> None:
    step = live.begin(STUCK[where])
    eventually(lambda: "start" in step.stdout + step.stderr)
    live.interrupt(whole_group=False)
    live.finish(step)
    assert interrupted(step.frames)
    assert "NO" not in step.stdout


def test_interrupts_at_any_moment_leave_whole_frames_and_a_session_that_serves(live: Session) -> None:
    for _ in range(60):
        step = live.begin("x=1; for i in 1 2 3; do :; done")
        live.interrupt()
        live.finish(step)
        assert step.exit == 0 or interrupted(step.frames)
    assert live.run("echo $x").exit == 0


def test_a_step_after_an_interrupted_one_runs_whole(live: Session) -> None:
    step = live.begin(SPIN + "g")
    eventually(lambda: "start" in step.stdout)
    live.interrupt()
    live.finish(step)
    assert live.run("h() { (echo 1); echo 2; return 3; }; h; echo $?").visible == (0, "1\n2\n3\n", "")


# --- Names and values ---


def test_done_tells_which_names_are_new_and_which_are_gone(live: Session) -> None:
    first = live.run(
        "x=1; f() { local y=2; :; }; declare -A m=([a]=1); read z <<<1; for i in 1; do :; done; cd /; REPLY=1"
    ).done
    assert (sorted(first["new"]), first["gone"]) == (["f()", "i", "m", "x", "z"], [])
    second = live.run("unset x; unset -f f; y=3; z=5").done
    assert (second["new"], sorted(second["gone"])) == (["y"], ["f()", "x"])
    third = live.run("x=1; declare without_value").done
    assert (third["new"], third["gone"]) == (["x"], [])
    assert live.run(":").done == {"type": "done", "step": 4, "at": None, "exit": 0, "new": [], "gone": []}


def test_names_are_bounded(live: Session) -> None:
    done = live.run(f"for i in {{1..10050}}; do declare v$i=1; done; {'n' * 300}=1").done
    assert len(done["new"]) == 10_000
    assert max(len(name) for name in done["new"]) == 200


def test_variables_are_described_in_the_order_of_their_definition(live: Session) -> None:
    live.run("z='it'\\''s é'")
    live.run("a=(1 'two words'); declare -i n=5; declare -x e=out; declare -A m=([k]=v); f() { echo 1; }")
    reply = live.ask(variables_request(3))
    assert (reply["type"], reply["id"]) == ("reply", 3)
    described = {item["name"]: (item["type"], item["size"], item["repr"]) for item in reply["value"]}
    assert next(iter(described)) == "z"
    assert described == {
        "z": ("string", 7, "'it'\\''s é'"),
        "a": ("array", 10, "([0]='1' [1]='two words')"),
        "e": ("exported string", 3, "'out'"),
        "m": ("associative array", 1, "([k]='v')"),
        "n": ("integer", 1, "'5'"),
        "f()": ("function", 21, "f () \n{ \n    echo 1\n}"),
    }


def test_the_description_of_a_long_value_is_bounded(live: Session) -> None:
    live.run("long=$(printf 'é%.0s' {1..5000}); big=({1..10000}); declare -n ref=long; declare none")
    described = {item["name"]: item for item in live.ask(variables_request(1))["value"]}
    assert described["long"]["size"] == 10_000
    assert all(len(item["repr"].encode()) <= 200 for item in described.values())
    assert "\ufffd" not in described["long"]["repr"]
    assert described["ref"]["type"] == "reference"


TEXTS = {
    "is plain": "abc",
    "is empty": "",
    "has quotes": "\"\\'`$x",
    "has controls": "".join(map(chr, range(1, 32))) + "\x7f",
    "is in many scripts": "é ß Ж 漢字 🙂 \U0010ffff \u0800 \ud7ff \ue000",
    "is JSON": '{"a": [1, "é"]}',
    "is long": "x" * 200_000,
    "is long and in another script": "漢\n" * 50_000,
    "ends in newlines": "a\n\n",
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_text_comes_back_as_it_was_set_when_it(live: Session, what: str) -> None:
    assert live.ask(set_request(1, "x", TEXTS[what].encode())) == {"type": "reply", "id": 1, "value": None}
    assert live.ask(get_request(2, "x")) == {"type": "reply", "id": 2, "text": TEXTS[what]}
    assert live.run("[[ -v x ]]").done["new"] == []


@pytest.mark.parametrize(
    "bad", [b"\xff", b"\xc3", b"a\xc3(", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\x80", b"\xe2\x82"]
)
def test_a_text_that_is_not_utf_8_comes_with_a_code_point_for_each_byte(live: Session, bad: bytes) -> None:
    live.ask(set_request(1, "x", b"<" + bad + b">"))
    assert live.ask(get_request(2, "x"))["text"] == f"<{bad.decode('latin-1')}>"


def test_arrays_come_as_the_json_of_their_texts(live: Session) -> None:
    live.run("a=(1 'two \"words\"' 'é\n'); declare -A m=(['a b']=c ['\"']='\\'); e=()")
    assert json.loads(live.ask(get_request(1, "a"))["text"]) == ["1", 'two "words"', "é\n"]
    assert json.loads(live.ask(get_request(2, "m"))["text"]) == {"a b": "c", '"': "\\"}
    assert json.loads(live.ask(get_request(3, "e"))["text"]) == []


@pytest.mark.parametrize("name", ["none", "f", "1x", "a[0]", "a[$(touch${IFS}ran)]", "__casemate_code", "é", "x-y"])
def test_what_is_not_a_variable_cannot_be_asked_for(live: Session, name: str) -> None:
    live.run("f() { :; }; a=(1)")
    assert name in live.ask(get_request(1, name))["error"]
    assert os.listdir(live.folder / "workspace") == []


@pytest.mark.parametrize("name", ["fixed", "BASH_VERSINFO", "UID", "LINENO", "1x", "a[0]", "__casemate_code", "x-y"])
def test_what_cannot_be_set_is_refused(live: Session, name: str) -> None:
    live.run("readonly fixed=1")
    assert name in live.ask(set_request(1, name, b"2"))["error"]
    assert live.run("echo $fixed").stdout == "1\n"


def test_setting_a_variable_replaces_what_it_was(live: Session) -> None:
    live.run("declare -ai x=(1 2); declare -n ref=x")
    live.ask(set_request(1, "x", b"1 + 1"))
    live.ask(set_request(2, "ref", b"own"))
    assert live.run('echo "${#x[@]} $x $ref"').stdout == "1 1 + 1 own\n"


# --- How it is started and what it writes ---


def test_a_program_that_only_sources_the_session_does_too(tmp_path: Path) -> None:
    with session(tmp_path, f". {SESSION}\n") as live:
        live.run(SLEEP + "x=1; set -e")
        step = live.begin("s; echo NO")
        eventually(lambda: "start" in step.stderr)
        live.interrupt()
        assert interrupted(live.finish(step).frames)
        assert live.run("echo $x; false; echo NO").visible == (1, "1\n", "")


def test_a_session_without_a_place_for_temporary_files_says_so(tmp_path: Path) -> None:
    assert PROGRAM
    bash = shutil.which("bash")
    assert bash
    (tmp_path / "main.sh").write_text(f"ulimit -f 0; trap '' XFSZ; {PROGRAM}")
    ran = subprocess.run(
        [bash, "-c", "exec bash main.sh 3>&1 6</dev/null"], cwd=tmp_path, capture_output=True, check=False
    )
    assert (ran.returncode, json.loads(ran.stdout[4:])["type"]) == (70, "ready")
    assert "temporary file" in json.loads(ran.stdout[4:])["problem"]
