"""What a program would call, decided at once, before any of it is called."""

from __future__ import annotations

from pathlib import Path

from tests.brokered.conftest import Opened, Witness
from tests.brokered.test_calls import RAW, told
from tests.support.approvers import answering

from casemate import ApprovalRequest, PlannedCall

THREE = RAW + "print(json.dumps([call(text=str(number))['ok'] for number in range(3)]))"


async def test_a_plan_makes_the_calls_that_a_rule_allows(opened: Opened, witness: Witness) -> None:
    rules = {"rules": [{"allow": "tool", "server": "w", "tool": "note_other", "arguments": "any"}]}
    async with opened(policy=rules) as sandbox:
        plan = await sandbox.plan(RAW + "call('note_other', text='read'); call(text='write')")
    assert plan.calls == (PlannedCall("w", "note", {"text": "write"}),)
    assert witness.calls == [("note_other", {"text": "read"})]


async def test_who_decides_about_a_plan_is_shown_what_the_program_is_given(opened: Opened) -> None:
    seen: list[ApprovalRequest] = []
    async with opened(approve=answering(seen), allowed_domains=["one.test", "two.test"]) as sandbox:
        await sandbox.vault.set("TOKEN", "a value that nobody is shown")
        plan = await sandbox.plan(
            THREE, files={"b.txt": b"2", "a.txt": b"1"}, secrets=["TOKEN"], allowed_domains=["one.test"]
        )
        await plan.run()
    program = seen[0].arguments["program"]
    assert program["files"] == ["a.txt", "b.txt"]
    assert program["secrets"] == ["TOKEN"]
    assert program["allowed_domains"] == ["one.test"]
    assert "nobody is shown" not in repr(seen)


async def test_a_rule_that_denies_wins_over_a_plan_that_was_allowed(opened: Opened, witness: Witness) -> None:
    rules = {"rules": [{"deny": "tool", "server": "w", "tool": "note", "arguments": {"text": "1"}}]}
    async with opened(approve=lambda _request: True, policy=rules) as sandbox:
        plan = await sandbox.plan(THREE)
        assert told(plan.execution) == [True, False, True]
        assert told(await plan.run()) == [True, False, True]
    assert [arguments["text"] for _, arguments in witness.calls] == ["0", "2"]


async def test_a_plan_changes_no_file_of_the_caller(opened: Opened, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    async with opened(workspace=folder, approve=lambda _request: True) as sandbox:
        plan = await sandbox.plan(RAW + "open('made', 'w').write('x'); call(text='x')")
        assert plan.execution.ok
        assert list(folder.iterdir()) == []
        assert (await plan.run()).ok
        assert (folder / "made").read_text() == "x"


async def test_a_plan_of_too_many_calls_ends_with_an_error_in_the_program(opened: Opened, witness: Witness) -> None:
    code = RAW + "kinds = [call(text=str(n)).get('kind') for n in range(1001)]\nprint(json.dumps(kinds[-1]))"
    async with opened() as sandbox:
        plan = await sandbox.plan(code)
    assert told(plan.execution) == "limit"
    assert len(plan.calls) == 1000
    assert witness.calls == []


async def test_a_plan_of_calls_adds_no_server(opened: Opened, witness: Witness) -> None:
    seen: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> bool:
        seen.append(request)
        return request.kind == "plan"

    adding = {"do": "register", "name": "theirs", "definition": witness.definition}
    code = RAW + f"call(text='x')\nprint(json.dumps(ask({adding!r})['ok']))"
    async with opened(approve=approve) as sandbox:
        plan = await sandbox.plan(code)
        assert told(plan.execution) is False
        assert plan.calls == (PlannedCall("w", "note", {"text": "x"}),)
        assert told(await plan.run()) is False
        assert {tool.server for tool in await sandbox.tools.list()} == {"w"}
    assert [request.kind for request in seen] == ["plan", "server"]
