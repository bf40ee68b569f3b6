"""The definition of a tool: its name, parameters, answer, and handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from casemate.api.keys import key_of
from casemate.errors import InvalidArgument
from casemate.model.foreign import ARGUMENTS, suggest

if TYPE_CHECKING:
    from mcp_types import CallToolResult, InputRequiredResult, Tool

    from casemate.surfaces.mcp.callers import Call

Schema = dict[str, Any]
Handler = Callable[["Call"], Awaitable["CallToolResult | InputRequiredResult"]]


def _object(properties: Mapping[str, Schema], required: tuple[str, ...]) -> Schema:
    return {"type": "object", "properties": dict(properties), **({"required": list(required)} if required else {})}


@dataclass(frozen=True, slots=True)
class Kind:
    """A tool's effects: hints for clients (MCP's annotations), neither promised nor checked."""

    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False


LOOKS = Kind(read_only=True, idempotent=True)
RUNS = Kind(open_world=True)
CHANGES = Kind(idempotent=True)
ENDS = Kind(destructive=True, idempotent=True)


@dataclass(frozen=True, slots=True)
class Definition:
    name: str
    title: str
    description: str
    properties: Mapping[str, Schema]  # JSON Schema of each parameter, in display order
    run: Handler
    required: tuple[str, ...] = ()
    gives: Mapping[str, Schema] | None = None  # fields of the structured answer; None for an answer of text only
    given_always: tuple[str, ...] | None = None  # required fields of ``gives``; None for all
    kind: Kind = RUNS
    _checks: list[Any] = field(default_factory=list, repr=False, compare=False)

    @property
    def input_schema(self) -> Schema:
        return _object(self.properties, self.required) | {"additionalProperties": False}

    @property
    def output_schema(self) -> Schema | None:
        if self.gives is None:
            return None
        return _object(self.gives, tuple(self.gives) if self.given_always is None else self.given_always)

    def definition(self) -> Tool:
        """The SDK's definition, for clients."""
        from mcp_types import Tool, ToolAnnotations

        return Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=self.input_schema,
            output_schema=self.output_schema,
            annotations=ToolAnnotations(
                title=self.title,
                read_only_hint=self.kind.read_only,
                destructive_hint=self.kind.destructive,
                idempotent_hint=self.kind.idempotent,
                open_world_hint=self.kind.open_world,
            ),
        )

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise ``InvalidArgument`` that names every wrong argument and lists the parameters."""
        if not self._checks:
            from jsonschema_rs import Draft202012Validator

            self._checks.append(Draft202012Validator(self.input_schema))
        known = {name: value for name, value in arguments.items() if name in self.properties}
        unknown = (name for name in arguments if name not in known)
        wrong = [f"no parameter {name[:100]!r}{self._hint(name)}" for name in unknown]
        wrong += [
            f"{'.'.join(str(part) for part in error.instance_path)}: {error.message}".removeprefix(": ")
            for error in self._checks[0].iter_errors(known)
        ]
        if wrong:
            raise InvalidArgument("arguments", "; ".join(wrong[:_MOST_TOLD])[:_LONGEST], remediation=self.usage)

    def _hint(self, name: str) -> str:
        named = next((same for same in _SAME if name in same), {ARGUMENTS.get(name.lower())})
        mine = next((one for one in named if one in self.properties), "")
        return f"; it is {mine} here" if mine else suggest(name, self.properties)

    @property
    def usage(self) -> str:
        """Its parameters on one line, the required ones with an asterisk."""
        names = ", ".join(
            f"{name}{'*' if name in self.required else ''} ({_type(schema)})"
            for name, schema in self.properties.items()
        )
        return f"Parameters of {self.name}: {names or 'none'}."


# Names with one meaning, some from the systems whose tools these are.
_SAME = (frozenset({"session", "session_id"}), frozenset({"run", "request_id"}),
         frozenset({"timeout", "timeout_seconds"}), frozenset({"language", "runtime"}),
         frozenset({"max_ram_mb", "memory_mb", "memory", "ram"}), frozenset({"max_cpu_cores", "cpus"}))  # fmt: skip
_MOST_TOLD = 8  # wrong arguments reported
_LONGEST = 2000  # characters of the report, which quotes arguments


def option(definition: type, name: str, description: str = "", **overrides: Any) -> Schema:
    """The schema of an option of `casemate.api.options`, with keywords for a model in ``overrides``; None drops one."""
    key = key_of(definition, name)
    schema: Schema = {"type": _TYPES.get(key.form, "string"), "description": description or key.says}
    if key.form == "texts":
        schema["items"] = {"type": "string"}
    if key.choices:
        schema["enum"] = list(key.choices)
    schema |= {"minimum": key.low, "maximum": key.high, "default": key.default, **overrides}
    return {word: value for word, value in schema.items() if value is not None}


_TYPES = {"whole": "integer", "number": "number", "seconds": "number", "flag": "boolean", "texts": "array"}


def text(description: str, **more: Any) -> Schema:
    """The schema of a text."""
    return {"type": "string", "description": description, **more}


def texts(description: str) -> Schema:
    """The schema of a list of texts."""
    return {"type": "array", "items": {"type": "string"}, "description": description}


def number(description: str, **more: Any) -> Schema:
    """The schema of a number."""
    return {"type": "number", "description": description, **more}


def whole(description: str, **more: Any) -> Schema:
    """The schema of an integer of at least 0."""
    return {"type": "integer", "minimum": 0, "description": description, **more}


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return " | ".join(f'"{one}"' for one in schema["enum"])
    kind = schema.get("type", "any JSON value")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
