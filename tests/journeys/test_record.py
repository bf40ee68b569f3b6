"""The record: two rows for each execution, however it ends, and no run without it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.contract import witness
from tests.records import rows

from casemate import InvalidArgument, Limits, RecordUnavailable, sync

ENDINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "ok": ("print(1)", {}),
    "failed": ("1 / 0", {}),
    "timeout": ("while True: pass", {"timeout": 0.3}),
    "out_of_memory": ("held = [bytes([1]) * (1 << 20) for _ in range(600)]",
                      {"limits": Limits(memory="64MiB", disk="1MiB")}),
    "killed": ("while True: print('x' * 1000)", {"limits": Limits(output=1000, full_output=5000)}),
}  # fmt: skip


@pytest.mark.parametrize("status", ENDINGS)
def test_each_way_of_ending_has_an_intent_and_an_outcome(audit: Path, sandbox: sync.Sandbox, status: str) -> None:
    code, arguments = ENDINGS[status]
    execution = sandbox.run(code, metadata={"ticket": 7}, **arguments)
    assert execution.status == status
    (first, intent), (second, outcome) = rows(audit)
    assert (first, second) == ("intent", "outcome")
    assert (intent["code"], intent["language"], intent["metadata"]) == (code, "python", {"ticket": "7"})
    assert outcome["status"] == status
    assert outcome["exit_code"] == execution.exit_code


def test_a_run_that_casemate_refuses_on_the_way_has_an_outcome_too(audit: Path, sandbox: sync.Sandbox) -> None:
    with pytest.raises(InvalidArgument):
        sandbox.run("print(1)", files={"big": bytes(2 << 20)}, limits=Limits(disk="1MiB"))
    (_, _), (kind, outcome) = rows(audit)
    assert (kind, outcome["status"], outcome["kind"]) == ("outcome", "error", "invalid")


def test_an_argument_that_is_wrong_from_the_start_leaves_no_row(audit: Path, sandbox: sync.Sandbox) -> None:
    with pytest.raises(InvalidArgument):
        sandbox.run("\0")
    assert rows(audit) == []


def test_the_secret_of_a_variable_is_not_in_the_record(audit: Path, sandbox: sync.Sandbox) -> None:
    sandbox.run("print(1)", env={"TOKEN": "hunter2hunter2"}, stdin="hunter2hunter2").raise_for_status()
    files = [path for path in audit.parent.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert files == []
    assert rows(audit)[0][1]["env_names"] == ["TOKEN"]


def test_a_record_that_is_gone_stops_new_runs(audit: Path, sandbox: sync.Sandbox) -> None:
    sandbox.run("print(1)").raise_for_status()
    os.rename(audit, audit.with_name("moved"))
    with pytest.raises(RecordUnavailable) as raised:
        sandbox.run("open('/workspace/output/ran', 'w')")
    assert raised.value.remediation
    assert witness.cells() == []
