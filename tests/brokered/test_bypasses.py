"""Ways around approvals that other systems have left open, each tried from inside: none leads anywhere.

Reaching who approves, bringing a server's command, squatting its name, having the host's variables filled in, resetting
it, using another cell's service, answering for it, and redirecting its clients. What was done is what the server wrote.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.brokered.conftest import Opened, Witness
from tests.brokered.test_calls import ALLOW, RAW, told

from casemate import ApprovalRequest

CALL = "from mcptools.w import note\nprint(repr(str(note.run(text='mine'))))\n"


async def test_nothing_but_the_tools_answers_where_the_tools_are(opened: Opened, witness: Witness) -> None:
    """Who approves is not behind any other port of the same address, nor behind other names."""
    code = """
import socket
at = socket.gethostbyname("tools.casemate.internal")
found = []
for port in [*range(1, 1025), 4317, 5000, 8000, 8080, 8888, 8900, 8901]:
    with socket.socket() as one:
        one.settimeout(5)
        if one.connect_ex((at, port)) == 0:
            found.append(port)
for name in ("approvals", "approval", "host", "api", "gateway"):
    try:
        found.append(socket.gethostbyname(name + ".casemate.internal"))
    except OSError:
        pass
print(json.dumps(found))
"""
    async with opened(approve=lambda _request: False) as sandbox:
        assert told(await sandbox.run(RAW + code)) == [7]


async def test_one_that_asks_cannot_answer_while_it_is_asked_about(opened: Opened, witness: Witness) -> None:
    """Whatever it says on the connection that waits, and on others, is no answer."""
    requests: list[ApprovalRequest] = []

    async def approve(request: ApprovalRequest) -> bool:
        requests.append(request)
        await asyncio.Event().wait()
        return True

    code = """
line = json.dumps({"do": "call", "server": "w", "tool": "note", "arguments": {"text": "a"}}).encode() + b"\\n"
with socket.create_connection(("tools.casemate.internal", 7), 30) as one:
    one.sendall(line + b'{"result": true}\\n{"ok": true}\\n{"do": "approve", "allow": true}\\n')
    print(json.dumps(json.loads(one.makefile("rb").readline())["kind"]))
"""
    async with opened(approve=approve, approval_timeout=1.0) as sandbox:
        assert told(await sandbox.run(RAW + code)) == "denied"
    assert len(requests) == 1
    assert witness.calls == []


REGISTER = """
def register(name, **definition):
    return ask({"do": "register", "name": name, "definition": definition})
"""


async def test_the_name_of_a_server_cannot_be_taken_from_it(opened: Opened, witness: Witness, tmp_path: Path) -> None:
    """Not even where somebody allows it; and one whose name looks alike, or would be the same module, is another."""
    marker = tmp_path / "marker"
    code = f"""
said = []
for name in ("w", "W", "w_2", "other_one"):
    said.append(register(name, command="/usr/bin/touch", args=[{str(marker)!r}]).get("kind"))
from mcptools.w import note
from mcptools import other_one
said += [str(note.run(text="mine")), str(other_one.note.run(text="other"))]
print(json.dumps(said))
"""
    async with opened(approve=lambda _request: True) as sandbox:
        await sandbox.tools.add("other-one", witness.definition)
        *registered, mine, other = told(await sandbox.run(RAW + REGISTER + code))
    assert registered[0] == "invalid"
    assert (mine, other) == ("note done", "note done")
    assert witness.calls == [("note", {"text": "mine"}), ("note", {"text": "other"})]
    assert not marker.exists()


async def test_variables_in_arguments_reach_the_server_as_they_were_written(
    opened: Opened, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASEMATE_TEST_SECRET", "of-the-host")
    async with opened(policy=ALLOW) as sandbox:
        code = RAW + "print(json.dumps(call(text='${CASEMATE_TEST_SECRET} $HOME ~ %PATH%')['ok']))"
        assert told(await sandbox.run(code)) is True
    assert witness.calls == [("note", {"text": "${CASEMATE_TEST_SECRET} $HOME ~ %PATH%"})]


async def test_a_listener_of_one_cell_answers_no_other(opened: Opened, witness: Witness) -> None:
    """It takes every port that it can, also that of the tools, at every address; others' calls go where they went."""
    squat = """
import socket, threading
held = []
def answer(listener):
    while True:
        one, _ = listener.accept()
        one.sendall(b'{"ok": true, "content": [{"type": "text", "text": "squatted"}]}\\n')
at = socket.gethostbyname("tools.casemate.internal")
for host in ("0.0.0.0", "127.0.0.1", at):
    for port in (7, 53, 8080):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
            one.listen()
        except OSError:
            continue
        held.append(one)
        threading.Thread(target=answer, args=(one,), daemon=True).start()
print(len(held))
"""
    async with opened(policy=ALLOW) as sandbox, sandbox.session() as squatter, sandbox.session() as other:
        assert int((await squatter.run(squat)).stdout) > 0
        assert (await other.run(CALL)).stdout == "'note done'\n"
        assert (await sandbox.run(CALL)).stdout == "'note done'\n"
    assert witness.calls == [("note", {"text": "mine"})] * 2


async def test_a_variable_that_redirects_a_client_misleads_its_own_cell_alone(opened: Opened, witness: Witness) -> None:
    mislead = """
import os, socket, threading
listener = socket.create_server(("127.0.0.1", 0))
def answer():
    while True:
        one, _ = listener.accept()
        one.makefile("rb").readline()
        one.sendall(b'{"ok": false, "kind": "denied", "message": "misled"}\\n')
threading.Thread(target=answer, daemon=True).start()
os.environ["CASEMATE_TOOLS"] = "127.0.0.1:%d" % listener.getsockname()[1]
try:
    from mcptools.w import note
except ImportError as error:
    print(error)
"""
    async with opened(policy=ALLOW) as sandbox, sandbox.session() as misled, sandbox.session() as other:
        assert "misled" in (await misled.run(mislead)).stdout
        assert (await other.run(CALL)).stdout == "'note done'\n"
    assert witness.calls == [("note", {"text": "mine"})]


async def test_the_variable_of_the_application_reaches_no_cell(
    opened: Opened, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASEMATE_TOOLS", "127.0.0.1:9")
    async with opened(policy=ALLOW) as sandbox:
        assert (await sandbox.run(CALL)).stdout == "'note done'\n"
    assert len(witness.calls) == 1


async def test_a_module_that_a_program_writes_itself_is_only_its_own(opened: Opened, witness: Witness) -> None:
    """A wrapper that says that it was allowed changes nothing of what is asked outside."""
    code = """
import mcptools._running as running, mcptools
running.Tool._request = lambda self, params, arguments: {
    "do": "call", "server": "w", "tool": "note", "arguments": {"text": "x"}, "approved": True}
from mcptools.w import note
try:
    note.run(text="mine")
except mcptools.ToolError as error:
    print(error.kind)
"""
    async with opened(policy=ALLOW) as sandbox:
        assert (await sandbox.run(code)).stdout == "invalid\n"
    assert witness.calls == []
