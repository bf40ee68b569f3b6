"""Names, words, searching, inference and what source is made of: the pure parts."""

from __future__ import annotations

import ast
import json
import keyword
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools.conftest import real_tools
from tests.tools.peer import request_of

import casemate
from casemate.tools.modules.catalogue import Catalogue
from casemate.tools.modules.generate import python_docstring, script_comment, visible_text
from casemate.tools.requests import Read, Search, ToolCall
from casemate.tools.schemas.schema import infer_schema
from casemate.tools.schemas.types import OWN_NAMES, class_name, module_names, package_names, unique_names
from casemate.tools.schemas.validation import Validator
from casemate.tools.shell import USAGE, BadWords, answer_text, arguments_of
from casemate.tools.tool import Hints, Tool

ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.full
@given(st.lists(st.text(max_size=200), max_size=20))
@settings(deadline=None)
def test_names_are_identifiers_and_one_to_one(keys: list[str]) -> None:
    for names in (module_names(keys), package_names(keys), unique_names(keys, ["items", "self"])):
        assert set(names) == set(keys)
        assert len(set(names.values())) == len(names)
        for name in names.values():
            assert name.isidentifier()
            assert not keyword.iskeyword(name)
            assert not name.startswith("_")
            assert len(name) <= 110
            assert ast.parse(f"{name} = 1").body[0].targets[0].id == name  # type: ignore[attr-defined]
    folded = [name.casefold() for name in module_names(keys).values()]
    assert len(set(folded)) == len(folded)
    assert not set(package_names(keys).values()) & OWN_NAMES
    assert all(class_name(key).isidentifier() for key in keys)


@pytest.mark.parametrize(
    ("wire", "names"),
    [
        (["admin.tools.list"], ["admin_tools_list"]),
        (["import", "None"], ["import_", "None_"]),
        (["repo/read file!"], ["repo_read_file"]),
        (["getUser", "getuser"], ["getUser", "getuser_2"]),
        (["a-b", "a_b", "a.b"], ["a_b_2", "a_b", "a_b_3"]),
        ([""], ["unnamed"]),
        (["x" * 128], ["x" * 100]),
        (["x" * 128, "x" * 127], ["x" * 100 + "_2", "x" * 100]),
        (["1st", "_private", "__init__"], ["x1st", "private", "init"]),
    ],
)
def test_what_is_an_identifier_keeps_its_name_and_others_get_one_that_is_like_it(
    wire: list[str], names: list[str]
) -> None:
    assert list(module_names(wire).values()) == names
    assert list(module_names(reversed(wire)).values()) == names[::-1]


def test_every_tool_is_found_by_its_own_names_only() -> None:
    wire = ["getUser", "getuser", "import", "a-b", "a_b", "", "x" * 128, "admin.tools.list"]
    catalogue = Catalogue(
        [Tool("s", name) for name in wire] + [Tool("S", "getUser"), Tool("search", "x"), Tool("s", "a-b")]
    )
    for name in wire:
        assert catalogue.describe("s", name) is not None
    assert [row["tool"] for row in catalogue.list_rows() if row["server"] == "s"] == wire
    assert catalogue.describe("s ", "getUser") is None
    assert catalogue.describe("s", "GETUSER") is None
    assert [problem.code for _, problem in catalogue.problems] == ["duplicate"]
    modules = [row["module"] for row in catalogue.list_rows()]
    assert len(set(modules)) == len(modules) == len(wire) + 2
    assert all(catalogue.source(module) for module in modules)
    assert {"mcptools.S_2.getUser", "mcptools.search_.x"} & set(modules)


@given(st.text())
def test_no_text_leaves_its_docstring_or_comment(text: str) -> None:
    safe = visible_text(text)
    source = f"def f():\n    {python_docstring(safe, '    ')}\n    return 1\n"
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    assert len(function.body) == 2
    assert " ".join((ast.get_docstring(function) or "").split()) == " ".join(safe.split())
    assert script_comment(safe).count("*/") == 1


