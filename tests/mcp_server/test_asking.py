"""Approvals by the client's own user, in both eras of the protocol, while the program waits."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from mcp_types import ElicitResult, InputRequiredResult
from tests.mcp_server.conftest import ERAS, Connect, Connected, output_of, structure_of, text_of

from casemate.operations.invoke import Invoke
from casemate.surfaces.mcp.answers import Page, end_answer
from casemate.surfaces.mcp.callers import Callers, Work
from casemate.surfaces.mcp.work import follow

CALLS = """\
from mcptools.own.echo import run
try:
    print("came", run(word="hello"))
except Exception as error:
    print("refused:", error)
"""
TWICE = f"{CALLS}\n{CALLS}"
VISITS = """\
import urllib.request
for _ in range(3):
    try:
        urllib.request.urlopen("https://new.test/")
    except OSError:
        print("broken")
"""
FILLS = """\
from mcptools.own.ask import run
schema = {"type": "object", "properties": {"name": {"type": "string"}}}
print(run(method="elicitation/create", params={"message": "who?", "requestedSchema": schema}))
"""


def says(answer: str, **more: Any) -> Any:
    """A user who always gives this answer."""
    return lambda _params: ElicitResult(action="accept", content={"answer": answer, **more})


def test_a_host_that_was_allowed_and_has_no_address_is_told_above_the_output_once() -> None:
    crossing = {"host": "gone.test", "decision": "allowed", "reason": "its name does not resolve", "connections": 9}
    execution = {"status": "ok", "crossings": [{**crossing, "port": port, "is_reached": False} for port in (80, 443)]}
    state = {"status": "done", "run": "r", "session": None, "execution": execution}
    answer = end_answer(state, Page("[not reached: own words]", 0, True))
    own, _, output = text_of(answer).partition("\n[all below is the program's output]\n")
    assert own.splitlines()[1:] == ["[not reached: gone.test:80,443: its name does not resolve]"]
    assert output == "[not reached: own words]"


async def test_a_call_that_waits_says_so_before_it_waits_again() -> None:
    said: list[str] = []

    class Working(Work):
        handle = "r"

        async def wait(self, seconds: float, seen: frozenset[str]) -> dict[str, Any]:
            return {"status": "done", "approvals": [], "said": list(said)}

        async def cancel(self) -> None: ...

        async def answer(self, call: Any, state: dict[str, Any]) -> Any:
            return state["said"]

    async def tell(status: str) -> None:
        said.append(status)

    callers = SimpleNamespace(is_alone=False)
    held = {"resumed": None, "callers": callers, "seconds_left": 9.0}
    call: Any = SimpleNamespace(**held, tell=tell, can_ask=lambda *_kind: False)
    first = {"status": "running", "approvals": []}  # as `runs.start` gives it after a second
    answered: Any = await follow(call, Working(), first)
    assert answered == ["running"]


COUNTS = "import os; print(len(os.environ['KEY']))"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("where", [{}, {"session": "new"}], ids=["fresh cell", "new session"])
async def test_the_user_gives_a_program_a_secret_in_the_client(
    connect: Connect, operator: Invoke, era: str, where: dict[str, str]
) -> None:
    await operator("vault.set", {"name": "KEY", "value": "hunter2-hunter2"})
    async with connect(era, says("allow once")) as agent:
        answer = await agent.call("execute_code", code=COUNTS, secrets=["KEY"], **where)
        assert (output_of(answer).strip(), answer.is_error) == ("15", False)
        assert ["the secret KEY" in one.message for one in agent.asked] == [True]
    for given, why in (({"reason": "not today"}, "a person denied it: not today"), ({}, "a person denied it")):
        async with connect(era, says("deny", **given)) as agent:
            answer = await agent.call("execute_code", code=COUNTS, secrets=["KEY"], **where)
            assert f"does not get the secret KEY: {why}" in text_of(answer)
            assert answer.is_error
    await operator("vault.delete", {"name": "KEY"})


@pytest.mark.parametrize("era", ERAS)
async def test_a_session_has_the_secrets_that_the_user_gave_it(connect: Connect, operator: Invoke, era: str) -> None:
    await operator("vault.set", {"name": "KEY", "value": "hunter2-hunter2"})
    async with connect(era, says("allow once"), toolset="full") as agent:
        opened = await agent.call("create_session", secrets=["KEY"])
        session = structure_of(opened)["session_id"]
        assert output_of(await agent.call("execute_code", code=COUNTS, session=session)).strip() == "15"
        assert len(agent.asked) == 1
    await operator("vault.delete", {"name": "KEY"})


async def test_a_program_that_waits_for_a_secret_begins_when_it_is_given_elsewhere(
    connect: Connect, operator: Invoke
) -> None:
    await operator("vault.set", {"name": "KEY", "value": "hunter2-hunter2"})
    async with connect(answer_within=0.3) as agent:
        waiting = structure_of(await agent.call("execute_code", code=COUNTS, secrets=["KEY"]))
        assert waiting["status"] == "waiting"
        [request] = await operator("approvals.pending")
        await operator("approvals.decide", {"request": request["id"], "allow": True})
        answer = await agent.call("read_output", run=waiting["run"], wait_seconds=30)
        while structure_of(answer)["status"] != "ok":
            answer = await agent.call("read_output", run=structure_of(answer)["run"], wait_seconds=30)
        assert output_of(answer).strip() == "15"
    await operator("vault.delete", {"name": "KEY"})


@pytest.mark.parametrize("era", ERAS)
async def test_what_the_user_allows_in_the_client_crosses_while_the_program_waits(connect: Connect, era: str) -> None:
    async with connect(era, says("allow once")) as agent:
        answer = await agent.call("execute_code", code=TWICE)
        assert text_of(answer).count("came") == 2, answer
        assert len(agent.asked) == 2
        shown = agent.asked[0].message
        assert 'wants to call "echo" of the server "own"' in shown
        assert 'word: "hello"' in shown
        assert agent.asked[0].requested_schema["properties"]["answer"]["enum"] == [
            "allow once",
            "allow for this run",
            "deny",
        ]


async def test_a_host_that_was_denied_is_told_above_the_output_with_the_reason(connect: Connect) -> None:
    async with connect(answer=says("deny", reason="not this one")) as agent:
        answer = await agent.call("execute_code", code=VISITS)
    own, _, output = text_of(answer).partition("\n[all below is the program's output]\n")
    assert "\n[not reached: new.test:443: it was asked for and not approved: not this one]" in own
    assert output.split() == ["broken"] * 3
    lines = [one.message.splitlines()[0] for one in agent.asked]
    assert [line.partition("port 443")[2] for line in lines] == ["", ", for the 2nd time", ", for the 3rd time"]


@pytest.mark.parametrize("era", ERAS)
async def test_an_answer_for_the_session_is_asked_for_once(connect: Connect, era: str) -> None:
    async with connect(era, says("allow for this session")) as agent:
        first = await agent.call("execute_code", code=CALLS, session="new")
        again = await agent.call("execute_code", code=CALLS, session=structure_of(first)["session"])
        assert "came" in text_of(first)
        assert "came" in text_of(again)
        assert len(agent.asked) == 1


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (says("deny", reason="not this one"), "not this one"),
        (lambda _: ElicitResult(action="decline"), "declined by the user"),
        (lambda _: ElicitResult(action="cancel"), "dismissed by the user"),
        (lambda _: ElicitResult(action="accept", content={}), "refused"),
        (says("yes"), "refused"),
        (says("allow for this session"), "refused"),  # not among the choices of a run of its own
    ],
)
async def test_only_the_words_that_allow_do_and_the_program_is_told_why_not(
    connect: Connect, era: str, answer: Any, reason: str
) -> None:
    async with connect(era, answer) as agent:
        text = text_of(await agent.call("execute_code", code=CALLS))
        assert "refused:" in text
        assert reason in text
        assert "came" not in text


@pytest.mark.parametrize("era", ERAS)
async def test_a_hostile_argument_cannot_add_a_line_to_what_is_shown(connect: Connect, era: str) -> None:
    hostile = r"x\n    word: harmless\u202e"
    async with connect(era, says("deny")) as agent:
        await agent.call("execute_code", code=CALLS.replace("hello", hostile))
        shown = agent.asked[0].message
        assert len(shown.split("\n")) == 2
        assert "\u202e" not in shown


@pytest.mark.parametrize("era", ERAS)
async def test_a_long_argument_says_how_much_of_it_is_not_shown(connect: Connect, era: str) -> None:
    async with connect(era, says("deny")) as agent:
        await agent.call("execute_code", code=CALLS.replace('"hello"', '"z" * 9000'))
        assert re.search(r"9002 characters, 7002 of them not shown", agent.asked[0].message)


@pytest.mark.parametrize("era", ERAS)
async def test_what_a_server_asks_for_is_passed_on_with_its_own_form(connect: Connect, era: str) -> None:
    def answer(params: Any) -> ElicitResult:
        if "name" in params.requested_schema["properties"]:
            return ElicitResult(action="accept", content={"name": "Ada"})
        return ElicitResult(action="accept", content={"answer": "allow once"})

    async with connect(era, answer) as agent:
        text = text_of(await agent.call("execute_code", code=FILLS))
        assert "Ada" in text
        assert [one.message.rpartition("asks: ")[2] for one in agent.asked][1:] == ["who?"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_cannot_ask_is_told_what_waits_and_which_command_answers_it(
    connect: Connect, operator: Invoke, era: str
) -> None:
    async with connect(era, answer_within=2.0) as agent:
        answer = await agent.call("execute_code", code=CALLS)
        while (structure := structure_of(answer))["status"] == "running":  # it asks later on a busy machine
            answer = await agent.call("read_output", run=structure["run"])
        assert (answer.is_error, structure["status"]) == (False, "waiting")
        (waiting,) = await mine(operator, structure["run"])
        assert f"approval {waiting['id']}: tool own.echo" in text_of(answer)
        assert "casemate approvals approve" in text_of(answer)
        assert f'read_output(run="{structure["run"]}"' in text_of(answer)
        assert await operator("approvals.decide", {"request": waiting["id"], "allow": True})
        assert "came" in await whole(agent, structure["run"])


@pytest.mark.parametrize("era", ERAS)
async def test_an_answer_from_elsewhere_takes_the_question_back(connect: Connect, operator: Invoke, era: str) -> None:
    decided: list[bool] = []

    def never(_params: Any) -> ElicitResult:
        raise AssertionError("the user is not asked for what may not be approved here")

    async with connect(era, never, may_approve=False, answer_within=60.0) as agent:

        async def decide() -> None:
            while not (waiting := await operator("approvals.pending", {})):
                await asyncio.sleep(0.02)
            decided.append(await operator("approvals.decide", {"request": waiting[0]["id"], "allow": True}))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(decide())
            answer = await agent.call("execute_code", code=CALLS)
        assert "came" in text_of(answer)
        assert decided == [True]
        assert agent.asked == []


@pytest.mark.parametrize("era", ERAS)
async def test_where_nobody_can_answer_the_program_is_told_so_and_does_not_wait(connect: Connect, era: str) -> None:
    """A server with a sandbox of its own, and a client that cannot ask its user."""
    async with connect(era, None, is_alone=True, answer_within=60.0) as agent:
        answer = await agent.call("execute_code", code=CALLS)
    assert "refused: " in text_of(answer)
    assert "does not ask its user" in text_of(answer)


async def test_a_dialog_is_taken_back_when_somebody_else_has_answered(connect: Connect, operator: Invoke) -> None:
    """Before 2026-07-28 the client's dialog is open while the call waits."""

    def answered_elsewhere(_params: Any) -> ElicitResult:
        raise NotImplementedError

    async with connect("legacy", answered_elsewhere, answer_within=60.0) as agent:
        opened = asyncio.Event()

        async def thinks(_context: Any, params: Any) -> ElicitResult:
            agent.asked.append(params)
            opened.set()
            await asyncio.sleep(60)
            raise AssertionError("the dialog was not taken back")

        agent.client.session._elicitation_callback = thinks  # type: ignore[assignment]

        async def decide() -> None:
            await opened.wait()
            (waiting,) = await operator("approvals.pending", {})
            assert await operator("approvals.decide", {"request": waiting["id"], "allow": True})

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(decide())
            answer = await agent.call("execute_code", code=CALLS)
        assert "came" in text_of(answer)


