"""Secrets of a session: as long as it lives, in every step, answer and file."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest
from tests.contract import witness
from tests.contract.programs_with_secrets import FAILED, LONG_ERRORS, MARKER, NAME, OF_MANY_KINDS, PRINTED, REVERSED, S
from tests.sessions.driver import Open
from tests.support.languages import every_language
from tests.support.whole import whole

from casemate import ApprovalRequest, Display, Done, ErrorEvent, InvalidArgument, Output, ResultEvent, Sandbox
from casemate.audit.log import AuditLog
from casemate.redaction.forms import forms_of

KEPT = {
    "python": "t = __import__('os').environ['API_TOKEN']",
    "node": "t = process.env.API_TOKEN",
    "shell": 't="$API_TOKEN"',
}
AS_JSON = {"python": KEPT["python"], "node": KEPT["node"], "shell": 't=$(printf \'"%s"\' "$API_TOKEN")'}
WRITTEN = {
    "python": "open('f.txt', 'w').write('a ' + t); open('raw', 'wb').write(b'\\0\\xff' + t.encode())",
    "node": "const fs = require('fs'); fs.writeFileSync('f.txt', 'a ' + t);"
    "fs.writeFileSync('raw', Buffer.concat([Buffer.from([0, 255]), Buffer.from(t)]))",
    "shell": 'printf "a %s" "$t" >f.txt; printf "\\0\\xff%s" "$t" >raw',
}
LATER = {  # something that a step leaves running says it, in two pieces, when the next one runs
    "python": """
import threading, time, sys, os
def say():
    while not os.path.exists('go'):
        time.sleep(0.01)
    t = os.environ['API_TOKEN']
    for part in (t[:9], t[9:] + '!\\n'):
        sys.stdout.write(part); sys.stdout.flush(); time.sleep(0.2)
    open('said', 'w').close()
threading.Thread(target=say).start()
""",
    "shell": """
( while [ ! -e go ]; do sleep 0.01; done
  printf %s "${API_TOKEN:0:9}"; sleep 0.2; printf "%s!\\n" "${API_TOKEN:9}"; sleep 0.2; touch said ) &
