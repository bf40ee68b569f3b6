"""Schemas that generators stumble over: each with arguments that are right, and arguments that are wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

HOSTILE = (
    '"""',
    "\\",
    '\\"""\nimport os\nos.abort()\n',
    "\u2028",
    "\0",
    "{{ 7*7 }}",
    "{% raw %}",
    "${HOME}",
    "`id`",
    "'''",
    "\r\n",
    "\u202e",
    "*/ process.abort() /*",
    "#\nraise SystemExit",
    "__import__('os').abort()",
)
KEYWORDS = (
    "class",
    "import",
    "None",
    "True",
    "async",
    "await",
    "lambda",
    "match",
    "case",
    "type",
    "_",
    "self",
    "cls",
    "print",
    "def",
    "global",
)
MEMBERS = (
    "model_config",
    "copy",
    "schema",
    "json",
    "validate",
    "items",
    "keys",
    "values",
    "get",
    "pop",
    "update",
    "clear",
    "from_wire",
    "to_wire",
    "setdefault",
    "fromkeys",
)
TYPES = (
    "date",
    "list",
    "str",
    "Any",
    "Field",
    "int",
    "dict",
    "Literal",
    "Sequence",
    "Mapping",
    "Params",
    "Result",
    "Object",
    "Tool",
    "UNSET",
    "TypedDict",
    "overload",
    "run",
    "TYPE_CHECKING",
    "float",
    "bool",
    "property",
)
STRANGE = (
    "a-b",
    "a b",
    "a.b",
    "$filter",
    "@type",
    "1st",
    "_id",
    "__class__",
    "__init__",
    "größe",
    "ﬁ",
    "",
    "new\nline",
    "quo\"te's",
    "😀",
    "a_b",
    "a",
    "A",
    "self_",
    "\u2028",
    "a\0b",
    "x" * 300,
)


@dataclass(frozen=True)
class Case:
    """``schema`` of the arguments; `good` ones are accepted and come through unchanged, `bad` ones are refused."""

    name: str
    schema: Any
    good: list[Any]
    bad: list[Any] = field(default_factory=list)


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    """An object with these properties alone."""
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": list(required)} if required else {})  # draft 4 wants one at least


def of_names(names: tuple[str, ...]) -> dict[str, Any]:
    """An object with an integer of each name; all are required."""
    return {"type": "object", "properties": {name: {"type": "integer"} for name in names}, "required": list(names)}


def numbered(names: tuple[str, ...]) -> dict[str, int]:
    return {name: n for n, name in enumerate(names)}


def deep(levels: int) -> tuple[Any, Any]:
    """An object within an object and so on, and a value of it."""
    schema: Any = {"type": "integer"}
    value: Any = 1
    for _ in range(levels):
        schema, value = closed("a", a=schema), {"a": value}
    return schema, value


TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}},
    "$defs": {
        "node": closed("name", name={"type": "string"}, children={"type": "array", "items": {"$ref": "#/$defs/node"}})
    },
}
MUTUAL = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/a"}},
    "$defs": {"a": closed(b={"$ref": "#/$defs/b"}), "b": closed(a={"$ref": "#/$defs/a"}, n={"type": "integer"})},
}
TAGGED = {
    "oneOf": [
        closed("kind", "side", kind={"const": "square"}, side={"type": "number"}),
        closed("kind", "radius", kind={"const": "circle"}, radius={"type": "number"}),
    ]
}

