"""Every schema that MCP allows becomes a module, and nothing else comes of one."""

from __future__ import annotations

import ast
from types import ModuleType
from typing import Any

import pytest
from tests.tools.conftest import loaded
from tests.tools.schemas.cases import CASES, REFUSED, Case

from casemate.tools.modules.catalogue import Catalogue
from casemate.tools.schemas.schema import Unreadable
from casemate.tools.schemas.validation import Validator, _compile
from casemate.tools.tool import Tool

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_right_comes_through_unchanged_and_what_is_wrong_is_refused(case: Case) -> None:
    module = loaded(Tool("s", "t", "", case.schema))
    validator = Validator(case.schema)
    for value in case.good:
        assert validator.errors(value) == ()
        for params in (module.Params(**value), module.Params.from_wire(value)):
            assert params.to_wire() == params.model_dump(mode="json") == value
            assert str(params.to_wire()) == str(value) or params == value
            assert all((params[key] is not None) for key in value if value[key] is not None)
    assert [value for value in case.bad if validator.errors(value) == ()] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_key_is_an_attribute_and_a_keyword_of_its_own(case: Case) -> None:
    params = loaded(Tool("s", "t", "", case.schema)).Params
    assert len(params._keywords_) == len(params._attributes_) == len(params._keys_) == len(params._rows_)
    for value in case.good:
        made = params.from_wire(value)
        for key, _, attribute, *_ in params._rows_:
            assert getattr(made, attribute) == value.get(key)
        known = {row[1]: value[row[0]] for row in params._rows_ if row[0] in value}
        others = {key: value[key] for key in value if key not in params._keys_}
        assert params(**known, **others).to_wire() == value


def test_no_object_hides_a_name_that_the_module_itself_uses() -> None:
    source = Catalogue([Tool("s", "t", "", {"type": "object"})]).source("mcptools.s.t")
    assert source is not None
    tree = ast.parse(source[0])
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {
        one.asname or one.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for one in node.names
    }
    thing = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    for name in {form for own in names for form in (own, own.lower(), f"{own.lower()}s", f"{own}Dict")}:
        properties = {name: thing, "list": {"type": "array", "items": {"$ref": f"#/$defs/{name}"}}}
        schema = {"type": "object", "properties": properties, "$defs": {name: thing}}
        module = loaded(Tool("s", "t", "", schema))
        assert type(module._tool).__module__ == "mcptools._running", name
        assert module.Params.from_wire({name: {"x": 1}, "list": [{"x": 2}]}).to_wire()["list"] == [{"x": 2}]


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_cannot_be_used_costs_its_tool_and_says_why(name: str) -> None:
    code, schema = REFUSED[name]
    with pytest.raises(Unreadable) as refused:
        Validator(schema)
    assert refused.value.code == code
    assert str(refused.value)
    catalogue = Catalogue([Tool("s", "bad", "", schema), Tool("s", "good", "", {"type": "object"})])
    assert catalogue.describe("s", "good") is not None
    assert catalogue.describe("s", "bad") is None
    assert [(server, problem.tool, problem.code) for server, problem in catalogue.problems] == [("s", "bad", code)]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "$ref": "#/$defs/t", "$defs": {"t": {"allOf": [
            {"properties": {"c": {"$ref": "#/$defs/t"}}}, {"properties": {"c": {"$ref": "#/$defs/t"}}}]}}}, 60),
        ({"type": "string", "pattern": "^(a+)+$"}, "a" * 5_000 + "b"),
        ({"type": "string", "pattern": r"^(a+)+\1$"}, "a" * 5_000 + "b"),
        ({"type": "string", "pattern": "^(?=(a|a)*b)(a|a)*$"}, "a" * 5_000 + "c"),
        ({"type": "string", "pattern": "(x+x+)+y"}, "x" * 20_000),
    ],
    ids=["a child looked at twice", "nested repetition", "back-reference", "look-ahead", "unanchored"],
)  # fmt: skip
def test_no_schema_makes_checking_endless(schema: dict[str, Any], value: Any) -> None:
    if isinstance(value, int):
        levels, value = value, {}
        for _ in range(levels):
            value = {"c": value}
    assert Validator(schema).errors(value) != ()


def test_a_value_that_is_nested_too_deep_is_refused() -> None:
    value: Any = 1
    for _ in range(10_000):
        value = [value]
    assert Validator(True).errors(value) == ("it is nested more than 64 deep",)


def test_errors_name_the_place_and_stay_short() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    (error,) = Validator(schema).errors({"a": [1, "x\u202e" * 10_000]})
    assert error.startswith("a[1]: ")
    assert len(error) < 400 * 6
    assert error.isprintable()
    assert len(Validator(schema).errors({"a": ["x"] * 1_000})) == 5


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}, [{"n": 1}]),
        ({"type": "string"}, "x"),
        ({"type": "integer"}, 5),
        ({"type": "null"}, None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ({"enum": ["a", 1]}, "a"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, {"x": 1.5}),
        (True, {"a": [1, {"b": None}]}),
        ({"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": "not as promised", "more": 1}),
    ],
)
def test_any_structured_result_is_given(runtime: ModuleType, schema: Any, value: Any) -> None:
    module = loaded(Tool("s", "t", "", {"type": "object"}, schema))
    result = module._tool._result({"ok": True, "structured": value, "content": []})
    assert result == value


def test_a_promised_structure_that_is_missing_leaves_the_text(runtime: ModuleType) -> None:
    module = loaded(
        Tool("s", "t", "", {"type": "object"}, {"type": "object", "properties": {"n": {"type": "integer"}}})
    )
    result = module._tool._result({"ok": True, "content": [{"type": "text", "text": "sorry"}]})
    assert (result.text, result.content[0].text) == ("sorry", "sorry")


@pytest.mark.parametrize("name", REFUSED)
def test_an_output_schema_that_cannot_be_used_costs_no_more_than_itself(name: str) -> None:
    _, schema = REFUSED[name]
    if schema is not None:
        assert Catalogue([Tool("s", "t", "", {"type": "object"}, schema)]).describe("s", "t") is not None


@pytest.mark.parametrize("where", ["file:///etc/hostname", "http://schemas.test/x"])
def test_the_validator_itself_fetches_nothing_either(where: str) -> None:
    with pytest.raises(Unreadable, match="is not fetched"):
        _compile({"$ref": where})
