"""What a tool is: its name, what it takes and gives, and the function behind it."""

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
    """What a tool does to the world: hints for clients (MCP's annotations), no promise and no check."""

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
    """One tool. ``properties``: JSON Schema of each parameter, in the order in which they are shown; ``gives``: those
    of the structured answer, None for a tool whose answer is its text."""

    name: str
    title: str
    description: str
    properties: Mapping[str, Schema]
    run: Handler
    required: tuple[str, ...] = ()
    gives: Mapping[str, Schema] | None = None
    given_always: tuple[str, ...] = ()
    kind: Kind = RUNS
    _checks: list[Any] = field(default_factory=list, repr=False, compare=False)

    @property
    def input_schema(self) -> Schema:
        return _object(self.properties, self.required) | {"additionalProperties": False}

    @property
    def output_schema(self) -> Schema | None:
        return None if self.gives is None else _object(self.gives, self.given_always)

    def definition(self) -> Tool:
        """As clients are told of it."""
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
        """Raises ``InvalidArgument`` that names every argument that is wrong and says what there is."""
        if not self._checks:
            from jsonschema_rs import Draft202012Validator

            self._checks.append(Draft202012Validator(self.input_schema))
        known = {name: value for name, value in arguments.items() if name in self.properties}
        unknown = (name for name in arguments if name not in known)
        wrong = [f"there is no {name[:100]!r}{self._hint(name)}" for name in unknown]
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
        """Its parameters on one line, those that must be given with an asterisk."""
        names = ", ".join(
            f"{name}{'*' if name in self.required else ''} ({_type(schema)})"
            for name, schema in self.properties.items()
        )
        return f"Parameters of {self.name}: {names or 'none'}."


# Names for one thing, some of which are those of the systems whose tools these are.
_SAME = (frozenset({"session", "session_id"}), frozenset({"run", "request_id"}),
         frozenset({"timeout", "timeout_seconds"}), frozenset({"language", "runtime"}),
         frozenset({"max_ram_mb", "memory_mb", "memory", "ram"}), frozenset({"max_cpu_cores", "cpus"}))  # fmt: skip
_MOST_TOLD = 8  # wrong arguments
_LONGEST = 2000  # characters about them: they quote what was given


def option(definition: type, name: str, description: str = "", **overrides: Any) -> Schema:
    """The schema of an option of a call, as its ``definition`` has it (`casemate.api.options`), but for what a model
    needs in other words; None leaves a word out."""
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
    """The schema of a whole number from 0 on."""
    return {"type": "integer", "minimum": 0, "description": description, **more}


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return " | ".join(f'"{one}"' for one in schema["enum"])
    kind = schema.get("type", "any JSON value")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
