"""A policy that is proposed from what a program did allows just that, with nobody to ask."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.brokered.conftest import Opened, Witness

from casemate import ApprovalRequest, NotFound

PROGRAM = """
import socket, sys
from mcptools.w.note import run
for text in sys.stdin.read().split():
    try:
        run(text=text)
    except Exception as error:
        print(text, type(error).__name__)
try:
    socket.create_connection(("bad.test", 443), 20).recv(1)
except OSError:
    pass
"""


def approve(request: ApprovalRequest) -> bool:
    return "bad" not in str(request.arguments)


async def test_what_a_person_allowed_becomes_a_policy(opened: Opened, witness: Witness, tmp_path: Path) -> None:
    async with opened(approve=approve) as sandbox:
        first = await sandbox.run(PROGRAM, stdin="one two bad")
        assert first.ok, first.text
        proposal = await sandbox.audit.propose(first.id)
        [program] = await sandbox.audit.crossings()
        with pytest.raises(NotFound):
            await sandbox.audit.propose("0" * 32)
    used = {(use.name, use.decision) for use in program.uses}
    assert used == {("w.note", "allowed"), ("w.note", "denied"), ("bad.test:443", "denied")}
    assert (program.program, program.runs, program.run) == ("import socket, sys", 1, first.id)
    policy = tmp_path / "proposed.yaml"
    policy.write_text(proposal.yaml)
    before = len(witness.calls)
    async with opened(policy=policy) as sandbox:
        second = await sandbox.run(PROGRAM, stdin="two bad one three")
        chart = await sandbox.audit.chart(5)
    assert [call[1]["text"] for call in witness.calls[before:]] == ["two", "one"]
    assert [line.split()[0] for line in second.stdout.splitlines()] == ["bad", "three"]
    assert [(one.host, one.decision) for one in second.crossings] == [("bad.test", "denied")]
    assert sum(one.by_status.get("ok", 0) for one in chart) == 2
    assert len(chart) == 5
