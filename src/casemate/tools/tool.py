"""A tool, as its server describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# What JSON can say: None, bool, int, float, str, list, dict with texts as keys.
Json = Any


@dataclass(frozen=True, slots=True)
class Hints:
    """What a server says of a tool's behaviour (MCP's annotations): hints of a stranger, never proof. None: unsaid."""

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool of one server, under the names that are used on the wire.

    ``server`` is the name under which the user added the server, ``name`` the tool's own, as sent in ``tools/call``.
    Schemas are JSON Schema as they came (an object, ``true`` or ``false``), unchecked; ``output_schema`` is None where
    there is none. ``samples`` is a schema inferred from what the tool returned before, where that is known. Everything
    but ``server`` was written by a stranger. ``asks_itself``: it is one of casemate's own, which asks for what it does.
    """

    server: str
    name: str
    description: str = ""
    input_schema: Json = field(default_factory=lambda: {"type": "object"})
    output_schema: Json = None
    title: str = ""
    hints: Hints = Hints()
    samples: Json = None
    meta: Mapping[str, Json] = field(default_factory=dict)
    asks_itself: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a tool cannot be used as it is described: ``code`` for programs, ``message`` for people, ``where`` in it."""

    tool: str
    code: str
    message: str
    where: str = ""
