"""Cells share the thread of the connections: nothing that one of them asks for keeps the others' calls waiting."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.brokered.conftest import Opened, Witness
from tests.brokered.test_calls import RAW, told

from casemate.approvals.requester import Requester
from casemate.model.approval import Question

MAX_WAIT = 60.0  # seconds
ALLOWED = ("note", "fail", "steps")
RULES = {"rules": [{"allow": "tool", "server": "w", "tool": one, "arguments": "any"} for one in ALLOWED]}

# Sends requests without a pause, and reads the responses.
FLOOD = """
import time
one = socket.create_connection(("tools.casemate.internal", 7), 30)
request = json.dumps({request!r}).encode() + b"\\n"
def drain():
    while one.recv(1 << 20):
        print("told", flush=True)
        while one.recv(1 << 20):
            pass
threading.Thread(target=drain, daemon=True).start()
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    one.sendall(request * 1000)
"""
CALL = "print(json.dumps(call(text='x')['ok']))"
# Answers, progress and a definition of a hundred thousand characters and more.
LARGE = """
text = "x" * 100_000
more = {"command": "/bin/true", "args": [text[:50_000]] * 3}
print(json.dumps([
    call("fail", text=text)["kind"],
    len(call("note", text=text)["content"]),
    ask({"do": "register", "name": "more", "definition": more})["kind"],
]))
with socket.create_connection(("tools.casemate.internal", 7), 30) as one:
    given = {"do": "call", "server": "w", "tool": "steps", "arguments": {"number": 2, "text": text}, "progress": True}
    one.sendall(json.dumps(given).encode() + b"\\n")
    for line in one.makefile("rb"):
        if b"content" in line:
            break
"""


@pytest.mark.parametrize(
    "request_", [{"server": "nobody", "arguments": {}}, {"server": "w", "arguments": {"wrong": 1}}], ids=str
)
async def test_a_cell_that_asks_without_a_pause_keeps_no_other_waiting(
    opened: Opened, witness: Witness, request_: dict[str, Any]
) -> None:
    """What is asked can be answered without waiting for anything, so nothing but fairness interrupts it."""
    flood = FLOOD.format(request={"do": "call", "tool": "note", **request_}, seconds=3 * MAX_WAIT)
    async with opened(policy=RULES) as sandbox:
        assert told(await sandbox.run(RAW + CALL))
        begun = asyncio.Event()

        async def greedy() -> None:
            async for event in sandbox.stream("import threading\n" + RAW + flood, timeout=None):
                if getattr(event, "text", "").startswith("told"):
                    begun.set()

        flooding = asyncio.create_task(greedy())
        try:
            async with asyncio.timeout(MAX_WAIT):
                await begun.wait()
                assert told(await sandbox.run(RAW + CALL))
        finally:
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
    assert [name for name, _ in witness.calls] == ["note", "note"]


async def test_what_is_large_is_looked_through_in_other_threads(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    large: dict[str, set[str]] = {"redacted": set(), "decide": set()}
    redact, decide = Requester.redact, Requester.decide

    def noting(requester: Requester, value: Any) -> Any:
        if len(str(value)) > 100_000:
            large["redacted"].add(threading.current_thread().name)
        return redact(requester, value)

    def deciding(requester: Requester, question: Question, *, inline: bool = False) -> Any:
        if len(str(question.arguments)) > 100_000:
            large["decide"].add(threading.current_thread().name)
        return decide(requester, question, inline=inline)

    monkeypatch.setattr(Requester, "redact", noting)
    monkeypatch.setattr(Requester, "decide", deciding)
    async with opened(policy=RULES) as sandbox:
        execution = await sandbox.run(RAW + LARGE)
    assert told(execution) == ["tool", 1, "denied"]
    assert all(large.values())
    assert "casemate-tools" not in large["redacted"] | large["decide"]
