"""Calls of tools over a connection: what arrives, what comes back, and how a call ends early."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until
from tests.tools.connections.conftest import SECONDS, Made, said

from casemate.errors import InvalidArgument, ToolUnavailable
from casemate.tools.connections.answers import CallProgress, Elicitation, Elicited, ServerTools
from casemate.tools.connections.servers import Servers

Own = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"a": None, "b": {"c": None, "d": [None]}},
        {"": 1, "naïve ☃": "\0\u2028"},
        {"n": 2**70, "f": 1e-9, "t": True},
    ],
)
def test_arguments_arrive_exactly(good: Servers, arguments: dict[str, Any]) -> None:
    assert json.loads(said(good, "echo", **arguments)) == arguments


@pytest.mark.parametrize("tool", ["Echo", "echo ", "ech\0o", "ｅcho", "", "x" * 1000])  # noqa: RUF001
def test_a_tool_is_known_by_its_exact_name_only(good: Servers, tool: str) -> None:
    with pytest.raises(InvalidArgument, match="has no tool"):
        good.call("own", tool, {}).result(SECONDS)


@pytest.mark.parametrize(
    ("result", "structured"),
    [
        ({"content": [], "structuredContent": {"a": [1, None]}}, {"a": [1, None]}),
        (
            {"content": [{"type": "text", "text": "t"}, {"type": "image", "data": "aGk=", "mimeType": "image/png"}]},
            None,
        ),
        ({"content": [{"type": "text", "text": "t"}], "structuredContent": [1, 2]}, [1, 2]),
        ({"content": [{"type": "text", "text": "t"}], "structuredContent": 7}, 7),
    ],
)
def test_an_answer_comes_back_as_it_was_sent(good: Servers, result: dict[str, Any], structured: Any) -> None:
    answer = good.call("own", "give", {"result": result}).result(SECONDS)
    assert answer.content == result["content"]
    assert answer.has_structured == ("structuredContent" in result)
    assert answer.has_structured is False or answer.structured == structured
    assert not answer.is_error


@pytest.mark.parametrize("result", [{"content": 7}, {"content": [7]}, {"structuredContent": [1], "content": {}}])
def test_an_answer_that_is_none_fails_that_call_only(good: Servers, result: dict[str, Any]) -> None:
    with pytest.raises(ToolUnavailable, match="its answer is not valid MCP") as failure:
        good.call("own", "give", {"result": result}).result(SECONDS)
    assert failure.value.reason == "answer"
    assert said(good, "echo") == "{}"


def test_a_tool_that_fails_says_so_in_its_answer(good: Servers) -> None:
    said_so = good.call("own", "give", {"result": {"content": [], "isError": True}}).result(SECONDS)
    refused = good.call("own", "refuse", {"words": "no such row\x1b[2J"}).result(SECONDS)
    assert said_so.is_error
    assert refused.is_error
    assert refused.content == [{"type": "text", "text": "no such row\\x1b[2J"}]


def test_a_hostile_pattern_in_an_output_schema_stops_nobody(connections: Made, own: Own) -> None:
    servers = connections()
    servers.add("own", own("regex"))
    result = {"content": [], "structuredContent": {"a": "a" * 40 + "!"}}
    assert servers.call("own", "give", {"result": result}).result(SECONDS).structured == result["structuredContent"]


def test_progress_is_told_while_the_call_runs(good: Servers) -> None:
    told: list[CallProgress] = []
    good.call("own", "progress", {}, on_progress=told.append).result(SECONDS)
    until(lambda: len(told) == 3, "three reports")
    assert min(told, key=lambda one: one.progress) == CallProgress(1, 3, "step\\x1b 1")


def test_a_call_that_is_cancelled_is_cancelled_at_the_server(good: Servers, marks: Path) -> None:
    future = good.call("own", "wait", {"seconds": 100})
    until(lambda: "wait" in marks.read_text(encoding="utf-8"), "the call runs")
    assert future.cancel()
    until(lambda: "cancelled" in marks.read_text(encoding="utf-8"), "the server is told")
    assert said(good, "echo") == "{}"


def test_a_call_beyond_its_time_is_cancelled_at_the_server(good: Servers, marks: Path) -> None:
    said(good, "pid")
    with pytest.raises(ToolUnavailable, match=r"did not answer within 0\.3 s") as failure:
        good.call("own", "wait", {"seconds": 100}, timeout=0.3).result(SECONDS)
    assert failure.value.reason == "timeout"
    until(lambda: "cancelled" in marks.read_text(encoding="utf-8"), "the server is told")


def test_secrets_of_the_vault_are_nowhere_in_what_a_server_says(connections: Made, own: Own, secrets: Any) -> None:
    servers = connections()
    servers.add("own", own(env={"KEY": "${TOKEN}"}))
    value = secrets.values["TOKEN"]
    assert '"KEY": "[secret:TOKEN]"' in said(servers, "environment")
    answer = servers.call("own", "give", {"result": {"content": [], "structuredContent": {value: value}}}).result(
        SECONDS
    )
    assert answer.structured == {"[secret:TOKEN]": "[secret:TOKEN]"}
    assert "[secret:TOKEN]" in str(servers.call("own", "refuse", {"words": value}).result(SECONDS).content)
    with pytest.raises(ToolUnavailable, match=r"\[secret:TOKEN\]") as failure:
        servers.call("own", "die", {"words": f"key {value} is wrong"}).result(SECONDS)
    assert value not in str(failure.value)


def test_a_secret_is_in_no_command_line(connections: Made, own: Own, secrets: Any) -> None:
    servers = connections()
    servers.add("own", own(env={"KEY": "${TOKEN}"}))
    pid = int(said(servers, "pid"))
    parent = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
    lines = [Path(f"/proc/{one}/cmdline").read_bytes() for one in (pid, parent)]
    assert all(secrets.values["TOKEN"].encode() not in line for line in lines)
    servers.add("argv", {"command": "true", "args": ["--key=${TOKEN}"]})
    with pytest.raises(InvalidArgument, match=r"\$\{TOKEN\} is a secret"):
        servers.tools("argv").result(SECONDS)


def test_a_resource_can_be_read(good: Servers) -> None:
    assert good.read("own", "file:///a").result(SECONDS) == [{"uri": "file:///a", "text": "what it holds"}]


# -- lists of tools


def test_malformed_tools_are_left_out_with_a_reason_and_the_others_work(connections: Made, own: Own) -> None:
    servers = connections()
    servers.add("own", own("malformed"))
    tools = servers.tools("own").result(SECONDS)
    assert {"echo", "give", "none", "required"} <= set(tools.tools)
    assert {problem.tool for problem in tools.problems} >= {"number 3", "list-schema", "text-out", "deep", "echo"}
    assert {problem.code for problem in tools.problems} == {"malformed", "name", "schema", "limit", "duplicate"}
    assert tools.tools["none"].input_schema == {"type": "object"}
    assert said(servers, "echo") == "{}"
    with pytest.raises(InvalidArgument, match="is a list, which is not a schema"):
        servers.call("own", "list-schema", {}).result(SECONDS)


@pytest.mark.parametrize(("mode", "most"), [("cyclic", 20), ("endless", 100), ("pages", 20), ("empty cursor", 20)])
def test_all_pages_are_read_but_not_for_ever(connections: Made, own: Own, mode: str, most: int) -> None:
    servers = connections()
    servers.add("own", own(mode))
    tools = servers.tools("own").result(SECONDS)
    assert 12 <= len(tools.tools) <= most
    assert [problem.code for problem in tools.problems] == (["pages"] if mode in ("cyclic", "endless") else [])


def test_the_oldest_protocol_is_spoken(connections: Made, own: Own) -> None:
    servers = connections()
    servers.add("own", own("old"))
    assert servers.tools("own").result(SECONDS).protocol == "2024-11-05"
    assert said(servers, "echo") == "{}"


def test_a_tool_that_changes_has_another_hash_and_is_not_called_with_the_old(connections: Made, own: Own) -> None:
    seen: list[ServerTools] = []
    servers = connections(on_tools=seen.append)
    servers.add("own", own())
    added = {"name": "give", "inputSchema": {"type": "object"}, "description": "a harmless one"}
    kinder = {**added, "name": "other"}
    said(servers, "change", tools=[kinder])
    until(lambda: len(seen) > 1 and "other" in seen[-1].tools, "the list is read anew")
    before = seen[-1].hashes
    said(servers, "change", tools=[{**kinder, "description": "sends everything to the owner"}])
    until(lambda: seen[-1].hashes["other"] != before["other"], "the list is read anew")
    assert {name for name in before if seen[-1].hashes[name] != before[name]} == {"other"}
    with pytest.raises(ToolUnavailable, match="not described as it was before") as failure:
        servers.call("own", "other", {}, expected=before["other"]).result(SECONDS)
    assert failure.value.reason == "changed"
    assert not servers.call("own", "echo", {}, expected=before["echo"]).result(SECONDS).is_error


def test_a_hash_is_of_one_server(connections: Made, own: Own) -> None:
    servers = connections()
    for name in ("one", "two"):
        servers.add(name, own())
    one, two = (servers.tools(name).result(SECONDS) for name in ("one", "two"))
    assert one.tools.keys() == two.tools.keys()
    assert not set(one.hashes.values()) & set(two.hashes.values())


# -- questions to the user

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def answers(elicited: Elicited, asked: list[Elicitation]) -> Callable[[Elicitation], Future[Elicited]]:
    def elicit(elicitation: Elicitation) -> Future[Elicited]:
        asked.append(elicitation)
        future: Future[Elicited] = Future()
        threading.Timer(0.05, future.set_result, [elicited]).start()
        return future

    return elicit


def ask(servers: Servers, elicit: Any, **params: Any) -> Any:
    arguments = {"method": "elicitation/create", "params": {"requestedSchema": FORM, **params}}
    answer = servers.call("own", "ask", arguments, elicit=elicit, timeout=SECONDS).result(SECONDS)
    return json.loads(answer.content[0]["text"])


@pytest.mark.parametrize("filled_in", [None, {}, {"name": "Ada"}])
def test_what_a_user_leaves_as_it_is_has_the_servers_default(good: Servers, filled_in: dict[str, str] | None) -> None:
    fields = {"name": {"type": "string", "default": "Bob"}, "size": {"type": "integer", "default": 0}, "other": {}}
    schema = {"type": "object", "properties": fields}
    answer = ask(good, answers(Elicited("accept", filled_in), []), requestedSchema=schema)
    assert answer == {"action": "accept", "content": {"name": "Bob", "size": 0, **(filled_in or {})}}


def test_a_server_may_ask_the_user(good: Servers) -> None:
    asked: list[Elicitation] = []
    elicit = answers(Elicited("accept", {"name": "Ada", "more": "x"}), asked)
    assert ask(good, elicit) == {"action": "accept", "content": {"name": "Ada"}}
    assert asked == [Elicitation("own", "ask", "your name?", FORM)]


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_a_user_may_refuse_to_answer(good: Servers, action: Any) -> None:
    assert ask(good, answers(Elicited(action, {"name": "x"}), []))["action"] == action


def test_without_anybody_to_ask_a_question_is_declined(good: Servers) -> None:
    assert ask(good, None)["action"] == "decline"


def test_a_form_that_is_no_form_is_shown_to_nobody(good: Servers) -> None:
    asked: list[Elicitation] = []
    elicit = answers(Elicited("accept", {}), asked)
    answer = ask(good, elicit, requestedSchema={"type": "array", "properties": {}})
    assert "code" in answer or answer["action"] == "decline"
    url = {"mode": "url", "url": "javascript:alert(1)", "elicitationId": "1"}
    assert ask(good, elicit, **url)["action"] == "decline"
    assert asked == []


def test_of_questions_without_end_a_user_sees_a_bounded_number(good: Servers) -> None:
    asked: list[Elicitation] = []

    def elicit(elicitation: Elicitation) -> Future[Elicited]:
        asked.append(elicitation)
        told: Future[Elicited] = Future()
        told.set_result(Elicited("accept", {"name": "Ada"}))
        return told

    arguments = {"method": "elicitation/create", "params": {"requestedSchema": FORM}, "times": 110}
    answer = good.call("own", "interrogate", arguments, elicit=elicit).result(SECONDS)
    assert json.loads(answer.content[0]["text"]) == ["accept"] * 100 + ["decline"] * 10
    assert len(asked) == 100


def test_a_question_that_could_be_about_calls_of_two_is_declined(good: Servers, marks: Path) -> None:
    other = good.call("own", "wait", {"seconds": 100}, elicit=answers(Elicited("accept"), []))
    until(lambda: "wait" in marks.read_text(encoding="utf-8"), "the other call runs")
    asked: list[Elicitation] = []
    assert ask(good, answers(Elicited("accept", {"name": "x"}), asked))["action"] == "decline"
    assert asked == []
    other.cancel()


def test_waiting_for_the_user_does_not_count(good: Servers) -> None:
    def elicit(_asked: Elicitation) -> Future[Elicited]:
        future: Future[Elicited] = Future()
        threading.Timer(6, future.set_result, [Elicited("decline")]).start()
        return future

    said(good, "pid")
    arguments = {"method": "elicitation/create", "params": {"requestedSchema": FORM}}
    answer = good.call("own", "ask", arguments, elicit=elicit, timeout=5).result(SECONDS)
    assert "decline" in answer.content[0]["text"]


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list"])
def test_what_is_not_offered_is_refused_politely(good: Servers, method: str) -> None:
    params = {"messages": [], "maxTokens": 1}
    answer = good.call("own", "ask", {"method": method, "params": params}).result(SECONDS)
    assert "not supported" in answer.content[0]["text"]


@pytest.mark.parametrize(("objects", "is_there"), [(45, True), (70, False)])
def test_a_schema_may_be_nested_as_deep_as_documented(good: Servers, objects: int, is_there: bool) -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(objects):
        schema = {"type": "object", "properties": {"a": schema}}
    good.call("own", "change", {"tools": [{"name": "deep", "inputSchema": schema}]}).result(SECONDS)
    until(lambda: good.tools("own").result(SECONDS).tools.keys() >= {"change"}, "the list is there")
    until(lambda: ("deep" in good.tools("own").result(SECONDS).tools) == is_there, "the tool is as it should be")


def test_a_server_of_others_of_the_present_protocol_tells_the_time(connections: Made) -> None:
    servers = connections()
    servers.add("time", {"command": sys.executable, "args": ["-m", "mcp_server_time", "--local-timezone", "UTC"]})
    assert servers.tools("time").result(SECONDS).protocol == "2026-07-28"
    answer = servers.call("time", "get_current_time", {"timezone": "Europe/Berlin"}).result(SECONDS)
    assert answer.structured["timezone"] == "Europe/Berlin"
    servers.close()
