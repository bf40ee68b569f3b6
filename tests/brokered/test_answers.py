"""What is sent to tools is what was shown, and what they answer takes a bounded part of the host's memory."""

from __future__ import annotations

import pytest
from tests.brokered.conftest import Opened, Witness
from tests.brokered.test_calls import RAW, told
from tests.support.approvers import answering

from casemate import ApprovalRequest

RULES = {"rules": [{"allow": "tool", "server": "w", "tool": "big", "arguments": "any"}]}
CODE = """
line = json.dumps({"do": "call", "server": "w", "tool": "big", "arguments": {"number": 30e6}}).encode() + b"\\n"
opened = []
for _ in range(6):
    opened.append(socket.create_connection(("tools.casemate.internal", 7), 30))
    opened[-1].sendall(line)
    opened[-1].recv(1, socket.MSG_PEEK)  # it has its answer, and does not read it
said = []
for one in opened:
    answer = json.loads(one.makefile("rb").readline())
    said.append("ok" if answer["ok"] else answer["kind"])
print(json.dumps([said, call("big", number=30e6)["ok"]]))
"""


@pytest.mark.full
async def test_answers_that_are_not_read_make_room_for_no_more(opened: Opened) -> None:
    async with opened(policy=RULES) as sandbox:
        said, afterwards = told(await sandbox.run(RAW + CODE))
    assert said == ["ok"] * 4 + ["limit"] * 2
    assert afterwards is True


@pytest.mark.parametrize("number", ["1e16", "-0.0", "1e21", "5e-324"])
async def test_a_number_is_sent_as_it_was_shown(opened: Opened, witness: Witness, number: str) -> None:
    seen: list[ApprovalRequest] = []
    code = f'raw = b\'{{"do":"call","server":"w","tool":"table","arguments":{{"n":{number}}}}}\'\n'
    async with opened(approve=answering(seen)) as sandbox:
        assert told(await sandbox.run(RAW + code + "print(json.dumps(ask(None, raw)['ok']))")) is True
    assert witness.calls == [("table", {"n": float(number)})]
    assert seen[0].arguments == {"n": float(number)}


async def test_a_rule_about_reading_resources_allows_no_tool_of_that_name(opened: Opened, witness: Witness) -> None:
    rules = {"rules": [{"allow": "tool", "server": "w", "tool": "resources/read", "arguments": "any"}]}
    async with opened(policy=rules) as sandbox:
        answer = told(await sandbox.run(RAW + "print(json.dumps(call('resources/read', uri='x')))"))
    assert answer["kind"] == "unknown"
    assert witness.calls == []


FLOOD = """
sockets = []
for _ in range(40):
    one = socket.create_connection(("tools.casemate.internal", 7), 30)
    sockets.append(one)
    try:
        one.sendall(b"x" * 900_000)
    except OSError:
        pass
said = []
for one in sockets:
    one.settimeout(1)
    try:
        said.append(json.loads(one.makefile("rb").readline())["kind"])
    except TimeoutError:
        said.append("waits")
for one in sockets:
    one.close()
print(json.dumps([said.count("waits"), said.count("limit"), call("big", number=3)["ok"]]))
"""


@pytest.mark.full
async def test_lines_that_are_begun_on_many_connections_take_a_bounded_part_of_the_host(opened: Opened) -> None:
    async with opened(policy=RULES) as sandbox:
        waiting, refused, afterwards = told(await sandbox.run(RAW + FLOOD))
    assert waiting * 900_000 <= 16 << 20
    assert refused == 40 - waiting
    assert afterwards is True


@pytest.mark.full
@pytest.mark.parametrize(
    ("language", "code"),
    [("python", "import mcptools\nprint(mcptools.search('zebra'))"), ("shell", "tool search zebra; tool list")],
)
async def test_a_search_names_the_servers_that_could_not_be_reached(opened: Opened, language: str, code: str) -> None:
    async with opened() as sandbox:
        await sandbox.tools.add("broken", {"command": "/nowhere/at-all"})
        execution = await sandbox.run(code, language=language)
        assert "No tool fits" in execution.stdout
        assert "broken cannot be reached, so its tools are not among these: the server 'broken': " in execution.stdout
        assert "its command cannot be started" in execution.stdout
        assert "broken cannot be reached" in await sandbox.tools.search("zebra")
