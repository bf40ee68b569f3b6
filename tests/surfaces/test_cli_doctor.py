"""``casemate doctor``: what this machine can have, for people and for programs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from tests.support.walls import skip_without
from tests.surfaces.conftest import Cli

import casemate
from casemate import Limits


def test_doctor_says_what_was_proved_and_what_holds_each_limit(cli: Cli) -> None:
    done = cli("doctor")
    text = done.stdout.decode()
    assert (done.code, done.stderr) == (0, b"")
    assert re.search(r"native +works +(\d+) of \1 cases of the self-test held, \d{4}-", text)
    for limit in fields(Limits):
        assert re.search(rf"^  {limit.name} +(hard|best effort) +(cell|process) +\S", text, re.MULTILINE), limit.name
    assert re.search(r"^  python +\d+\.\d+", text, re.MULTILINE)
    assert "\x1b" not in text


def test_doctor_lists_each_wall_that_can_be_chosen(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> None:
    skip_without("landlock", tmp_path_factory)
    walls = json.loads(cli("doctor", "--format", "json").stdout)["walls"]
    assert [(wall["name"], wall["available"]) for wall in walls] == [("native", True), ("landlock", True)]


@pytest.mark.parametrize("option", ["--format"])
def test_doctor_as_json_has_everything(cli: Cli, option: str) -> None:
    found = json.loads(cli("doctor", option, "json").stdout)
    wall = found["walls"][0]
    assert (found["ok"], wall["name"], wall["available"]) == (True, "native", True)
    assert all(proof["held"] for proof in wall["report"]["proofs"])
    assert {limit["limit"] for limit in wall["report"]["limits"]} == {limit.name for limit in fields(Limits)}
    assert {language["language"] for language in found["languages"]} >= {"python", "node", "shell"}


def test_doctor_on_a_terminal_is_a_table_of_the_same(cli: Cli) -> None:
    done = cli.on_terminal("doctor")
    assert done.code == 0
    assert b"\x1b[" in done.stdout
    assert b"best effort" in done.stdout or b"hard" in done.stdout


def test_doctor_tells_the_command_that_helps_when_a_language_is_missing(make_cli: Callable[..., Cli]) -> None:
    cli = make_cli(PATH="/nowhere")
    languages = {one["language"]: one for one in json.loads(cli("doctor", "--format", "json").stdout)["languages"]}
    if not languages["node"]["missing"]:
        pytest.skip("the node extra is installed: Node is found without PATH")
    assert "pip install" in languages["node"]["remedy"]
    done = cli("doctor")
    assert languages["node"]["remedy"].encode() in done.stdout.partition(b"what would help")[2]


def test_doctor_says_whether_there_is_a_browser_and_how_to_get_one(make_cli: Callable[..., Cli]) -> None:
    found = make_cli(CASEMATE_BROWSER="/nowhere/chromium")("doctor").stdout.decode().partition("for the web")[2]
    assert re.search(r"pages +(\d|missing)", found)
    assert re.search(r"browser +missing +CASEMATE_BROWSER=/nowhere/chromium is not a program: apt-get install", found)


def test_doctor_fails_with_the_reason_where_no_wall_can_be_had(cli: Cli) -> None:
    # A cell is such a machine: it may make no user namespace. The source is given, as it may not be installed there.
    source = Path(casemate.__file__).parent
    given = [f"--file=casemate/{path.relative_to(source)}={path}" for path in source.rglob("*") if path.is_file()]
    program = cli.program("import runpy; runpy.run_module('casemate', run_name='__main__')")
    done = cli("run", *given, program, "-e", "HOME=/tmp", "-e", "PYTHONPATH=/workspace", "--", "doctor")
    assert done.code == 69
    assert re.search(rb"native +not here +\S.+\((\w+)\)", done.stdout)
    assert b"what would help" in done.stdout


def test_doctor_proves_the_wall_where_nothing_can_be_recorded_and_says_so(
    make_cli: Callable[..., Cli], tmp_path: Path
) -> None:
    nowhere = {"XDG_STATE_HOME": "/proc/nowhere"}  # where not even root can make a folder
    text, as_json = (make_cli(**nowhere)("doctor", *form) for form in ((), ("--format", "json")))
    assert (text.code, text.stderr, as_json.code, json.loads(as_json.stdout)["ok"]) == (74, b"", 74, True)
    assert re.search(rb"native +works", text.stdout)
    assert b"nothing would run: the audit record /proc/nowhere/" in text.stdout
    assert b"CASEMATE_AUDIT" in text.stdout
    assert make_cli(**nowhere, CASEMATE_AUDIT=str(tmp_path / "audit.db"))("doctor").code == 0


# As a user without an entry in /etc/passwd.
_AS_STRANGER = "exec unshare --user --map-user=4000001 --map-group=4000001 $0 -m casemate doctor"


def _doctor_in_namespaces(script: str, env: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, sys.executable]
    return subprocess.run(command, env=env, capture_output=True, check=False)


def test_doctor_works_for_a_user_that_nobody_knows_with_a_home_that_is_closed(cli: Cli, tmp_path: Path) -> None:
    (home := tmp_path / "home").mkdir(mode=0)
    done = _doctor_in_namespaces(_AS_STRANGER, {**cli.env, "HOME": str(home)})
    assert (done.returncode, done.stderr) in {(2, b""), (69, b"")}  # the machine's root has no wall in such a namespace
    assert re.search(rb"native +(works|not here)", done.stdout)
    assert b"nothing would run: config: cannot tell" in done.stdout
    assert b"CASEMATE_CONFIG" in done.stdout


def test_doctor_works_where_nothing_can_be_written(cli: Cli) -> None:
    script = f"for folder in /tmp /var/tmp; do mount -t tmpfs -o ro none $folder; done; cd /proc; {_AS_STRANGER}"
    nowhere = dict.fromkeys(("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"), "/proc")
    done = _doctor_in_namespaces(script, {**cli.env, **nowhere})
    assert (done.returncode, done.stderr) == (69, b"")
    assert re.search(rb"native +not here +.+\(no_temporary_folder\)", done.stdout)
    advice = done.stdout.partition(b"what would help")[2]
    assert b"TMPDIR" in advice
    assert b"nothing would run: the audit record" in advice


@pytest.mark.root_only
@pytest.mark.parametrize(
    ("left", "missing"),
    [("", "DAC_OVERRIDE, SETGID, SETUID, SETPCAP"), (",+setuid,+setgid", "DAC_OVERRIDE, SETPCAP")],
)
def test_root_without_capabilities_is_told_once_what_to_do(cli: Cli, left: str, missing: str) -> None:
    bare = ["setpriv", "--bounding-set", f"-all{left}", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"]
    for words, code in ((["doctor"], 69), (["run", "-"], 69)):
        command = [*bare, sys.executable, "-m", "casemate", *words]
        done = subprocess.run(command, env=cli.env, input="print(1)", capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert "Traceback" not in done.stdout + done.stderr
        assert f"This is root without {missing}, so its cells cannot run as other users." in done.stdout + done.stderr
        assert (done.stdout + done.stderr).count("--user 10001:10001") == 1


@pytest.mark.root_only
def test_a_folder_of_another_user_is_told_with_both_users() -> None:
    """As nobody, with a state folder of root's, as a volume may be that another container has filled."""
    if Path(sys.executable).resolve().is_relative_to("/root"):
        pytest.skip("nobody may enter /root, where the interpreter is")
    place = Path(tempfile.mkdtemp(prefix="casemate-volume-", dir="/var/tmp"))
    try:
        place.chmod(0o755)
        (place / "state" / "casemate").mkdir(parents=True, mode=0o755)
        (place / "home").mkdir()
        os.chown(place / "home", 65534, 65534)
        env = {"HOME": f"{place}/home", "XDG_STATE_HOME": f"{place}/state", "XDG_RUNTIME_DIR": f"{place}/home"}
        for words in (["doctor"], ["run", "-"], ["service"]):
            done = subprocess.run(
                [sys.executable, "-m", "casemate", *words], env={**env, "PATH": "/usr/bin:/bin"}, input="print(1)",
                user=65534, group=65534, extra_groups=[], capture_output=True, text=True, check=False, cwd="/",
            )  # fmt: skip
            said = done.stdout + done.stderr
            assert done.returncode not in (0, 1), said
            assert "belongs to the user 0, but casemate runs as the user 65534" in said
    finally:
        shutil.rmtree(place)
