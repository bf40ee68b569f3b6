"""Generates tool modules: Python packages ``mcptools.<server>``, and TypeScript declarations of Node's ``mcptools``.

Python modules need only the standard library and the runtime package ``mcptools``, which is in every cell. Untrusted
text appears only in literals and docstrings. Node needs no generated code: its functions are made on use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from casemate.tools.schemas.schema import Document
from casemate.tools.schemas.types import (
    OWN_NAMES,
    Anything,
    Array,
    Choice,
    Exact,
    Field,
    Plain,
    RecordType,
    Scalar,
    SchemaReader,
    Table,
    Type,
)
from casemate.tools.tool import Tool
from casemate.visible import plain

_QUOTE = re.compile(r'"(?="|\Z)')  # a quote that could be part of a closing triple quote
LONGEST_DESCRIPTION = 8_000
LONGEST_LINE = 600
_CUT = " [...]"


def visible_text(text: str, longest: int = LONGEST_DESCRIPTION) -> str:
    """``text`` for people and models: cut to length, with invisible characters escaped."""
    cut = text if len(text) <= longest else text[: longest - len(_CUT)] + _CUT
    lines = cut.replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return "\n".join(plain(line).rstrip() for line in lines).strip()


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """``text`` on a single line."""
    return visible_text(" ".join(text[: 4 * longest].split()), longest)


def python_docstring(text: str, indent: str = "") -> str:
    """``text`` as a docstring. Quotes and backslashes in it are escaped."""
    safe = _QUOTE.sub('\\\\"', text.replace("\\", "\\\\"))
    lines = safe.split("\n")
    body = "\n".join([lines[0], *(f"{indent}{line}" if line else "" for line in lines[1:])])
    return f'"""{body}"""' if len(lines) == 1 else f'"""{body}\n{indent}"""'


def script_comment(text: str, indent: str = "") -> str:
    """``text`` as a JavaScript documentation comment. Comment ends in it are escaped."""
    safe = text.replace("*/", "*\\/")
    return "\n".join([f"{indent}/**", *(f"{indent} * {line}".rstrip() for line in safe.split("\n")), f"{indent} */"])


Side = Literal["given", "had"]

_SCALARS = {"null": "None", "boolean": "bool", "integer": "int", "number": "float", "string": "str"}
WORDS = ("Any", "Literal", "Mapping", "Sequence", "bool", "dict", "float", "int", "list", "str")


class Annotations:
    """The type annotations of one module. In a class a field hides a type of the same name, so that type is ``_name``.

    A ``given`` value may be a plain dictionary; one that a program ``had`` back is an object.
    """

    def __init__(self, hidden: Collection[str]) -> None:
        """``hidden``: the names of all fields of the module."""
        self.aliases = tuple(word for word in WORDS if word in hidden)

    def of(self, kind: Type, side: Side) -> str:
        """``kind`` as an annotation."""
        match kind:
            case Anything():
                return self.word("Any")
            case Scalar(kind=name):
                return _SCALARS[name] if name == "null" else self.word(_SCALARS[name])
            case Exact(values=values):
                return self._exact(values)
            case Array(item=item):
                return self._array(item, side)
            case Table(value=value):
                key = self.word("str")
                return f"{self.word('Mapping' if side == 'given' else 'dict')}[{key}, {self.of(value, side)}]"
            case RecordType(name=name):
                return f"{name} | {self.dictionary(kind)}" if side == "given" else name
            case Choice(options=options):
                return " | ".join(dict.fromkeys(self.of(option, side) for option in options))

    def dictionary(self, record: RecordType) -> str:
        """The type of a dictionary for ``record``."""
        return (
            f"{self.word('Mapping')}[{self.word('str')}, {self.word('Any')}]" if record.open else f"{record.name}Dict"
        )

    def word(self, name: str) -> str:
        """The name of a type, with a prefix if a field hides it."""
        return f"_{name}" if name in self.aliases else name

    def _array(self, item: Type, side: Side) -> str:
        # A str would pass as Sequence[str]. For other items Sequence is better: list[int] is not a list[float].
        textual = item == Scalar("string") or isinstance(item, Anything | Exact | Choice)
        kind = "list" if side == "had" or textual else "Sequence"
        return f"{self.word(kind)}[{self.of(item, side)}]"

    def _exact(self, values: tuple[Plain, ...]) -> str:
        if values == (None,):
            return "None"
        return f"{self.word('Literal')}[{', '.join(map(repr, values))}]"


def shape_of(kind: Type) -> str:
    """A type as the runtime reads it (see guest/modules/mcptools/_objects.py): a class; ``[s]`` a list; ``{"": s}`` a
    table; ``(s, s)`` a choice; ``None`` for a value that stays as it is."""
    match kind:
        case RecordType(name=name):
            return name
        case Array(item=item):
            return _around("[", shape_of(item), "]")
        case Table(value=value):
            return _around('{"": ', shape_of(value), "}")
        case Choice(options=options):
            shapes = [shape for shape in dict.fromkeys(map(shape_of, options)) if shape != "None"]
            return shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})" if shapes else "None"
        case _:
            return "None"


def _around(before: str, shape: str, after: str) -> str:
    return "None" if shape == "None" else f"{before}{shape}{after}"


PACKAGE = "mcptools"
# Names that generated modules define or import, in addition to a tool's classes.
_CLASSES = frozenset((
    *WORDS, *OWN_NAMES, "Params", "ParamsDict", "Result", "NotRequired", "TypedDict", "TypeAlias", "None", "Tool",
    "TYPE_CHECKING", "annotations", "overload", "run", "arun",
))  # fmt: skip
# Attributes of every object of the runtime: dict's methods and three more.
ATTRIBUTES = frozenset(
    (*(name for name in dir(dict) if not name.startswith("_")), "from_wire", "to_wire", "model_dump")
)
_KEYWORDS = frozenset(("self",))
_LONGEST_NESTED = 4_000  # characters on the objects within parameters and results
Name: TypeAlias = Literal["keyword", "attribute"]  # which name of a field: as an argument, or on an object
_PLAIN = {"Params": "The parameters.", "Result": "The result."}


@dataclass(frozen=True, slots=True)
class Readable:
    tool: Tool
    module: str
    parameters: Document
    result: Document | None = None
    samples: Document | None = None


def tool_source(readable: Readable) -> str:
    """The source of a tool's module: ``Params``, ``Result``, ``run`` and ``arun``."""
    types = _types(readable)
    params, result, records = types.params, types.result, types.records
    names = {field.attribute for record in records for field in record.fields}
    notes = Annotations(names | {field.keyword for record in records for field in record.fields})
    open_params = params.open or not params.fields
    lines = [
        python_docstring(documentation(readable, types)),
        "",
        "from __future__ import annotations",
        "",
        "from mcptools._objects import UNSET, Object, Output",
        "from mcptools._running import Tool",
        "",
        "TYPE_CHECKING = False",
        "if TYPE_CHECKING:",
        "    from collections.abc import Mapping, Sequence",
        "    from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, overload",
        *(f"    _{word} = {word}" for word in notes.aliases),
        "",
    ]
    for record in records:
        lines += ["", *_class(record, notes, extras=record is params and open_params)]
    lines += ["", *(line for record in records for line in _definition(record))]
    shape = "None" if result is None else shape_of(result)
    names_on_wire = f"{readable.tool.server!r}, {readable.tool.name!r}"
    lines += ["", *_result(result, notes), "", f"_tool = Tool({names_on_wire}, Params, {shape})"]
    lines += ["", "", "if TYPE_CHECKING:", *_declarations(params, notes, extras=open_params)]
    lines += ["else:", *_DEFINED]
    lines += ["", '__all__ = ["run", "arun"]  # shown by help(); everything above can be imported']
    return "\n".join(lines) + "\n"


