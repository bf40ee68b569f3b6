"""One entry is put into a client's settings or taken out of them, and every other character stays as it was."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.surfaces.clients.entries import change

ENTRY = {"command": "/usr/bin/casemate", "args": ["serve", 'é"']}
NEW = (
    '"casemate": {\n      "command": "/usr/bin/casemate",\n'
    '      "args": [\n        "serve",\n        "é\\""\n      ]\n    }'
)


def put(text: str, entry: dict[str, Any] | None = ENTRY) -> str:
    return change(text, "servers", "casemate", entry, is_toml=False)


@pytest.mark.parametrize("text", ["", "\n", "{}", "{\n}\n", '{\n  "servers": {}\n}\n', '{"servers": {}}', " {} "])
def test_settings_without_servers_get_one(text: str) -> None:
    assert json.loads(put(text)) == {"servers": {"casemate": ENTRY}}
    assert json.loads(put(put(text), None)) == {"servers": {}}


@pytest.mark.parametrize(("before", "after"), [
    ('{\n  "servers": {\n    "a": {"command": "x"}\n  },\n  "z": 1.50\n}\n',
     '{\n  "servers": {\n    "a": {"command": "x"},\n    ' + NEW + '\n  },\n  "z": 1.50\n}\n'),
    ('{"servers": {"a": 1}, "z": "\\u00e9"}',
     '{"servers": {"a": 1, "casemate": ' + json.dumps(ENTRY, ensure_ascii=False) + '}, "z": "\\u00e9"}'),
    ('{\n\t"z": {"servers": {"a": 1}},\n\t"servers": {\n\t\t"a": 1\n\t}\n}',
     '{\n\t"z": {"servers": {"a": 1}},\n\t"servers": {\n\t\t"a": 1,\n\t\t'
     + NEW.replace("    ", "\t\t").replace("  ", "\t") + '\n\t}\n}'),
])  # fmt: skip
def test_the_entry_stands_behind_the_last_and_goes_without_a_trace(before: str, after: str) -> None:
    assert put(before) == after
    assert put(after) == after
    assert put(after, None) == before


@pytest.mark.parametrize(("before", "after"), [
    ('{"servers": {"casemate": 1}}', '{"servers": {}}'),
    ('{"servers": {"casemate": 1, "b": 2}}', '{"servers": {"b": 2}}'),
    ('{"servers": {\n  "a": 1,\n  "casemate": {"x": [1]},\n  "b": 2\n}}', '{"servers": {\n  "a": 1,\n  "b": 2\n}}'),
    ('{"servers": {"b": 2}}', '{"servers": {"b": 2}}'), ("{}", "{}"), ("", ""),
])  # fmt: skip
def test_an_entry_is_taken_out_with_its_comma(before: str, after: str) -> None:
    assert put(before, None) == after


def test_an_entry_of_that_name_is_replaced_where_it_stands() -> None:
    changed = put('{"servers": {"casemate": {"command": "old"}, "b": 2}}')
    assert list(json.loads(changed)["servers"].items()) == [("casemate", ENTRY), ("b", 2)]


@pytest.mark.parametrize(("text", "problem"), [
    ('{\n  "a": 1\n  "b": 2\n}', "line 3 column 3"), ('{"a": 1} x', "line 1 column 10"), ("[]", "an object"),
    ("// mine\n{}", "line 1 column 1"), ('{"a": 1,}', "column"), ('{"servers": []}', "servers is expected"),
    ("[" * 100_000, "nested too deeply"), ('{"servers": {"casemate": 1, "casemate": 2, "b": 3}}', "safely"),
])  # fmt: skip
def test_what_is_not_plain_json_is_refused_and_the_place_is_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        put(text, None if "casemate" in text else ENTRY)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.text(max_size=5),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=3), one, max_size=3),
)
SERVERS = st.none() | st.dictionaries(st.sampled_from(["a", "casemate", "b"]), VALUES, max_size=3)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), SERVERS, st.sampled_from([None, 0, 2, "\t"]))
def test_whatever_the_settings_are_only_the_entry_changes(
    value: dict[str, Any], servers: dict[str, Any] | None, indent: int | str | None
) -> None:
    if servers is not None:
        value["servers"] = servers
    text = json.dumps(value, indent=indent)
    added = put(text)
    assert json.loads(added) == {**value, "servers": {**(servers or {}), "casemate": ENTRY}}
    others = {name: one for name, one in (servers or {}).items() if name != "casemate"}
    assert json.loads(put(added, None)) == {**value, "servers": others}


def put_table(text: str, entry: dict[str, Any] | None = ENTRY) -> str:
    return change(text, "servers", "casemate", entry, is_toml=True)


@pytest.mark.parametrize("text", [
    "", "a = 1\n# mine\n", "[servers.other]\ncommand='x'\n\n[z]\nq=1 # mine\n", "[servers.b]\nx=1\n[z]\nq=1\n",
    "a=1\r\n[servers.b]\r\nx=1\r\n", "[servers]\nb={command='r'}\n", "servers={b={x=1}} # one line\n",
    "[servers.a]\nx=1\n[z]\nq=1\n[servers.b]\nx=2\n# end\n", "a=1\n[[z]]\nx=1\n",
])  # fmt: skip
def test_a_table_comes_and_goes_and_the_rest_stays(text: str) -> None:
    before, changed = tomllib.loads(text), put_table(text)
    assert tomllib.loads(changed) == {**before, "servers": {**before.get("servers", {}), "casemate": ENTRY}}
    assert changed.count("#") == text.count("#")
    assert put_table(changed, None).split() == text.split()


@pytest.mark.parametrize(
    "text", ["servers.casemate.command='x'\n[k]\nz=1\n", "[servers]\ncasemate={command='q'}\n[k]\nz=1\n"]
)
def test_a_table_written_in_another_form_is_replaced(text: str) -> None:
    assert tomllib.loads(put_table(text)) == {"servers": {"casemate": ENTRY}, "k": {"z": 1}}


def test_what_is_no_table_is_left_alone() -> None:
    with pytest.raises(ValueError, match="servers is expected to be a table"):
        put_table("[[servers]]\nx=1\n")
