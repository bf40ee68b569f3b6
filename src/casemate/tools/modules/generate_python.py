"""Python for tools: the package `mcptools.<server>` and in it a module for each tool. Pure.

What comes out needs the standard library and the runtime package `mcptools` alone, which is in every cell and can be a
folder beside it. A stranger's text gets into literals and docstrings alone (`casemate.tools.modules.literals`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from casemate.tools.modules.literals import one_line, python_docstring, shown
from casemate.tools.modules.python_types import WORDS, Annotations, exact_values, shape_of
from casemate.tools.schemas.naming import OWN_NAMES
from casemate.tools.schemas.reading import Reader
from casemate.tools.schemas.schema import Document
from casemate.tools.schemas.types import Field, Record, Table, Type
from casemate.tools.tool import Tool

PACKAGE = "mcptools"
# What generated modules define or import besides the classes of a tool.
_CLASSES = frozenset(
    (*WORDS, *OWN_NAMES, "Params", "ParamsDict", "Result", "NotRequired", "TypedDict", "TypeAlias", "None")
)
# What every object of the runtime has as attributes: methods of dict, and two of its own.
ATTRIBUTES = frozenset((*(name for name in dir(dict) if not name.startswith("_")), "from_wire", "to_wire"))
_KEYWORDS = frozenset(("self",))
_LONGEST_NESTED = 4_000  # characters about the objects within parameters and results
Name: TypeAlias = Literal["keyword", "attribute"]  # what a field is called where it is given, and where it is read
_PLAIN = {"Params": "The parameters.", "Result": "What it gives."}


@dataclass(frozen=True, slots=True)
class Readable:
    """A tool whose schemas were read: ``result`` and ``samples`` are None where there is no such schema."""

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
        python_docstring(_documentation(readable, types)),
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
    lines += ["", '__all__ = ["run", "arun"]  # of which help() tells; all that is above can be imported']
    return "\n".join(lines) + "\n"


def package_source(server: str, package: str, modules: Mapping[str, Tool]) -> str:
    """The source of a server's package; ``modules``: its tools by module name. They are loaded when they are used."""
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
        "__getattr__, __dir__ = members(__name__, __all__)",
        "",
    ])  # fmt: skip


def documentation(readable: Readable) -> str:
    """What a person or a model reads of a tool: its description, parameters, and what it gives."""
    return _documentation(readable, _types(readable))


@dataclass(frozen=True, slots=True)
class _Types:
    """What a tool takes and gives, and all ``records`` in these: the first ``given`` are of what it takes."""

    params: Record
    result: Type | None
    records: Sequence[Record]
    given: int


def _types(readable: Readable) -> _Types:
    reader = Reader(reserved_classes=_CLASSES, reserved_attributes=ATTRIBUTES, reserved_keywords=_KEYWORDS)
    params = reader.parameters(readable.parameters, "Params")
    given = len(reader.records)
    result = reader.type_of(readable.result, "Result") if readable.result is not None else None
    return _Types(params, result, reader.records, given)


def _documentation(readable: Readable, types: _Types) -> str:
    tool, params = readable.tool, types.params
    parts = [shown(tool.description) or one_line(tool.title) or f"The tool {one_line(tool.name)}."]
    if params.fields:
        parts.append("\n".join(["Parameters of run() and Params():", *(_line(field) for field in params.fields)]))
    hints = tool.hints
    said = [text for flag, text in ((hints.read_only, "only reads"), (hints.destructive, "may destroy"),
            (hints.idempotent, "may be repeated")) if flag]  # fmt: skip
    if said:
        parts.append(f"Its server says that it {', '.join(said)}.")
    if readable.result is None:
        parts.append("Gives text (an Output, which is a str) with all that came back in `.content`.")
        if readable.samples is not None:
            parts.append(_seen(readable.samples))
    else:
        parts.append(_gives(types.result))
    inner = [record for record in types.records if record is not params and record is not types.result]
    taken = types.records[: types.given]
    nested = [_within(record, "keyword" if record in taken else "attribute") for record in inner]
    if nested:
        parts.append(shown("\n".join(["Objects in these:", *nested]), _LONGEST_NESTED))
    return "\n\n".join(parts)


def _gives(result: Type | None) -> str:
    if isinstance(result, Record) and result.fields:
        return "\n".join(["Gives a Result:", *(_line(field, "attribute") for field in result.fields)])
    if result is None or isinstance(result, Record):
        return "Gives an object."
    return f"Gives {one_line(Annotations(()).of(result, 'had'), 200)}."