WORDY = Tool(
    "s",
    "t",
    input_schema={
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "depth": {"type": "integer"}, "ratio": {"type": "number"}, "all": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}}, "filter": {"type": "object"},
            "a-b": {"type": "string"},
            "maybe": {"type": ["string", "null"]}, "side": {"enum": ["left", 1]},
            "either": {"type": ["string", "integer"]},
        },
    },
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["path=."], {"path": "."}),
        (["path=5"], {"path": "5"}),
        (["path="], {"path": ""}),
        (["path=a=b"], {"path": "a=b"}),
        (["depth=2"], {"depth": 2}),
        (["depth:=2"], {"depth": 2}),
        (["ratio=1.5", "all=true"], {"ratio": 1.5, "all": True}),
        (["tags=a"], {"tags": ["a"]}),
        (['tags=["a","b"]'], {"tags": ["a", "b"]}),
        (['filter={"x":1}'], {"filter": {"x": 1}}),
        (["a-b=x"], {"a-b": "x"}),
        (["a_b=x"], {"a-b": "x"}),
        (["maybe=null"], {"maybe": None}),
        (["maybe=text"], {"maybe": "text"}),
        (["maybe=5"], {"maybe": "5"}),
        (["side=left"], {"side": "left"}),
        (["side=1"], {"side": 1}),
        (["either=1"], {"either": 1}),
        (["--json", '{"path":"x","n":[1]}', "depth=1"], {"path": "x", "n": [1], "depth": 1}),
        (['--json={"path":"x"}'], {"path": "x"}),
        ([], {}),
    ],
)  # fmt: skip
def test_words_become_arguments_as_the_schema_says(words: list[str], arguments: dict[str, Any]) -> None:
    assert arguments_of(WORDY, words) == arguments


@pytest.mark.parametrize(
    "words",
    [["path"], ["depth=x"], ["depth:=x"], ["path=a", "path=b"], ["--json"], ["--json", "[1]"],
     ["--json", '{"a":1,"a":2}'],
     ["ratio=NaN"], ["ratio:=Infinity"], ["path=a", '--json={"path":"b"}'], ["filter=x"], ["x:=" + "[" * 100_000]],
)  # fmt: skip
def test_words_that_say_no_arguments_are_refused(words: list[str]) -> None:
    with pytest.raises(BadWords):
        arguments_of(WORDY, words)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["list"], Search("")),
        (["search", "a", "b"], Search("a b")),
        (["read", "s", "demo://x"], Read("s", "demo://x")),
        (["s.t", "a=1"], ToolCall("s", "t", {"a": "1"})),
        (["describe", "s.t"], "from mcptools.s.t import run\n"),
        ([], USAGE),
        (["--help"], USAGE),
    ],
)
def test_words_become_a_request_or_a_text(words: list[str], wanted: ToolCall | Search | Read | str) -> None:
    found = request_of(words, Catalogue([Tool("s", "t")]))
    assert (found[: len(wanted)] if isinstance(wanted, str) and isinstance(found, str) else found) == wanted


@pytest.mark.parametrize(
    "words", [["nonsense"], ["describe"], ["describe", "s.t", "more"], ["read", "s"], ["s.none"], ["list"] * 2_000]
)
def test_words_that_ask_for_nothing_are_refused(words: list[str]) -> None:
    with pytest.raises(BadWords):
        request_of(words, Catalogue([Tool("s", "t")]))


def test_what_the_command_shows_cannot_steer_a_terminal() -> None:
    assert answer_text("ok", "a\x1b[2Jb\n") == "ok\na\\x1b[2Jb\n"


@given(st.lists(ANY_JSON, max_size=6))
@settings(deadline=None, max_examples=60)
def test_an_inferred_schema_fits_all_that_it_was_inferred_from(samples: list[Any]) -> None:
    validator = Validator(infer_schema(samples))
    assert [sample for sample in samples if validator.errors(sample)] == []


def test_an_inferred_schema_tells_what_is_always_there() -> None:
    schema = infer_schema([{"a": 1, "b": [{"c": "x"}]}, {"a": None, "b": []}])
    assert schema["required"] == ["a", "b"]
    assert schema["properties"]["a"] == {"type": ["null", "integer"]}
    assert schema["properties"]["b"]["items"]["properties"] == {"c": {"type": "string"}}
    assert "properties" not in infer_schema([{str(n): n for n in range(500)}])


