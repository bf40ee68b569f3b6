"""Which programs may start in a waiting process, and the order that the process gets."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate import Limits
from casemate.languages.node.runtime import NodeRuntime
from casemate.languages.python.runtime import PRELOADED, PythonRuntime
from casemate.languages.runtime import THREAD_COUNTS
from casemate.languages.shell.runtime import ShellRuntime
from casemate.languages.waiting import RequestedProgram, check_order_length, json_order, read_at_start, too_special
from casemate.model.plan import Bind, Launch, ReadyStart

NOTHING = re.compile(r"(?!)")
BASE = {"PATH": "/usr/bin:/bin", "HOME": "/home/user", "LANG": "C.UTF-8"}
LAUNCH = Launch("python", "3.11.7", (Bind("/opt/env", "/opt/env"),), ("/opt/env/bin/python", "-P", "/program/main.py"))


def asked(**changes: Any) -> RequestedProgram:
    usual = RequestedProgram(LAUNCH, "main.py", (), b"print(1)", {}, BASE, {}, BASE, Limits(), Limits(), None, None)
    return replace(usual, **changes)


def python(**changes: Any) -> ReadyStart | str:
    return PythonRuntime().ready_start(asked(**changes))


def given_env(**env: str) -> dict[str, Any]:
    return {"env": {**BASE, **env}, "given_env": env}


def test_a_usual_program_is_nothing_special() -> None:
    assert too_special(asked(), "main.py") == ""
    assert too_special(asked(files={"a.py": b""}), "main.py") == ""
    assert too_special(asked(folder=Path("/w")), "main.py") == ""


@pytest.mark.parametrize(("changes", "why"), [
    ({"program_name": "job.py"}, "job.py"), ({"files": {"output": b""}}, "output"),
    ({"files": {"a": b""}, "folder": Path("/w")}, "caller's folder")])  # fmt: skip
def test_what_is_too_special_is_named(changes: dict[str, Any], why: str) -> None:
    assert why in too_special(asked(**changes), "main.py")


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LC_ALL", "LANG", "LANGUAGE", "MALLOC_ARENA_MAX", "OPENSSL_CONF",
                                  "SSL_CERT_FILE", "GLIBC_TUNABLES", "ICU_DATA"])  # fmt: skip
def test_what_every_process_reads_when_it_starts_is_named(name: str) -> None:
    assert read_at_start(asked(**given_env(**{name: "x"})), NOTHING) == (
        f"the variable {name} is read when a process starts"
    )


@pytest.mark.parametrize("name", ["TZ", "PATH", "LANGUAGES", "MY_LD_PRELOAD", "A", "OLD_LANG", "http_proxy"])
def test_other_variables_are_none_of_these(name: str) -> None:
    assert read_at_start(asked(**given_env(**{name: "x"})), NOTHING) == ""


def test_variables_that_were_not_given_are_not_looked_at() -> None:
    assert read_at_start(asked(env={"LC_ALL": "C"}, base_env={"LC_ALL": "C"}), NOTHING) == ""


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(st.dictionaries(TEXT, TEXT, max_size=5), st.lists(TEXT, max_size=5))
def test_an_order_says_its_length_and_what_it_was_made_of(env: dict[str, str], arguments: list[str]) -> None:
    order = json_order(env, tuple(arguments))
    assert isinstance(order, bytes)
    assert int.from_bytes(order[:4], "big") == len(order) - 4
    assert json.loads(order[4:]) == {"env": env, "arguments": arguments}


def test_what_is_no_text_cannot_be_told() -> None:
    assert "not valid UTF-8" in json_order({"A": "\udcff"}, ())
    assert "not valid UTF-8" in json_order({}, ("\udcff",))


def test_an_order_never_fills_a_pipe() -> None:
    assert check_order_length(b"x" * 6000) == b"x" * 6000
    assert "too long" in check_order_length(b"x" * 6001)
    assert "too long" in json_order({"A": "é" * 3000}, ())


def test_a_python_program_is_ordered_and_the_process_that_waits_knows_nothing_of_it() -> None:
    env = {**BASE, "PYTHONPATH": "/opt/casemate/python:/opt/casemate/modules", "A": "b"}
    launch = replace(LAUNCH, argv=(*LAUNCH.argv, "one", "two"))
    waiting = python(launch=launch, arguments=("one", "two"), env=env, given_env={"A": "b"})
    assert isinstance(waiting, ReadyStart)
    assert waiting.argv == LAUNCH.argv
    assert waiting.env == {**BASE, **dict.fromkeys(THREAD_COUNTS, "1")}
    assert json.loads(waiting.order[4:]) == {
        "env": {**BASE, "PYTHONPATH": "/opt/casemate/modules", "A": "b"},
        "arguments": ["one", "two"],
    }


def test_two_programs_of_one_environment_wait_alike() -> None:
    one, two = python(code=b"print(1)"), python(code=b"print(2)", limits=Limits(processes=3), **given_env(A="b"))
    assert isinstance(one, ReadyStart)
    assert isinstance(two, ReadyStart)
    assert replace(one, order=b"") == replace(two, order=b"")


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, ()), ({"code": b"import numpy"}, PRELOADED), ({"code": b"# IPython"}, PRELOADED),
    ({"files": {"a.py": b"import pandas"}}, PRELOADED), ({"files": {"a.txt": b"import pandas"}}, ()),
    ({"files": {"a.py": Path("/x/a.py")}}, PRELOADED), ({"files": {"a.bin": Path("/x/a.bin")}}, ()),
    ({"folder": Path("/w")}, PRELOADED), ({"preload": ("mine.sub",), "code": b"import mine"}, ("mine.sub",)),
    ({"preload": ("mine",), "code": b"import numpy"}, ()), ({"preload": (), "code": b"import numpy"}, ())])  # fmt: skip
def test_modules_are_loaded_ahead_for_programs_that_may_want_them(
    changes: dict[str, Any], expected: tuple[str, ...]
) -> None:
    waiting = python(**changes)
    assert isinstance(waiting, ReadyStart)
    assert waiting.preload == expected
    assert (waiting.cost > 4 << 20) == bool(expected)
    wanted = changes.get("preload", PRELOADED)
    assert waiting.fuller == (() if expected else wanted)
    assert waiting.optional == ("preload" not in changes)


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "PYTHONPATH", "OMP_NUM_THREADS", "MPLBACKEND", "HOME",
                                  "XDG_CACHE_HOME", "CASEMATE_X", "OPENBLAS_NUM_THREADS"])  # fmt: skip
def test_variables_that_python_or_a_library_reads_first_take_a_new_process(name: str) -> None:
    assert python(**given_env(**{name: "x"})) == f"the variable {name} is read when a process starts"


@pytest.mark.parametrize(("version", "waits"), [("3.10.13", False), ("3.11.0", True), ("3.14.1", True)])
def test_zygotes_need_a_python_that_is_new_enough(version: str, waits: bool) -> None:
    assert isinstance(python(launch=replace(LAUNCH, version=version)), ReadyStart) == waits


@pytest.mark.parametrize(("folder", "waits"), [("/opt/env", False), ("/opt", False), ("/opt/env/lib", False),
                                               ("/opt/environment", True), ("/srv", True)])  # fmt: skip
def test_an_environment_where_cells_write_has_no_zygote(folder: str, waits: bool) -> None:
    waiting = python(folder=Path(folder))
    assert isinstance(waiting, ReadyStart) == waits
    if isinstance(waiting, str):
        assert "/opt/env" in waiting


SHELL = replace(LAUNCH, language="shell", argv=("/usr/bin/bash", "/program/main.sh"))


def shell(**changes: Any) -> ReadyStart | str:
    return ShellRuntime().ready_start(asked(**{"launch": SHELL, "program_name": "main.sh", **changes}))


def test_a_shell_is_told_only_what_is_otherwise() -> None:
    waiting = shell(**given_env(A="it's\n$x `y` \\", HOME="/x"))
    assert isinstance(waiting, ReadyStart)
    assert waiting.order == b"export HOME=/x\nexport A='it'\"'\"'s\n$x `y` \\'\n\0"
    assert waiting.preload is None


@pytest.mark.parametrize(("changes", "why"), [
    ({"arguments": ("a",), "launch": replace(SHELL, argv=(*SHELL.argv, "a"))}, "arguments"),
    ({"launch": replace(SHELL, argv=("/bin/sh", "/program/main.sh"))}, "/bin/sh cannot wait"),
    (given_env(A="x" * 6000), "too long"), (given_env(IFS="x"), "IFS"), (given_env(BASH_ENV="x"), "BASH_ENV"),
    (given_env(UID="5"), "UID"), (given_env(_="5"), "_"), (given_env(RANDOM="5"), "RANDOM")])  # fmt: skip
def test_a_shell_program_that_cannot_wait_says_why(changes: dict[str, Any], why: str) -> None:
    waiting = shell(**changes)
    assert isinstance(waiting, str)
    assert why in waiting


def test_a_node_is_started_with_the_limits_of_its_run() -> None:
    launch = replace(LAUNCH, language="node", argv=("/usr/bin/node", "/program/main.js", "a"))
    waiting = NodeRuntime().ready_start(
        asked(launch=launch, program_name="main.js", arguments=("a",), limits=Limits(processes=5))
    )
    assert isinstance(waiting, ReadyStart)
    assert (waiting.argv, waiting.limits, waiting.preload) == (launch.argv[:-1], Limits(processes=5), None)
    assert "CASEMATE_WAIT" not in json.loads(waiting.order[4:])["env"]