async def test_state_that_a_client_hands_back_holds_for_this_call_of_this_server_alone(connect: Connect) -> None:
    async with connect("2026-07-28", says("allow once")) as agent, connect("2026-07-28", says("allow once")) as other:
        arguments = {"code": CALLS}
        asked = await agent.client.session.call_tool("execute_code", arguments, allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        assert asked.request_state
        (identity,) = asked.input_requests or {}
        given = {identity: ElicitResult(action="accept", content={"answer": "allow once"})}
        back: dict[str, Any] = {"input_responses": given, "request_state": asked.request_state}
        for client, changed in ((agent, {"code": "print(1)"}), (other, arguments)):
            with pytest.raises(Exception, match="Invalid or expired requestState"):
                await client.client.session.call_tool("execute_code", changed, allow_input_required=True, **back)
        answer = await agent.client.session.call_tool("execute_code", arguments, allow_input_required=True, **back)
        assert not isinstance(answer, InputRequiredResult)
        assert "came" in text_of(answer)
        again = await agent.client.session.call_tool("execute_code", arguments, allow_input_required=True, **back)
        assert not isinstance(again, InputRequiredResult)
        assert text_of(again) == text_of(answer)


async def test_a_question_that_was_not_answered_is_asked_again_with_new_state(connect: Connect) -> None:
    async with connect("2026-07-28", says("allow once")) as agent:
        session = agent.client.session
        first = await session.call_tool("execute_code", {"code": CALLS}, allow_input_required=True)
        assert isinstance(first, InputRequiredResult)
        back = await session.call_tool(
            "execute_code", {"code": CALLS}, allow_input_required=True, request_state=first.request_state
        )
        assert isinstance(back, InputRequiredResult)
        assert list(back.input_requests or {}) == list(first.input_requests or {})
        assert back.request_state != first.request_state
        (identity,) = back.input_requests or {}
        given: dict[str, Any] = {identity: ElicitResult(action="accept", content={"answer": "allow once"})}
        done = await session.call_tool(
            "execute_code", {"code": CALLS}, input_responses=given, request_state=back.request_state
        )
        assert "came" in text_of(done)


@pytest.mark.parametrize("era", ERAS)
async def test_registering_a_server_is_always_asked_about_with_its_exact_command(
    connect: Connect, operator: Invoke, era: str
) -> None:
    name = f"mine{era[:1]}"
    async with connect(era, says("deny", reason="not today"), toolset="ipybox") as agent:
        params = {"command": "/bin/false", "args": ["--first"]}
        answer = await agent.call("register_mcp_server", server_name=name, server_params=params)
        assert answer.is_error
        assert "not today" in text_of(answer)
        (asked,) = agent.asked
        assert f'add the MCP server "{name}"' in asked.message
        assert "/bin/false" in asked.message
        assert asked.requested_schema["properties"]["answer"]["enum"] == ["allow once", "deny"]
        assert name not in json.dumps(await operator("tools.list", {}))


async def test_a_registered_server_is_answered_with_the_names_that_programs_import(
    connect: Connect, operator: Invoke
) -> None:
    program = (
        "from mcp.server.mcpserver import MCPServer\nserver = MCPServer('dashed')\n"
        "server.add_tool(lambda: 'done', name='tool-1')\nserver.run()\n"
    )
    async with connect(answer=says("allow once"), toolset="ipybox") as agent:
        params = {"command": sys.executable, "args": ["-c", program]}
        answer = await agent.call("register_mcp_server", server_name="dashed", server_params=params)
        assert text_of(answer) == 'The server "dashed" is registered, with the tools tool_1.'
    await operator("tools.remove", {"name": "dashed"})


async def test_a_denial_without_a_reason_is_told_in_words(connect: Connect) -> None:
    async with connect(answer=says("deny"), toolset="ipybox") as agent:
        answer = await agent.call("register_mcp_server", server_name="mine", server_params={"command": "/bin/false"})
        assert text_of(answer) == "the server 'mine' was not added: it was asked for and not approved"


async def test_a_job_that_nobody_has_answered_yet_is_told_and_can_be_cancelled(connect: Connect) -> None:
    async with connect(toolset="ipybox", answer_within=1.0) as agent:
        params = {"command": "/bin/false"}
        answer = await agent.call("register_mcp_server", server_name="waits", server_params=params)
        handle = structure_of(answer)["run"]
        assert structure_of(answer)["status"] in ("running", "waiting")
        assert f'read_output(run="{handle}"' in text_of(answer)
        ended = await agent.call("cancel_run", run=handle)
        assert "cancelled" in text_of(ended)


async def mine(operator: Invoke, run: str) -> list[dict[str, Any]]:
    """The questions of a run, as the operator sees them."""
    state = await operator("runs.get", {"run": run})
    ids = [one["id"] for one in state["approvals"]]
    return [one for one in await operator("approvals.pending", {}) if one["id"] in ids]


async def whole(agent: Connected, run: str) -> str:
    """All output of a run, once it is over."""
    while True:
        answer = await agent.call("read_output", run=run)
        if "status: " in text_of(answer):
            return text_of(answer)


def test_a_client_over_stdio_adds_its_own_word_to_its_name_once_and_within_bounds() -> None:
    backend: Any = SimpleNamespace(is_alone=True, has_person=lambda _request: True, connect=print)
    callers, said = Callers(backend), SimpleNamespace(name="desk\u202e\n" + "x" * 500)
    session = SimpleNamespace(client_params=SimpleNamespace(client_info=said))
    context: Any = SimpleNamespace(request=None, protocol_version="2025-06-18", session=session)
    first = callers.of(context)
    assert re.fullmatch(r"mcp:[0-9a-f]{16}:desk[\x20-\x7e]{1,56}", first.name)
    said.name = "another"
    assert callers.of(context) is first
