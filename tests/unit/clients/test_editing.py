"""One member is put into a client's file or taken out of it, and every other character stays as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.surfaces.clients.editing import MalformedSettings, read, with_member, without_member

ENTRY = {"command": "/usr/bin/casemate", "args": ["serve"]}
NEW = '"casemate": {\n      "command": "/usr/bin/casemate",\n      "args": [\n        "serve"\n      ]\n    }'


@pytest.mark.parametrize("text", ["", "\n", "{}", "{\n}\n", '{\n  "mcpServers": {}\n}\n', "\ufeff{}", "// mine\n{}\n"])
def test_a_file_without_servers_gets_one(text: str) -> None:
    changed = with_member(text, "mcpServers", "casemate", ENTRY)
    assert read(changed.removeprefix("\ufeff")).value == {"mcpServers": {"casemate": ENTRY}}
    assert changed.startswith("\ufeff") == text.startswith("\ufeff")
    assert ("// mine" in changed) == ("// mine" in text)


@pytest.mark.parametrize(("before", "after"), [
    ('{\n  "mcpServers": {\n    "a": {"command": "x"}\n  },\n  "z": 1\n}\n',
     '{\n  "mcpServers": {\n    "a": {"command": "x"},\n    ' + NEW + '\n  },\n  "z": 1\n}\n'),
    ('{\n  // first\n  "mcpServers": {\n    "a": 1 // the last\n    // behind\n  } // of servers\n}\n',
     '{\n  // first\n  "mcpServers": {\n    "a": 1, // the last\n    '
     + NEW + '\n    // behind\n  } // of servers\n}\n'),
    ('{\n  "mcpServers": {\n    "a": 1,\n  },\n}\n',
     '{\n  "mcpServers": {\n    "a": 1,\n    ' + NEW + ',\n  },\n}\n'),
    ('{"mcpServers": {"a": 1}, "z": 1.50}',
     '{"mcpServers": {"a": 1, "casemate": {"command": "/usr/bin/casemate", "args": ["serve"]}}, "z": 1.50}'),
    ('{\r\n\t"z": "\\u00e9"\r\n}',
     '{\r\n\t"z": "\\u00e9",\r\n\t"mcpServers": {\r\n\t\t"casemate": {\r\n'
     '\t\t\t"command": "/usr/bin/casemate",\r\n\t\t\t"args": [\r\n'
     '\t\t\t\t"serve"\r\n\t\t\t]\r\n\t\t}\r\n\t}\r\n}'),
])  # fmt: skip
def test_the_entry_stands_behind_the_last_and_nothing_else_changes(before: str, after: str) -> None:
    changed = with_member(before, "mcpServers", "casemate", ENTRY)
    assert changed == after
    assert with_member(changed, "mcpServers", "casemate", ENTRY) == changed
    removed = without_member(changed, "mcpServers", "casemate")
    assert read(removed).value == {"mcpServers": {}, **read(before).value}
    if '"mcpServers"' in before and '"a": 1,\n' not in before:
        assert removed == before


def test_an_entry_of_that_name_is_replaced_where_it_stands() -> None:
    before = '{"mcpServers": {"casemate": {"command": "old"}, "b": 2}}'
    changed = with_member(before, "mcpServers", "casemate", ENTRY)
    assert list(read(changed).value["mcpServers"]) == ["casemate", "b"]
    assert changed.endswith(', "b": 2}}')


@pytest.mark.parametrize(("before", "after"), [
    ('{"s": {"casemate": 1}}', '{"s": {}}'),
    ('{"s": {"casemate": 1, "b": 2}}', '{"s": {"b": 2}}'),
    ('{"s": {"a": 1, "casemate": 1}}', '{"s": {"a": 1}}'),
    ('{"s": {\n  "a": 1,\n  "casemate": 1,\n  "b": 2\n}}', '{"s": {\n  "a": 1,\n  "b": 2\n}}'),
    ('{"s": {\n  "a": 1, // of a\n  // of casemate\n  "casemate": 1\n}}',
     '{"s": {\n  "a": 1 // of a\n  // of casemate\n}}'),
    ('{"s": {\n  "casemate": 1, // note\n  "b": 2\n}}', '{"s": {\n  // note\n  "b": 2\n}}'),
    ('{"s": {"b": 2}}', '{"s": {"b": 2}}'), ("{}", "{}"), ("", ""), ('{"s": 3}', '{"s": 3}'),
])  # fmt: skip
def test_an_entry_is_taken_out_with_its_comma_and_comments_stay(before: str, after: str) -> None:
    assert without_member(before, "s", "casemate") == after


@pytest.mark.parametrize(("text", "line", "column", "problem"), [
    ('{\n  "a": 1\n  "b": 2\n}', 3, 3, "a comma or } is expected"),
    ('{"a": }', 1, 7, "a value is expected"), ('{"a": 1', 1, 8, "a comma or } is expected"),
    ('{"a": 1} x', 1, 10, "something follows after the end"), ("{'a': 1}", 1, 2, "a text in double quotes is expected"),
    ('{"a": 1, "a": 2}', 1, 10, "'a' stands twice in one object"), ('{"a": [1 2]}', 1, 10, "a comma or ] is expected"),
    ('{"a": "x\ny"}', 1, 7, "a text in double quotes is expected"), ("[" * 200, 1, 102, "is nested too deeply"),
    ("[]", 1, 1, "an object is expected here"), ('{"mcpServers": []}', 1, 16, "an object is expected here"),
    ('{"a" 1}', 1, 6, "a colon is expected"), ("/* never closed {}", 1, 1, "a value is expected"),
])  # fmt: skip
def test_what_is_broken_is_told_with_line_and_column(text: str, line: int, column: int, problem: str) -> None:
    with pytest.raises(MalformedSettings) as raised:
        with_member(text, "mcpServers", "casemate", ENTRY)
    assert (raised.value.line, raised.value.column, raised.value.problem) == (line, column, problem)


SCALARS = st.none() | st.booleans() | st.integers(-999, 999) | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=3), one, max_size=3)
)
SPACES = st.sampled_from(["", " ", "\n", "\n  ", "\r\n\t", " // kept\n", "/* kept */", "/* kept\n*/ "])


@st.composite
def written(draw: st.DrawFn, value: Any) -> str:
    """``value`` as JSONC, with white space and comments anywhere."""

    def space() -> str:
        return draw(SPACES)

    def one(value: Any) -> str:
        if not isinstance(value, dict | list):
            return json.dumps(value, ensure_ascii=draw(st.booleans()))
        if isinstance(value, dict):
            parts = [
                f"{space()}{json.dumps(name)}{space()}:{space()}{one(inner)}{space()}" for name, inner in value.items()
            ]
        else:
            parts = [f"{space()}{one(inner)}{space()}" for inner in value]
        last = draw(st.sampled_from(["", ","])) if parts else ""
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        return opening + ",".join(parts) + last + space() + closing

    return space() + one(value) + space()


@given(st.data())
def test_whatever_a_file_looks_like_it_is_read_as_meant_and_its_comments_stay(data: st.DataObject) -> None:
    value: dict[str, Any] = data.draw(st.dictionaries(st.text(max_size=3), VALUES, max_size=3))
    servers = data.draw(st.none() | st.dictionaries(st.sampled_from(["a", "casemate", "b"]), VALUES, max_size=3))
    if servers is not None:
        value["s"] = servers
    text = data.draw(written(value))
    if isinstance(value.get("s", {}), dict):
        added = with_member(text, "s", "casemate", ENTRY)
        assert read(added).value == {**value, "s": {**value.get("s", {}), "casemate": ENTRY}}
        replaced = isinstance(value.get("s"), dict) and isinstance(value["s"].get("casemate"), dict | list)
        assert replaced or added.count("kept") >= text.count("kept")
        removed = without_member(added, "s", "casemate")
        kept = {name: one for name, one in value.get("s", {}).items() if name != "casemate"}
        assert read(removed).value == {**value, "s": kept}
        entry = read(added).members["s"].members["casemate"]
        within = added[entry.name_start : entry.end].count("kept")
        assert removed.count("kept") >= added.count("kept") - within - 1  # one may stand between it and its comma
