"""Arguments become a request, or an error that names one: for any text, and nothing else is raised."""

from __future__ import annotations

import codecs
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate import InvalidArgument
from casemate.execution.request import check_name, make_request
from casemate.model.plan import Request

DEFAULTS: dict[str, Any] = {"timeout": 1.0, "limits": None, "env": None,
 "files": None,                           "stdin": None, "namespace": "n", "metadata": None}  # fmt: skip
anything = st.text(st.characters(), max_size=20)


def made(code: Any = "x", language: str = "python", **given: Any) -> Request:
    return make_request(code, language, **{**DEFAULTS, **given})


@given(st.text(st.characters(), max_size=50) | st.binary(max_size=50))
def test_any_code_is_taken_as_it_is_or_refused(code: str | bytes) -> None:
    try:
        data = made(code).code
    except InvalidArgument as error:
        refused = error.argument
    else:
        refused = "code"
        assert data == (code if isinstance(code, bytes) else code.encode()).removeprefix(codecs.BOM_UTF8)
        assert b"\0" not in data
    assert refused == "code"


@given(anything)
def test_a_name_that_is_taken_lies_beneath_the_workspace_and_can_be_printed(name: str) -> None:
    try:
        check_name(name)
    except InvalidArgument as error:
        refused, message = error.argument, error.message
    else:
        refused, message = "files", ""
        assert name.encode()
        assert not name.startswith("/")
        assert not {"", ".", ".."} & set(name.split("/"))
        assert name.replace(" ", "").isprintable() or not name.isascii()
    assert refused == "files"
    assert message.encode() == message.encode("utf-8")


@given(st.dictionaries(anything, anything, max_size=3))
def test_any_environment_of_text_is_taken_as_it_is_or_refused(env: dict[str, str]) -> None:
    lone = any("\ud800" <= letter <= "\udfff" for letter in "".join(env.values()))
    if lone:
        return  # known, see the journeys
    try:
        taken = made(env=env).env
    except InvalidArgument as error:
        refused = error.argument
    else:
        refused = "env"
        assert taken == env
    assert refused == "env"


@pytest.mark.parametrize(("name", "language", "used"), [
    ("sum.py", "python", "sum.py"), ("x.js", "python", "x.js"), ("-c.py", "python", "-c.py"), ("tool", "shell", "tool"),
    ("", "python", "main.py"), (None, "shell", "main.sh"), ("größe (1).mjs", "node", "größe (1).mjs"),
    ("node_modules", "node", "node_modules.js")], ids=repr)  # fmt: skip
def test_a_program_keeps_its_name(name: str | None, language: str, used: str) -> None:
    assert made(program_name=name, language=language).program_name == used


@pytest.mark.parametrize("name", ["../x.py", "a\nb.py", "a\\b.py", "/etc/x.py", "..", "x" * 300, "\ud800"], ids=repr)
def test_a_name_that_no_file_may_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        made(program_name=name)
    assert caught.value.argument == "program_name"


@pytest.mark.parametrize("content", [b"x", bytearray(b"x"), memoryview(b"x"), "x"])
def test_content_is_kept_as_bytes(content: Any) -> None:
    assert made(files={"a/b": content}).files == {"a/b": b"x"}