def package_source(server: str, package: str, modules: Mapping[str, Tool]) -> str:
    """The source of a server's package, which loads modules on use. ``modules``: its tools by module name."""
    listed = "\n".join(f"    {name}: {one_line(tool.description or tool.title, 160)}".rstrip(": ") for name, tool in
                       modules.items())  # fmt: skip
    head = f"Tools of the MCP server {one_line(server, 100)}. Each is a module with `run`, `arun` and `Params`."
    names = ", ".join(map(repr, modules))
    return "\n".join([
        python_docstring(f"{head}\n\n{listed}".strip()),
        "",
        "from mcptools._running import members",
        "",
        "TYPE_CHECKING = False",
        "if TYPE_CHECKING:",
        "    pass",
        *(f"    from {PACKAGE}.{package} import {name} as {name}" for name in modules),
        "",
        f"__all__ = [{names}]",
        "__getattr__, __dir__ = members(__name__)",
        "",
    ])  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Types:
    params: RecordType
    result: Type | None
    records: Sequence[RecordType]  # all records in both
    given: int  # how many of them, from the first, are in the parameters


def _types(readable: Readable) -> _Types:
    reader = SchemaReader(reserved_classes=_CLASSES, reserved_attributes=ATTRIBUTES, reserved_keywords=_KEYWORDS)
    params = reader.parameters(readable.parameters, "Params")
    given = len(reader.records)
    result = reader.type_of(readable.result, "Result") if readable.result is not None else None
    return _Types(params, result, reader.records, given)


