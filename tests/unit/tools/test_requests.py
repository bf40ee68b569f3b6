"""What a cell may say to the tools' service."""

from __future__ import annotations

import json
from typing import Any

import pytest

from casemate.errors import InvalidArgument
from casemate.tools.requests import (
    Read,
    Register,
    Search,
    ShellCall,
    Source,
    ToolCall,
    read_request,
)


def said(**given: Any) -> bytes:
    return json.dumps(given).encode()


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (said(do="call", server="s", tool="t", arguments={"a": [1]}), ToolCall("s", "t", {"a": [1]})),
        (said(do="call", server="s", tool="t", arguments={}, progress=True), ToolCall("s", "t", {}, progress=True)),
        (said(do="call", server="s", tool="t", arguments={}, line=7), ToolCall("s", "t", {}, line=7)),
        (said(do="source", module="mcptools.s.t"), Source("mcptools.s.t")),
        (said(do="list"), Search("")),
        (said(do="search", query="files", detail="full"), Search("files", "full")),
        (said(do="read", server="s", uri="file:///x"), Read("s", "file:///x")),
        (said(do="register", name="n", definition={"url": "u"}), Register("n", {"url": "u"})),
        (said(do="shell", words=["s.t", "a=1"]), ShellCall(("s.t", "a=1"))),
    ],
)
def test_each_request_is_what_it_says(line: bytes, meant: object) -> None:
    assert read_request(line) == meant


@pytest.mark.parametrize(
    "line",
    [
        said(),
        said(do="approve", id="1"),
        said(do=["call"]),
        said(do="call", server="s", tool="t"),
        said(do="call", server="s", tool="t", arguments=[]),
        said(do="call", server=1, tool="t", arguments={}),
        said(do="call", server="s", tool="t" * 257, arguments={}),
        said(do="call", server="s", tool="t", arguments={}, progress=1),
        said(do="search", query="x" * 1001),
        said(do="search", query="x", detail="everything"),
        said(do="shell", words="s.t"),
        said(do="shell", words=["x"] * 1001),
        b'{"do":"call","server":"s","tool":"t","arguments":{"path":"a","path":"b"}}',
    ],
)
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidArgument):
        read_request(line)


@pytest.mark.parametrize("key", ["server_params", "command", "args", "env", "cwd", "url", "headers", "run", "session"])
def test_a_call_cannot_say_how_its_server_is_reached_or_who_asks(key: str) -> None:
    with pytest.raises(InvalidArgument, match=key):
        read_request(said(do="call", server="s", tool="t", arguments={}, **{key: "x"}))
