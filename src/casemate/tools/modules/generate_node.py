"""TypeScript declarations for what `require("mcptools")` gives in Node. Pure.

Node needs no generated code: its functions are made when they are used, from names and arguments alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from casemate.tools.modules.generate_python import Readable
from casemate.tools.modules.literals import script_comment, shown
from casemate.tools.schemas.reading import Reader
from casemate.tools.schemas.types import Anything, Array, Choice, Exact, Record, Scalar, Table, Type

_SCALARS = {"null": "null", "boolean": "boolean", "integer": "number", "number": "number", "string": "string"}
_HEAD = """\
/** What a tool said: `text`, and all of it in `content` (MCP's content blocks; bytes are in base64). */
export interface Output { text: string; content: Array<{ type: string; [key: string]: unknown }>; }
/** Why a call failed: `kind` is denied, tool, invalid, unknown, unavailable, timeout or limit. */
export class ToolError extends Error { kind: string; content: Array<{ type: string; [key: string]: unknown }>; }
export interface Progress { progress: number; total?: number; message?: string; }
export interface CallOptions { signal?: AbortSignal; onProgress?: (progress: Progress) => void; }
/** Everything that came with a result: texts, images, audio, resources and links, as MCP has them. */
export function contentOf(result: unknown): Array<{ type: string; [key: string]: unknown }>;
/** Tools for what the words say. */
export function search(query?: string, detail?: "names" | "brief" | "full"): Promise<string>;
"""


def declarations(packages: Mapping[str, Mapping[str, Readable]]) -> str:
    """The text of ``index.d.ts``: one constant for each server, by package name, with a function for each tool."""
    reserved = {"Output", "ToolError", "CallOptions", "Progress", "Array", "Record", "Promise", "Error", "AbortSignal"}
    reader = Reader(reserved_classes=reserved)
    bodies: list[str] = []
    for package, modules in packages.items():
        lines = [_function(module, readable, reader) for module, readable in modules.items()]
        bodies.append(f"export const {package}: {{\n" + "\n".join(lines) + "\n};\n")
    return "\n".join([_HEAD, *(_interface(record) for record in reader.records), *bodies])


def _function(module: str, readable: Readable, reader: Reader) -> str:
    stem = "".join(word[:1].upper() + word[1:] for word in module.split("_") if word)
    params = reader.parameters(readable.parameters, reader.free_name(f"{stem}Params"))
    result = "Output"
    if readable.result is not None:
        result = _text(reader.type_of(readable.result, reader.free_name(f"{stem}Result")))
    optional = "" if any(field.required for field in params.fields) else "?"
    comment = script_comment(shown(readable.tool.description) or readable.module, "  ")
    return f"{comment}\n  {module}(params{optional}: {params.name}, options?: CallOptions): Promise<{result}>;"


def _interface(record: Record) -> str:
    lines = [f"  {json.dumps(f.key)}{'' if f.required else '?'}: {_text(f.type)};" for f in record.fields]
    if record.open or not record.fields:
        lines.append("  [key: string]: unknown;")
    return f"export interface {record.name} {{\n" + "\n".join(lines) + "\n}\n"


def _text(kind: Type) -> str:
    match kind:
        case Anything():
            return "unknown"
        case Scalar(kind=name):
            return _SCALARS[name]
        case Exact(values=values):
            return " | ".join(json.dumps(value) for value in values)
        case Array(item=item):
            return f"Array<{_text(item)}>"
        case Table(value=value):
            return f"Record<string, {_text(value)}>"
        case Record(name=name):
            return name
        case Choice(options=options):
            return " | ".join(dict.fromkeys(map(_text, options)))