def documentation(readable: Readable, types: _Types | None = None) -> str:
    """A tool's documentation for people and models: description, parameters and result."""
    types = types or _types(readable)
    tool, params = readable.tool, types.params
    parts = [visible_text(tool.description) or one_line(tool.title) or f"The tool {one_line(tool.name)}."]
    if params.fields:
        parts.append("\n".join(["Parameters of run() and Params():", *(_line(field) for field in params.fields)]))
    hints = tool.hints
    said = [text for flag, text in ((hints.read_only, "only reads"), (hints.destructive, "may destroy"),
            (hints.idempotent, "may be repeated")) if flag]  # fmt: skip
    if said:
        parts.append(f"Its server says that it {', '.join(said)}.")
    if readable.result is None:
        parts.append("Returns text (an Output, which is a str); `.content` has the whole answer.")
        if readable.samples is not None:
            parts.append(_describe_samples(readable.samples))
    else:
        parts.append(_gives(types.result))
    inner = [record for record in types.records if record is not params and record is not types.result]
    taken = types.records[: types.given]
    nested = [_within(record, "keyword" if record in taken else "attribute") for record in inner]
    if nested:
        parts.append(visible_text("\n".join(["Objects in these:", *nested]), _LONGEST_NESTED))
    return "\n\n".join(parts)


def _gives(result: Type | None) -> str:
    if isinstance(result, RecordType) and result.fields:
        return "\n".join(["Returns a Result:", *(_line(field, "attribute") for field in result.fields)])
    if result is None or isinstance(result, RecordType):
        return "Returns an object."
    return f"Returns {one_line(Annotations(()).of(result, 'had'), 200)}."


def _within(record: RecordType, name: Name) -> str:
    lines = [_line(field, name).replace("    ", "        ", 1) for field in record.fields]
    return "\n".join([f"    {record.name}:{'' if lines else ' any keys'}", *lines])


def _describe_samples(samples: Document) -> str:
    """The type inferred from earlier results, for people. The server does not promise it."""
    reader = SchemaReader(reserved_classes=_CLASSES, reserved_attributes=ATTRIBUTES)
    plain = Annotations(())
    lines = [f"Its results so far, read as JSON: {one_line(plain.of(reader.type_of(samples, 'Seen'), 'had'))}."]
    for record in reader.records:
        fields = [f"{one_line(field.key, 60)}: {one_line(plain.of(field.type, 'had'), 200)}" for field in record.fields]
        lines.append(f"    {record.name}: {', '.join(fields)}")
    return visible_text("\n".join(lines), 2_000)


