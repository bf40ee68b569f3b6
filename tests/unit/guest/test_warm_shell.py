"""A bash that was started before its program came behaves as one that was just started."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.guest.stage import GUEST, Outcome, Stage

HOOK = GUEST / "shell_wait.sh"
ORDER = b"export GIVEN='it'\\''s\nhere'\n\0"
GIVEN = {"GIVEN": "it's\nhere"}

PROGRAMS = {
    "is empty": "",
    "asks what it is": 'echo "$_ $0 $- $? $# $LINENO $BASH_SUBSHELL ${BASH_SOURCE[@]} ${FUNCNAME[@]}"; echo "$GIVEN"',
    "lists variables": (
        # The first command is over, SECONDS has a value, and BASH_ARGC says once more what $# says.
        ": $SECONDS\ndeclare -p | grep -vE ' (BASHPID|PPID|EPOCH[A-Z]+|S?RANDOM|SECONDS|BASH_ARGC)(=|$)'\n"
        "declare -F; env | sort; compgen -v | sort | grep -v '^BASH_ARG'\n"
    ),
    "lists options": "set -o; shopt; trap -p; alias; hash; umask; ulimit -a",
    "lists descriptors": "ls -l /proc/self/fd | sed 's/.*:[0-9][0-9] //; s/:.*//; s/proc.*//'; ls /proc/$$/fd",
    "misses a command": "echo 1\n\nno_such_command\necho 2",
    "has a syntax error": "echo 1\nif then\n",
    "stops at an error": "set -e\necho 1\nfalse\necho 2",
    "stops at a missing variable": "set -u\necho $missing\necho 2",
    "exits": "echo 1; exit 7",
    "traps its end": "trap 'echo bye $?' EXIT\nexit 3",
    "traps a signal": "trap 'echo caught' INT\nkill -INT $$\necho on",
    "dies by a signal": "kill -INT $$\necho on",
    "reads stdin": 'read line; echo "got $line"; cat',
    "starts another": "bash -c 'echo $GIVEN $BASH_ENV $_'; bash $0.none; (exit 4); echo $?",
    "sees how long it runs": 'echo "$SECONDS"',
}


def run(folder: Path, program: str, *, order: bytes | None = None, env: dict[str, str] | None = None) -> Outcome:
    stage = Stage(folder)
    path = stage.put("program/main.sh", program)
    # The bash that a stage starts with must not wait itself.
    variables = [f"{name}={value}" for name, value in (env or {}).items()]
    return stage.run(["env", *variables, "bash", str(path)], {}, path, "in\nput", order=order)


def warm(folder: Path, program: str, order: bytes = ORDER) -> Outcome:
    return run(folder, program, order=order, env={"BASH_ENV": str(HOOK)})


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_and_prints_what_it_does_in_a_new_bash(tmp_path: Path, name: str) -> None:
    expected = run(tmp_path, PROGRAMS[name], env=GIVEN)
    assert warm(tmp_path, PROGRAMS[name]).visible == expected.visible


def test_the_program_is_opened_after_the_order_came(tmp_path: Path) -> None:
    program = tmp_path / "program/main.sh"
    writes = f"printf 'echo new' > {program}\0".encode()
    assert warm(tmp_path, "echo old", order=writes).stdout == "new\n"


def test_the_order_can_set_the_arguments(tmp_path: Path) -> None:
    assert warm(tmp_path, 'printf "<%s>" "$@"', order=b"set -- 'a b' c\0").stdout == "<a b><c>"


def test_variables_of_the_programs_own_may_have_the_names_that_the_wait_uses(tmp_path: Path) -> None:
    order = b"export CASEMATE_ORDER=1 CASEMATE_LAST=2\0"
    assert warm(tmp_path, 'echo "$CASEMATE_ORDER $CASEMATE_LAST"', order=order).stdout == "1 2\n"


def test_seconds_count_from_the_order(tmp_path: Path) -> None:
    assert warm(tmp_path, "echo $SECONDS", order=b"SECONDS=500\0").stdout == "0\n"


@pytest.mark.parametrize("order", [b"", b"echo never"])
def test_without_a_whole_order_the_shell_ends_quietly(tmp_path: Path, order: bytes) -> None:
    assert warm(tmp_path, "echo ran", order=order).visible == (0, "", "")
