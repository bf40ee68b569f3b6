"""What is asked before something crosses the wall, and what is answered. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["tool", "egress", "package", "shell", "host", "files", "server", "plan", "elicitation"]
Scope = Literal["once", "run", "session"]
Effect = Literal["allow", "deny", "ask"]


@dataclass(frozen=True, slots=True)
class Question:
    """Something that wants to cross the wall.

    ``arguments``: JSON values, resolved and canonical: rules match them, a person is shown them, and exactly they are
    acted upon. ``session``: None for a run of its own. ``server``, ``tool`` and ``schema`` (a hash of the tool's
    definition) are of tool calls.
    """

    kind: Kind
    summary: str
    arguments: Mapping[str, Any]
    namespace: str
    session: str | None
    run: str
    server: str = ""
    tool: str = ""
    schema: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer to an approval request.

    ``scope``: for how long the same may cross again without asking; ``uses``: how often, None for no bound;
    ``expires``: seconds from now, None for the whole scope; ``reason``: told to the code that asked, and recorded;
    ``content``: what was filled in, where the request asked for that (elicitation).
    """

    allow: bool = False
    scope: Scope = "once"
    uses: int | None = None
    expires: float | None = None
    reason: str = ""
    content: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided about a question: ``by`` names the rule or the channel, and where a rule is written."""

    allow: bool
    by: str
    reason: str = ""
    content: Mapping[str, Any] | None = None