def _line(field: Field, name: Name = "keyword") -> str:
    kind = one_line(Annotations(()).of(field.type, "had"), 200)
    optional = "" if field.required else ", optional"
    called = field.keyword if name == "keyword" else field.attribute
    wire = "" if field.key == called else f" [{one_line(field.key, 100)}]"
    default = f" Default: {one_line(field.default, 80)}." if field.default else ""
    return f"    {called} ({kind}{optional}):{wire} {one_line(field.description)}{default}".rstrip(" :")


def _class(record: RecordType, notes: Annotations, *, extras: bool) -> list[str]:
    text = one_line(record.description) or _PLAIN.get(record.name, "A JSON object.")
    lines = [f"class {record.name}(Object):", f"    {python_docstring(text, '    ')}", ""]
    for field in record.fields:
        kind = notes.of(field.type, "had")
        lines.append(f"    {field.attribute}: {kind if field.required else _or_none(kind)}")
    if record.fields:
        lines.append("")
    head = _signature(record, notes, extras=extras or record.open, first="self")
    described = ["    if TYPE_CHECKING:", "", f"        def __init__({head}) -> None: ...", ""]
    keys = ", ".join(f"{f.key!r}: {_entry(f, notes)!r}" for f in record.fields)
    typed = f"    {record.name}Dict = TypedDict({f'{record.name}Dict'!r}, {{{keys}}})"
    dictionary = [] if record.open else ["", "if TYPE_CHECKING:", typed]
    return [*lines, *described, *dictionary, ""]


def _entry(field: Field, notes: Annotations) -> str:
    kind = notes.of(field.type, "given")
    return kind if field.required else f"NotRequired[{kind}]"


def _or_none(kind: str) -> str:
    return kind if kind == "None" or kind.endswith("| None") or kind in ("Any", "_Any") else f"{kind} | None"


def _signature(record: RecordType, notes: Annotations, *, extras: bool, first: str = "") -> str:
    named = [f"{f.keyword}: {notes.of(f.type, 'given')}{'' if f.required else ' = ...'}" for f in record.fields]
    more = [f"**extra: {notes.word('Any')}"] if extras else []
    return ", ".join([*([first] if first else []), *(["*"] if named else []), *named, *more])


def _definition(record: RecordType) -> list[str]:
    rows = [_row(field) for field in record.fields]
    closed = record.extra is None
    return [f"{record.name}._define([", *(f"    {row}," for row in rows), f"], closed={closed}, open={record.open})"]


def _row(field: Field) -> str:
    kind = field.type
    exact = kind.values if isinstance(kind, Exact) and len(kind.values) <= 4 else None  # tell a choice's records apart
    parts = [repr(field.key), repr(field.keyword), repr(field.attribute), str(field.required), shape_of(kind)]
    return f"({', '.join([*parts, repr(exact)])})"


def _result(result: Type | None, notes: Annotations) -> list[str]:
    if result is None:
        return ["Result = Output"]
    if isinstance(result, RecordType) and result.name == "Result":
        return []
    if isinstance(result, RecordType):
        return [f"Result = {result.name}"]
    runtime = "Object" if isinstance(result, Table) else "object"
    return [
        "if TYPE_CHECKING:",
        f"    Result: TypeAlias = {notes.of(result, 'had')}",
        "else:",
        f"    Result = {runtime}",
    ]