""",
}
GO = {
    "python": "import os, time\nopen('go', 'w').close()\nwhile not os.path.exists('said'): time.sleep(0.01)",
    "shell": "touch go; while [ ! -e said ]; do sleep 0.01; done",
}


@pytest.fixture(scope="module", params=["exec", "warm"])
def start(request: pytest.FixtureRequest) -> str:
    """Cells of both kinds."""
    return str(request.param)


@pytest.fixture(autouse=True)
def _has_the_secret(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    runner.run(sandbox.vault.set(NAME, S))


@every_language
async def test_every_step_sees_the_value_and_none_says_it(opened: Open, language: str) -> None:
    session = opened(language, secrets=[NAME])
    for _ in range(2):
        assert (await session.run(REVERSED[language])).stdout == f"{len(S)} {S[::-1]}\n"
        execution = await session.run(PRINTED[language])
        assert (execution.stdout, execution.text) == (f"{MARKER}\n", MARKER)
        assert S not in whole(execution)


@every_language
async def test_va_02_no_error_of_a_step_has_it(opened: Open, language: str) -> None:
    execution = await opened(language, secrets=[NAME]).run(FAILED[language])
    assert execution.status == "failed"
    assert MARKER in execution.text + (execution.error.traceback if execution.error else "")
    assert S not in whole(execution)
    assert json.dumps(S)[1:-1] not in whole(execution)


async def test_va_02_no_result_display_or_event_has_it(opened: Open) -> None:
    session = opened(secrets=[NAME])
    events = [event async for event in session.stream("import os; os.environ['API_TOKEN']")]
    events += [
        event async for event in session.stream("import os; {os.environ['API_TOKEN']: [os.environ['API_TOKEN']]}")
    ]
    events += [event async for event in session.stream(OF_MANY_KINDS)]
    events += [event async for event in session.stream("raise ValueError(os.environ['API_TOKEN'])")]
    assert S not in whole(events)
    assert [type(one) for one in events if not isinstance(one, Output)] == [
        ResultEvent, Done, ResultEvent, Done, Display, Done, ErrorEvent, Done,
    ]  # fmt: skip
    shown = [one.result.text for one in events if isinstance(one, Display | ResultEvent)]
    assert shown == [f"'{MARKER}'", f"{{'{MARKER}': ['{MARKER}']}}", "a picture"]


@every_language
async def test_no_answer_about_a_variable_has_it(opened: Open, language: str) -> None:
    session = opened(language, secrets=[NAME])
    await session.run(AS_JSON[language])
    assert await session.get("t") == MARKER
    assert S not in repr(await session.variables())
    assert S[:12] not in repr(await session.variables())
    await session.set("u", {"a": [S]} if language != "shell" else S)
    assert await session.get("u") == ({"a": [MARKER]} if language != "shell" else MARKER)


async def test_no_answer_that_is_spelt_in_escapes_has_it(opened: Open) -> None:
    session = opened("shell", secrets=[NAME])
    spelt = "".join(f"\\u{ord(one):04x}" if n % 2 else one for n, one in enumerate(S))
    await session.run(f"t='\"{spelt}\"'")
    assert await session.get("t") == MARKER


@every_language
async def test_va_04_a_variable_that_is_shown_cut_shows_nothing_of_it(opened: Open, language: str) -> None:
    session = opened(language, secrets=[NAME])
    made = {
        "python": "import os\nt = os.environ['API_TOKEN'] * 9\n"
        "for n in range(40): globals()[f'v{n}'] = ['x' * 70, 'y' * n + t]",
        "node": "const t = process.env.API_TOKEN.repeat(9)\n"
        "for (let n = 0; n < 40; n++) globalThis['v' + n] = ['x'.repeat(70), 'y'.repeat(n) + t]",
        "shell": 't="$API_TOKEN$API_TOKEN$API_TOKEN$API_TOKEN"\n'
        'for n in {10..49}; do printf -v v$n "%0${n}d$t$t" 0; done',
    }
    await session.run(made[language])
    told = {one.name: one.repr for one in await session.variables()}
    assert sum(text.count("…") for text in told.values()) >= 20
    assert not [text for text in told.values() if S[:4] in text or S[-4:] in text]


@every_language
async def test_va_07_its_files_are_redacted_or_withheld(opened: Open, language: str, tmp_path: Path) -> None:
    session = opened(language, secrets=[NAME])
    await session.run(KEPT[language])
    execution = await session.run(WRITTEN[language])
    assert {one.name: one.read_bytes() for one in execution.artifacts} == {"f.txt": f"a {MARKER}".encode()}
    assert [one.name for one in execution.skipped] == ["raw"]
    assert await session.files.read_text("f.txt") == f"a {MARKER}"
    assert (await session.files.download("f.txt", tmp_path / "f.txt")).read_text() == f"a {MARKER}"
    for read in (session.files.read_bytes("raw"), session.files.download("raw", tmp_path / "raw")):
        with pytest.raises(InvalidArgument, match="contains a secret"):
            await read
    assert not (tmp_path / "raw").exists()


@pytest.mark.parametrize("language", ["python", "shell"])
async def test_va_03_what_an_earlier_step_left_running_does_not_say_it(opened: Open, language: str) -> None:
    session = opened(language, secrets=[NAME])
    await session.run(LATER[language])
    events = [event async for event in session.stream(GO[language])]
    told = "".join(event.text for event in events if isinstance(event, Output))
    assert told == f"{MARKER}!\n"


async def test_a_step_ends_beside_text_that_takes_long_to_redact(opened: Open) -> None:
    session = opened(secrets=[NAME])
    half = len(S) // 2
    await session.run(f"import subprocess\nwriter = subprocess.Popen(['yes', {S[:half]!r} + '...' + {S!r}[2:]])")
    step = await session.run("print('x' * 300_000)", timeout=30)
    assert (step.status, len(step.stdout)) == ("ok", 300_001)


@every_language
async def test_va_17_it_is_hidden_also_when_it_has_been_deleted(sandbox: Sandbox, opened: Open, language: str) -> None:
    await sandbox.vault.set("BRIEF", "brief-secret-value")
    session = opened(language, secrets=["BRIEF"])
    program = PRINTED[language].replace(NAME, "BRIEF")
    assert (await session.run(program)).stdout == "[secret:BRIEF]\n"
    await sandbox.vault.delete("BRIEF")
    assert (await session.run(program)).stdout == "[secret:BRIEF]\n"
    await session.reset()
    assert (await session.run(program)).stdout == "[secret:BRIEF]\n"
    with pytest.raises(InvalidArgument, match="no secret BRIEF"):
        sandbox.session(language, secrets=["BRIEF"])


async def test_au_10_rows_of_its_steps_hold_none_of_it(sandbox: Sandbox, opened: Open) -> None:
    session = opened(secrets=[NAME])
    execution = await session.run(f"# {S}\nx = 1", metadata={"why": S})
    log = AuditLog(sandbox._log.path)
    details = [row.detail for row in log.tail(100) if row.execution_id == execution.id]
    log.close()
    assert len(details) == 2
    assert S not in "".join(details)
    assert MARKER in details[0]


async def test_other_sessions_have_none_of_it(opened: Open) -> None:
    await opened(secrets=[NAME]).run("import os; open('/tmp/t', 'w').write(os.environ['API_TOKEN'])")
    execution = await opened().run("import os; print('API_TOKEN' in os.environ, os.path.exists('/tmp/t'))")
    assert execution.stdout == "False False\n"


@every_language
async def test_va_11_the_supervisor_has_none_of_it_for_later_cells_to_inherit(
    sandbox: Sandbox, opened: Open, language: str
) -> None:
    values = {kind: os.urandom(20).hex() for kind in ("secret", "code", "input")}
    await sandbox.vault.set("UNREAD", values["secret"])
    session = opened(language, secrets=["UNREAD"])
    program = PRINTED[language].replace(NAME, "UNREAD")
    comment = "//" if language == "node" else "#"
    execution = await session.run(f"{program}\n{comment} {values['code']}", stdin=values["input"])
    assert execution.stdout == "[secret:UNREAD]\n"
    inside = {pid for server in witness.serving() for pid in witness.descendants(server)}
    assert any(witness.holds(pid, values["secret"].encode()) for pid in inside), "the control"
    above = witness.serving() + witness.supervisors()
    found = {(kind, witness.holds(pid, value.encode())) for kind, value in values.items() for pid in above}
    assert found == {(kind, False) for kind in values}


@pytest.mark.parametrize("language", ["python", "shell"])
async def test_va_16_a_request_for_approval_shows_none_of_it(tmp_path: Path, language: str) -> None:
    command = f"echo '{S}' $API_TOKEN"
    told: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> bool:
        told.append(request)
        return True

    policy = {"rules": [{"ask": "shell"}]}
    async with Sandbox(audit=tmp_path / "audit.db", policy=policy, approve=approve) as sandbox:
        await sandbox.vault.set(NAME, S)
        async with sandbox.session(language, secrets=[NAME]) as session:
            events = [event async for event in session.stream(f"!{command}" if language == "python" else command)]
        rows = sandbox._log.tail(100)
    assert len(told) == 1
    assert MARKER in told[0].arguments["command"]
    assert S not in whole((told, events, rows))
    assert [json.loads(row.detail)["decision"] for row in rows if row.kind == "decision"] == ["allowed"]
    assert "".join(event.text for event in events if isinstance(event, Output)).strip().startswith(MARKER)


async def test_a_reason_that_quotes_a_secret_is_told_and_recorded_without_it(tmp_path: Path) -> None:
    async def approve(request: ApprovalRequest) -> bool:
        return await request.deny(f"not with {S}") and False

    policy = {"rules": [{"ask": "shell"}]}
    async with Sandbox(audit=tmp_path / "audit.db", policy=policy, approve=approve) as sandbox:
        await sandbox.vault.set(NAME, S)
        async with sandbox.session("shell", secrets=[NAME]) as session:
            execution = await session.run("true")
        rows = sandbox._log.tail(100)
    details = [json.loads(row.detail) for row in rows if row.kind == "decision"]
    assert [one["reason"] for one in details if one["decision"] == "denied"] == [f"not with {MARKER}"]
    assert execution.status == "denied"
    assert S not in repr((execution, rows))


BEGUN_AND_FAILED = {
    "python": "import os; print('so:', os.environ['API_TOKEN'][:9], end=''); raise ValueError",
    "node": "process.stdout.write('so: ' + process.env.API_TOKEN.slice(0, 9)); throw new Error()",
    "shell": 'printf "so: %s" "${API_TOKEN:0:9}"; (exit 3)',
}


@every_language
async def test_va_04_a_step_that_fails_leaves_no_half_of_it(opened: Open, language: str) -> None:
    execution = await opened(language, secrets=[NAME]).run(BEGUN_AND_FAILED[language])
    assert (execution.status, execution.stdout) == ("failed", f"so: {MARKER}")


@pytest.mark.parametrize("n", [0, 14])
@pytest.mark.parametrize("language", LONG_ERRORS)
async def test_va_04_an_error_that_is_cut_shows_nothing_of_it(opened: Open, language: str, n: int) -> None:
    execution = await opened(language, secrets=[NAME]).run(LONG_ERRORS[language].replace("{n}", str(n)))
    assert execution.error is not None
    for text in (execution.error.value, execution.error.traceback):
        left = text.replace(MARKER, "")
        assert "…" in left
        assert not [S[at : at + 4] for at in range(len(S) - 3) if S[at : at + 4] in left]


async def test_va_04_no_name_key_or_id_that_is_cut_shows_a_part_of_it(opened: Open) -> None:
    session = opened(secrets=[NAME])
    await session.run(
        "import os\nt = os.environ['API_TOKEN']\nu = {'y' * 30 + t: object()}\n"
        "for n in range(181, 189): globals()['x' * n + t] = 1"
    )
    with pytest.raises(InvalidArgument) as refused:
        await session.get("u")
    events = [event async for event in session.stream("display(1, display_id='x' * 185 + t)")]
    told = whole(([one.name for one in await session.variables()], refused.value.message, events))
    assert MARKER in told
    assert "…" in told
    assert S[:5] not in told


async def test_what_waits_in_the_background_for_the_rest_of_it_is_told_at_the_end(opened: Open) -> None:
    session = opened(secrets=[NAME])
    await session.run(
        "import subprocess\nheld = subprocess.Popen(['sh', '-c', 'while ! [ -e /workspace/go ]; do sleep 0.01; done; "
        'printf "so: tr0"; : > /workspace/gone; sleep 60\'])'
    )
    events = [
        event
        async for event in session.stream(
            "import os, time\nopen('/workspace/go', 'w').close()\n"
            "while not os.path.exists('/workspace/gone'): time.sleep(0.01)\ntime.sleep(0.2)\nos.kill(os.getpid(), 9)"
        )
    ]
    assert "".join(one.text for one in events if isinstance(one, Output) and one.background) == "so: tr0"
    assert isinstance(events[-1], Done)


async def test_a_file_that_markers_make_too_large_to_return_is_refused(
    sandbox: Sandbox, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casemate.sessions.files._MOST_READ", 10_000)
    await sandbox.vault.set("BRIEF", "password")
    session = opened(secrets=["BRIEF"])
    for times in (500, 1000):
        await session.run(f"open('f{times}.txt', 'w').write('password' * {times})")
    assert await session.files.read_bytes("f500.txt") == b"[secret:BRIEF]" * 500
    with pytest.raises(InvalidArgument, match="secrets replaced"):
        await session.files.read_bytes("f1000.txt")


async def test_what_finds_a_large_secret_is_not_made_in_the_event_loop(
    sandbox: Sandbox, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_in: list[threading.Thread] = []

    def watched(value: str) -> frozenset[bytes]:
        made_in.append(threading.current_thread())
        return forms_of(value)

    monkeypatch.setattr("casemate.redaction.redaction.forms_of", watched)
    session = opened(secrets=[NAME])
    assert (await session.run(PRINTED["python"])).stdout == f"{MARKER}\n"
    assert [one.name for one in await session.files.list()] == ["output"]
    in_sessions = len(made_in)
    assert (await sandbox.run(PRINTED["python"], secrets=[NAME])).stdout == f"{MARKER}\n"
    assert 0 < in_sessions < len(made_in)
    assert threading.current_thread() not in made_in