def test_what_a_tool_gave_so_far_is_offered_where_it_promises_nothing() -> None:
    tool = Tool("s", "t", "Does.", samples=infer_schema([[{"name": "a", "size": 1}]]), hints=Hints(read_only=True))
    told = Catalogue([tool]).describe("s", "t")
    assert told is not None
    assert "list[SeenItem]" in told
    assert "name: str" in told
    assert "says that it only reads" in told


@pytest.mark.parametrize(
    ("query", "first"),
    [("list directory", "filesystem.list_directory"), ("convert time between zones", "time.convert_time"),
     ("create github issue", "github.create_issue"), ("pull requests", "github.list_pull_requests")],
)  # fmt: skip
def test_a_search_finds_the_tool_that_is_meant(query: str, first: str) -> None:
    _, rows = Catalogue(real_tools()).search(query)
    assert f"mcptools.{first}" in [row["module"] for row in rows[:3]]


def test_every_description_is_there_and_none_is_source() -> None:
    hostile = 'Ends """\nimport os\nos.abort()\n"""\\'
    catalogue = Catalogue([Tool("s", "t", hostile, {"type": "object", "properties": {"a": {"description": hostile}}})])
    found = catalogue.source("mcptools.s.t")
    assert found is not None
    names = {node.names[0].name for node in ast.walk(ast.parse(found[0])) if isinstance(node, ast.Import)}
    assert names == set()
    assert "os.abort()" in (ast.get_docstring(ast.parse(found[0])) or "")


def test_the_declarations_for_node_are_those_of_every_tool() -> None:
    tools = real_tools()
    text = Catalogue(tools).declarations()
    assert text.count("options?: CallOptions): Promise<") == len(tools)
    assert '"path": string;' in text


def test_the_declarations_for_node_name_everything_that_the_package_gives_besides_tools() -> None:
    package = Path(casemate.__file__).parent / "guest" / "node_packages" / "mcptools" / "index.mjs"
    given = re.search(r"export const \{ (.*) \} = tools", package.read_text())
    text = Catalogue([]).declarations()
    assert given is not None
    assert [name for name in given[1].split(", ") if f" {name}" not in text] == []
    assert "onProgress?" in text


def test_generating_reads_no_file_and_needs_nothing_of_a_cell() -> None:
    program = (
        "import sys, json\n"
        "from casemate.tools.modules.catalogue import Catalogue\n"
        "from casemate.tools.tool import Tool\n"
        "schema = {'type': 'object', 'properties': {'a': {'type': 'string'}}}\n"
        "tools = [Tool('s', 't', '', schema, {'type': 'integer'})]\n"
        "Catalogue(tools).package({})\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, args: opened.append(args) if event in ('open', 'socket.connect') else None)\n"
        "files = Catalogue(tools).package({})\n"
        "print(json.dumps([sorted(files), len(opened)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [["mcptools/s/__init__.py", "mcptools/s/t.py"], 0]


def test_a_catalogue_takes_over_what_has_not_changed_and_nothing_else() -> None:
    one, other = Tool("s", "one", "", {"const": True}), Tool("s", "other")
    before = Catalogue([one, other])
    first = before.source("mcptools.s.one")
    sampled = replace(other, samples={"type": "string"})
    after = Catalogue([one, sampled], before=before)
    assert after.cached_source("mcptools.s.one") == after.source("mcptools.s.one") == first
    assert after.source("mcptools.s.other") != before.source("mcptools.s.other")
    changed = Catalogue([Tool("s", "one", "", {"const": 1}), other], before=before)
    assert changed.cached_source("mcptools.s.one") is None


def test_a_source_is_taken_over_for_its_own_tool_where_another_server_has_the_package_now() -> None:
    before = Catalogue([Tool("a-b", "t"), Tool("a_b", "t")])
    first, second = before.source("mcptools.a_b.t"), before.source("mcptools.a_b_2.t")
    after = Catalogue([Tool("a_b", "t")], before=before)
    assert after.source("mcptools.a_b.t") == second != first


def test_a_server_that_comes_later_changes_no_package() -> None:
    assert package_names(["a-b", "a_b", "A_B"]) == {"a-b": "a_b", "a_b": "a_b_2", "A_B": "A_B_3"}
    for number in range(1, 4):
        names = ["a-b", "a_b", "A_B"]
        assert list(package_names(names[:number]).values()) == list(package_names(names).values())[:number]