def _declarations(params: RecordType, notes: Annotations, *, extras: bool) -> list[str]:
    given = f"Params | {notes.dictionary(params)}"
    keywords = _signature(params, notes, extras=extras)
    lines: list[str] = []
    for word, name in (("def", "run"), ("async def", "arun")):
        lines += ["", "    @overload", f"    {word} {name}(params: {given}, /) -> Result: ..."]
        lines += ["    @overload", f"    {word} {name}({keywords}) -> Result: ..."]
        lines += [f"    {word} {name}(*params: Any, **arguments: Any) -> Any: ..."]
    return [*lines, ""]


_DEFINED = [
    "",
    "    def run(params=None, /, **arguments):",
    "        return _tool.run(params, arguments)",
    "",
    "    async def arun(params=None, /, **arguments):",
    "        return await _tool.arun(params, arguments)",
    "",
    "    run.__doc__ = __doc__",
    "    arun.__doc__ = 'As run(), in an event loop.'",
]


_SCRIPT_SCALARS = {"null": "null", "boolean": "boolean", "integer": "number", "number": "number", "string": "string"}
_HEAD = """\
/** A tool's answer: its `text`, and all of it in `content` (MCP's content blocks; bytes are in base64). */
export interface Output { text: string; content: Array<{ type: string; [key: string]: unknown }>; }
/** Why a call failed: `kind` is denied, tool, invalid, unknown, unavailable, timeout or limit. */
export class ToolError extends Error { kind: string; content: Array<{ type: string; [key: string]: unknown }>; }
export interface Progress { progress: number; total?: number; message?: string; }
export interface CallOptions { signal?: AbortSignal; onProgress?: (progress: Progress) => void; }
/** All content of a result: texts, images, audio, resources and links, as MCP has them. */
export function contentOf(result: unknown): Array<{ type: string; [key: string]: unknown }>;
/** Find tools. */
export function search(query?: string, detail?: "names" | "brief" | "full"): Promise<string>;
"""


def declarations(packages: Mapping[str, Mapping[str, Readable]]) -> str:
    """The text of ``index.d.ts``: one constant for each server, by package name, with a function for each tool."""
    reserved = {"Output", "ToolError", "CallOptions", "Progress", "Array", "Record", "Promise", "Error", "AbortSignal"}
    reader = SchemaReader(reserved_classes=reserved)
    bodies: list[str] = []
    for package, modules in packages.items():
        lines = [_function(module, readable, reader) for module, readable in modules.items()]
        bodies.append(f"export const {package}: {{\n" + "\n".join(lines) + "\n};\n")
    return "\n".join([_HEAD, *(_interface(record) for record in reader.records), *bodies])


def _function(module: str, readable: Readable, reader: SchemaReader) -> str:
    stem = "".join(word[:1].upper() + word[1:] for word in module.split("_") if word)
    params = reader.parameters(readable.parameters, reader.free_name(f"{stem}Params"))
    result = "Output"
    if readable.result is not None:
        result = _text(reader.type_of(readable.result, reader.free_name(f"{stem}Result")))
    optional = "" if any(field.required for field in params.fields) else "?"
    comment = script_comment(visible_text(readable.tool.description) or readable.module, "  ")
    return f"{comment}\n  {module}(params{optional}: {params.name}, options?: CallOptions): Promise<{result}>;"


def _interface(record: RecordType) -> str:
    lines = [f"  {json.dumps(f.key)}{'' if f.required else '?'}: {_text(f.type)};" for f in record.fields]
    if record.open or not record.fields:
        lines.append("  [key: string]: unknown;")
    return f"export interface {record.name} {{\n" + "\n".join(lines) + "\n}\n"


def _text(kind: Type) -> str:
    match kind:
        case Anything():
            return "unknown"
        case Scalar(kind=name):
            return _SCRIPT_SCALARS[name]
        case Exact(values=values):
            return " | ".join(json.dumps(value) for value in values)
        case Array(item=item):
            return f"Array<{_text(item)}>"
        case Table(value=value):
            return f"Record<string, {_text(value)}>"
        case RecordType(name=name):
            return name
        case Choice(options=options):
            return " | ".join(dict.fromkeys(map(_text, options)))