NAMES = [
    Case("keywords", of_names(KEYWORDS), [numbered(KEYWORDS)], [{}, {**numbered(KEYWORDS), "class": "x"}]),
    Case("members of dictionaries and models", of_names(MEMBERS), [numbered(MEMBERS)], [{}]),
    Case("names of types", of_names(TYPES), [numbered(TYPES)], [{**numbered(TYPES), "list": "x"}]),
    Case("names that are no identifiers", of_names(STRANGE), [numbered(STRANGE)], [{}]),
    Case(
        "names that sanitise alike",
        closed(**{"a-b": {"type": "integer"}, "a_b": {"type": "string"}, "a b": {}}),
        [{"a-b": 1, "a_b": "x", "a b": None}, {"a_b": "x"}],
        [{"a-b": "x"}, {"a_b": 1}, {"a.b": 1}],
    ),
    Case("hostile keys", of_names(HOSTILE), [numbered(HOSTILE)], [{}]),
    Case(
        "types of names of types",
        closed(
            "str",
            "x",
            str={"type": "array", "items": {"type": "string"}},
            x={"type": "string"},
            list={"type": "array", "items": {"type": "integer"}},
        ),
        [{"str": ["a"], "x": "b", "list": [1]}],
        [{"str": "a", "x": "b"}],
    ),
]
NULLS = [
    Case("optional and not nullable", closed(a={"type": "string"}), [{}, {"a": ""}], [{"a": None}]),
    Case("required and nullable", closed("a", a={"type": ["string", "null"]}), [{"a": None}, {"a": "x"}], [{}]),
    Case(
        "several types",
        closed(a={"type": ["integer", "string", "null"]}),
        [{"a": 1}, {"a": "1"}, {"a": None}, {}],
        [{"a": 1.5}, {"a": []}],
    ),
    Case(
        "any of, with null as default",
        closed(a={"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}),
        [{}, {"a": None}, {"a": 3}],
        [{"a": "x"}],
    ),
    Case(
        "type object or null",
        closed(a={"type": ["object", "null"], "properties": {"b": {"type": "integer"}}}),
        [{"a": None}, {"a": {"b": 1}}, {}],
        [{"a": {"b": "x"}}, {"a": 1}],
    ),
]
UNIONS = [
    Case(
        "one of, told apart by a constant",
        closed("shape", shape=TAGGED),
        [{"shape": {"kind": "circle", "radius": 1.5}}, {"shape": {"kind": "square", "side": 2}}],
        [{"shape": {"kind": "circle", "side": 1}}, {"shape": {"kind": "line"}}],
    ),
    Case(
        "all of",
        {"type": "object", "allOf": [of_names(("a",)), {"properties": {"b": {"type": "string"}}, "required": ["b"]}]},
        [{"a": 1, "b": "x"}],
        [{"a": 1}, {"b": "x"}],
    ),
    Case(
        "any of at the root",
        {"type": "object", "anyOf": [of_names(("a",)), of_names(("b",))]},
        [{"a": 1}, {"b": 2}, {"a": 1, "b": 2}],
        [{}, {"a": "x"}],
    ),
    Case(
        "any of what is required",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        [{"a": 1}, {"b": 1}],
        [{}],
    ),
    Case(
        "if and then",
        {
            "type": "object",
            "properties": {"kind": {"enum": ["x", "y"]}, "n": {"type": "integer"}},
            "if": {"properties": {"kind": {"const": "x"}}, "required": ["kind"]},
            "then": {"required": ["n"]},
        },
        [{"kind": "y"}, {"kind": "x", "n": 1}, {}],
        [{"kind": "x"}],
    ),
    Case("not", closed(a={"type": "string", "not": {"const": "no"}}), [{"a": "yes"}], [{"a": "no"}]),
    Case(
        "dependent required",
        {**closed(a={"type": "integer"}, b={"type": "integer"}), "dependentRequired": {"a": ["b"]}},
        [{"b": 1}, {"a": 1, "b": 2}],
        [{"a": 1}],
    ),
    Case(
        "unevaluated",
        {"type": "object", "allOf": [of_names(("a",))], "unevaluatedProperties": False},
        [{"a": 1}],
        [{"a": 1, "b": 2}],
    ),
]
VALUES = [
    Case(
        "an enumeration of several types",
        closed(a={"enum": [1, True, None, "x", 1.5, "", "mro", "name", "value", "+", {}]}),
        [{"a": 1}, {"a": True}, {"a": None}, {"a": 1.5}, {"a": ""}, {"a": "mro"}, {"a": {}}],
        [{"a": 2}, {"a": "y"}],
    ),
    Case("True is not 1", closed(a={"enum": [1]}), [{"a": 1}], [{"a": True}]),
    Case("a constant object", closed(a={"const": {"b": [1]}}), [{"a": {"b": [1]}}], [{"a": {"b": [2]}}]),
    Case(
        "hostile values",
        closed(a={"enum": list(HOSTILE[:12]), "default": HOSTILE[2]}),
        [{"a": HOSTILE[2]}],
        [{"a": "z"}],
    ),
    Case("two to the 70", closed(a={"type": "integer"}), [{"a": 2**70}], [{"a": 1.5}]),
    Case(
        "bounds",
        closed(a={"type": "integer", "minimum": 1, "exclusiveMaximum": 5}),
        [{"a": 1}, {"a": 4}],
        [{"a": 0}, {"a": 5}],
    ),
    Case(
        "draft 4's bounds",
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            **closed(a={"type": "number", "minimum": 1, "exclusiveMinimum": True}),
        },
        [{"a": 1.5}],
        [{"a": 1}],
    ),
    Case("three for a number", closed(a={"type": "number"}), [{"a": 3}, {"a": 3.5}], [{"a": "3"}]),
    Case(
        "formats",
        closed(
            uri={"type": "string", "format": "uri"},
            when={"type": "string", "format": "date-time"},
            id={"type": "string", "format": "uuid"},
            mail={"type": "string", "format": "email"},
        ),
        [{"uri": "https://example.test", "when": "2026-01-01T00:00:00Z", "mail": "a@b.test"}],
        [{"uri": 1}],
    ),
    Case(
        "a pattern with look-ahead",
        closed(a={"type": "string", "pattern": "^(?!no).+$"}),
        [{"a": "yes"}],
        [{"a": "not"}],
    ),
    Case(
        "content encoding",
        closed(a={"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}),
        [{"a": "aGk="}],
        [{"a": 1}],
    ),
]
REFERENCES = [
    Case(
        "definitions",
        {**closed("a", a={"$ref": "#/$defs/x"}), "$defs": {"x": closed("n", n={"type": "integer"})}},
        [{"a": {"n": 1}}],
        [{"a": {"n": "x"}}, {"a": {}}],
    ),
    Case(
        "definitions with dots",
        {**closed("a", a={"$ref": "#/definitions/a.b.C"}), "definitions": {"a.b.C": {"type": "string"}}},
        [{"a": "x"}],
        [{"a": 1}],
    ),
    Case(
        "escapes in pointers",
        {**closed(a={"$ref": "#/$defs/x~1y%20z"}), "$defs": {"x/y z": {"type": "integer"}}},
        [{"a": 1}],
        [{"a": "x"}],
    ),
    Case(
        "recursive",
        TREE,
        [{"root": {"name": "a", "children": [{"name": "b", "children": []}]}}],
        [{"root": {"name": "a", "children": [{}]}}],
    ),
    Case("mutual", MUTUAL, [{"a": {"b": {"a": {"b": {"n": 1}}}}}], [{"a": {"b": {"a": {"b": {"n": "x"}}}}}]),
    Case(
        "to the root",
        closed(child={"$ref": "#"}, n={"type": "integer"}),
        [{"child": {"child": {"n": 1}}}],
        [{"child": {"child": {"n": "x"}}}],
    ),
    Case(
        "to a property", closed(a={"type": "integer"}, b={"$ref": "#/properties/a"}), [{"a": 1, "b": 2}], [{"b": "x"}]
    ),
    Case(
        "with siblings",
        {**closed(a={"$ref": "#/$defs/x", "description": "said", "minimum": 5}), "$defs": {"x": {"type": "integer"}}},
        [{"a": 5}],
        [{"a": 4}],
    ),
    Case(
        "an anchor",
        {**closed(a={"$ref": "#it"}), "$defs": {"x": {"$anchor": "it", "type": "integer"}}},
        [{"a": 1}],
        [{"a": "x"}],
    ),
]
_DEEP = deep(40)
OBJECTS = [
    Case(
        "a free map",
        closed(a={"type": "object", "additionalProperties": {"type": "integer"}}),
        [{"a": {"x": 1, "y z": 2}}],
        [{"a": {"x": "1"}}],
    ),
    Case(
        "a map of objects",
        closed(a={"type": "object", "additionalProperties": closed("n", n={"type": "integer"})}),
        [{"a": {"x": {"n": 1}}}],
        [{"a": {"x": {}}}],
    ),
    Case(
        "properties and typed others",
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
        [{"a": "x", "b": 1}],
        [{"a": "x", "b": "y"}],
    ),
    Case("closed", closed(a={"type": "string"}), [{}], [{"b": 1}]),
    Case(
        "open",
        {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
        [{"a": 1, "b": {"c": [None]}}],
        [[]],
    ),
    Case(
        "patterns of keys",
        {"type": "object", "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False},
        [{"x-a": 1}],
        [{"x-a": "1"}, {"y": 1}],
    ),
    Case("names of properties", {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, [{"a": 1}], [{"A": 1}]),
    Case("empty", {}, [{}, {"a": 1}]),
    Case("true", True, [{}, {"a": [1]}]),
    Case("without a type", {"properties": {"a": {"type": "integer"}}}, [{"a": 1}], [{"a": "x"}]),
    Case("without properties", {"type": "object"}, [{}, {"a": 1}], [[]]),
    Case("required and not described", {"type": "object", "required": ["ghost"]}, [{"ghost": [1]}], [{}]),
    Case(
        "titles that clash",
        closed(
            "a",
            "b",
            a={"title": "Thing", **closed(x={"type": "integer"})},
            b={"title": "Thing", **closed(y={"type": "string"})},
        ),
        [{"a": {"x": 1}, "b": {"y": "z"}}],
        [{"a": {"y": "z"}, "b": {}}],
    ),
    Case("forty deep", _DEEP[0], [_DEEP[1]], [deep(39)[1]]),
    Case(
        "four hundred wide",
        of_names(tuple(f"p{n}" for n in range(400))),
        [numbered(tuple(f"p{n}" for n in range(400)))],
        [{}],
    ),
]
ARRAYS = [
    Case(
        "places",
        closed(a={"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}),
        [{"a": [1, "x"]}],
        [{"a": ["x", 1]}, {"a": [1, "x", 2]}],
    ),
    Case(
        "draft 7's places",
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            **closed(a={"type": "array", "items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False}),
        },
        [{"a": [1, "x"]}],
        [{"a": ["x"]}],
    ),
    Case("no items", closed(a={"type": "array"}), [{"a": [1, "x", None]}], [{"a": {}}]),
    Case(
        "nested",
        closed(a={"type": "array", "items": {"type": "array", "items": closed("n", n={"type": "integer"})}}),
        [{"a": [[{"n": 1}], []]}],
        [{"a": [[{"n": "x"}]]}],
    ),
    Case("unique", closed(a={"type": "array", "uniqueItems": True}), [{"a": [1, 2, True]}], [{"a": [1, 1]}]),
]
TEXTS = [
    Case(
        f"text {n}",
        {
            "type": "object",
            "title": text,
            "description": text,
            "properties": {
                "a": {"type": "string", "description": text, "title": text, "default": text},
                "b": {
                    "type": "object",
                    "title": text,
                    "description": text,
                    "properties": {text: {"enum": [text, "x"]}},
                },
            },
        },
        [{"a": text, "b": {text: text}}],
        [{"b": {text: "y"}}],
    )
    for n, text in enumerate(HOSTILE)
]
CASES = [*NAMES, *NULLS, *UNIONS, *VALUES, *REFERENCES, *OBJECTS, *ARRAYS, *TEXTS]


def bomb(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    """Each definition applies the next one twice."""
    definitions: dict[str, Any] = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    definitions = {name: {keyword: [dict(part) for part in one[keyword]]} for name, one in definitions.items()}
    return {
        "type": "object",
        "allOf": [{"$ref": "#/$defs/d0"}],
        "$defs": {**definitions, f"d{levels}": {"type": "object"}},
    }


def nest(levels: int) -> Any:
    """Lists within lists, in a schema."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


REFUSED: dict[str, tuple[str, Any]] = {
    "a file": ("external_reference", closed(a={"$ref": "file:///etc/passwd"})),
    "a page": ("external_reference", closed(a={"$ref": "http://schemas.test/x.json"})),
    "a path": ("external_reference", closed(a={"$ref": "other.json#/a"})),
    "an absolute path": ("external_reference", closed(a={"$ref": "/etc/passwd"})),
    "elsewhere, unused": ("external_reference", {"type": "object", "$defs": {"x": {"$ref": "https://schemas.test/"}}}),
    "nowhere": ("no_such_reference", closed(a={"$ref": "#/$defs/none"})),
    "no anchor": ("no_such_reference", closed(a={"$ref": "#none"})),
    "a text": ("no_such_reference", {"type": "object", "$ref": "#/type"}),
    "a reference that is none": ("malformed", closed(a={"$ref": 5})),
    "another address within": ("embedded_id", closed(a={"$id": "http://schemas.test/a", "type": "string"})),
    "a list": ("not_a_schema", []),
    "half a character": ("not_unicode", closed(a={"enum": ["\ud800"]})),
    "half a character in a key": ("not_unicode", closed(**{"\udfff": {}})),
    "null": ("not_a_schema", None),
    "a property that is none": ("malformed", closed(a="string")),
    "properties as a list": ("malformed", {"type": "object", "properties": ["a"]}),
    "an unknown type": ("not_a_schema", closed(a={"type": "texts"})),
    "required as a text": ("not_a_schema", {"type": "object", "required": "a"}),
    "a broken pattern": ("not_a_schema", closed(a={"type": "string", "pattern": "(["})),
    "a pattern of many gigabytes": (
        "not_a_schema",
        closed(a={"type": "string", "pattern": "(((a{1000}){1000}){1000})"}),
    ),
    "itself": ("endless", {"$ref": "#"}),
    "a circle": ("endless", {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}),
    "a bomb of all": ("too_complex", bomb(30)),
    "a bomb of any": ("too_complex", bomb(30, "anyOf")),
    "depth": ("too_deep", {"type": "object", "default": nest(5_000)}),
    "width": ("too_large", {"type": "object", "enum": [{"n": n} for n in range(30_000)]}),
    "length": ("too_large", {"type": "object", "description": "x" * 2_000_000}),
}