def _within(record: Record, name: Name) -> str:
    """A class on one line of its name, and a line for each field."""
    lines = [_line(field, name).replace("    ", "        ", 1) for field in record.fields]
    return "\n".join([f"    {record.name}:{'' if lines else ' any keys'}", *lines])


def _seen(samples: Document) -> str:
    """The type inferred from what came back before, for people: it promises nothing."""
    reader = Reader(reserved_classes=_CLASSES, reserved_attributes=ATTRIBUTES)
    plain = Annotations(())
    lines = [f"What it gave so far, read as JSON, was {one_line(plain.of(reader.type_of(samples, 'Seen'), 'had'))}."]
    for record in reader.records:
        fields = [f"{one_line(field.key, 60)}: {one_line(plain.of(field.type, 'had'), 200)}" for field in record.fields]
        lines.append(f"    {record.name}: {', '.join(fields)}")
    return shown("\n".join(lines), 2_000)


def _line(field: Field, name: Name = "keyword") -> str:
    kind = one_line(Annotations(()).of(field.type, "had"), 200)
    optional = "" if field.required else ", optional"
    called = field.keyword if name == "keyword" else field.attribute
    wire = "" if field.key == called else f" [{one_line(field.key, 100)}]"
    default = f" Default: {one_line(field.default, 80)}." if field.default else ""
    return f"    {called} ({kind}{optional}):{wire} {one_line(field.description)}{default}".rstrip(" :")


def _class(record: Record, notes: Annotations, *, extras: bool) -> list[str]:
    """The class, and the dictionary that may be given in its place."""
    text = one_line(record.description) or _PLAIN.get(record.name, "An object as JSON has it.")
    lines = [f"class {record.name}(Object):", f"    {python_docstring(text, '    ')}", ""]
    described: list[str] = []
    for field in record.fields:
        kind = notes.of(field.type, "had")
        lines.append(f"    {field.attribute}: {kind if field.required else _or_none(kind)}")
    if record.fields:
        lines.append("")
    head = _signature(record, notes, extras=extras or record.open, first="self")
    described += ["    if TYPE_CHECKING:", "", f"        def __init__({head}) -> None: ...", ""]
    keys = ", ".join(f"{f.key!r}: {_entry(f, notes)!r}" for f in record.fields)
    typed = f"    {record.name}Dict = TypedDict({f'{record.name}Dict'!r}, {{{keys}}})"
    dictionary = [] if record.open else ["", "if TYPE_CHECKING:", typed]
    return [*lines, *described, *dictionary, ""]


def _entry(field: Field, notes: Annotations) -> str:
    kind = notes.of(field.type, "given")
    return kind if field.required else f"NotRequired[{kind}]"


def _or_none(kind: str) -> str:
    return kind if kind == "None" or kind.endswith("| None") or kind in ("Any", "_Any") else f"{kind} | None"


def _signature(record: Record, notes: Annotations, *, extras: bool, first: str = "") -> str:
    named = [f"{f.keyword}: {notes.of(f.type, 'given')}{'' if f.required else ' = ...'}" for f in record.fields]
    more = [f"**extra: {notes.word('Any')}"] if extras else []
    return ", ".join([*([first] if first else []), *(["*"] if named else []), *named, *more])


def _definition(record: Record) -> list[str]:
    """Keys, names and shapes as the runtime reads them."""
    rows = [_row(field) for field in record.fields]
    closed = record.extra is None
    return [f"{record.name}._define([", *(f"    {row}," for row in rows), f"], closed={closed}, open={record.open})"]


def _row(field: Field) -> str:
    parts = [repr(field.key), repr(field.keyword), repr(field.attribute), str(field.required), shape_of(field.type)]
    return f"({', '.join([*parts, exact_values(field.type) or 'None'])})"


def _result(result: Type | None, notes: Annotations) -> list[str]:
    if result is None:
        return ["Result = Output"]
    if isinstance(result, Record) and result.name == "Result":
        return []
    if isinstance(result, Record):
        return [f"Result = {result.name}"]
    runtime = "Object" if isinstance(result, Table) else "object"
    return [
        "if TYPE_CHECKING:",
        f"    Result: TypeAlias = {notes.of(result, 'had')}",
        "else:",
        f"    Result = {runtime}",
    ]


def _declarations(params: Record, notes: Annotations, *, extras: bool) -> list[str]:
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
