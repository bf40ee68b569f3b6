"""The options of a step and of a decision, each defined once; those of other calls are in ``casemate.api.options``.

Annotations here are evaluated at import, for ``model.options`` reads them: no ``from __future__ import annotations``.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from casemate.model.operation import Between, Most
from casemate.model.options import Default

DAY = 86_400.0  # seconds
USUAL_SECONDS = 60.0  # that a run or a step may take where nobody has said
USUAL_CELL_SECONDS = 120.0  # of a cell in an MCP client's own session
USUAL_PAGE_SECONDS = 30.0  # of a page of the web
USUAL_TIMES = (USUAL_SECONDS, USUAL_CELL_SECONDS, USUAL_PAGE_SECONDS)
Seconds = Annotated[float, Between(0.01, 7 * DAY)]
Text = Annotated[str, Most(64 << 20)]
Scope = Literal["once", "run", "session"]
Priority = Literal["low", "normal", "high"]


class RecordOptions(TypedDict, total=False):
    """What the record has of any call."""

    metadata: Annotated[Annotated[Mapping[str, Any], Most(1000)] | None, Default(None)]
    """JSON values that come back with the outcome, and are kept on record."""


class StepOptions(RecordOptions, total=False):
    """Options of a program in a session."""

    timeout: Annotated[Seconds | None, Default(USUAL_SECONDS)]
    """Seconds from its start that the program may take, not counted while it waits for an approval; none for
    `limits.wall`."""
    stdin: Annotated[Text | bytes | None, Default(None)]
    """What the program reads as standard input."""
    priority: Annotated[Priority, Default("normal")]
    """`"low"`, `"normal"` or `"high"`: whose turn comes first where programs wait; an agent's is normal at the most."""
    start_within: Annotated[Seconds | None, Default(None)]
    """Seconds that it may wait for its turn, after which it is refused; none for as long as that takes."""


class DecisionOptions(TypedDict, total=False):
    """Options of an answer to an approval request."""

    scope: Annotated[Scope, Default("once")]
    """For how long the same may cross again without asking: once, or until the run or the session ends."""
    uses: Annotated[Annotated[int, Between(1, 1_000_000)] | None, Default(None)]
    """How often the same may cross, this time among them; none for no bound."""
    expires: Annotated[Seconds | None, Default(None)]
    """Seconds from now after which it may not cross any more; none for the whole scope."""
    reason: Annotated[Annotated[str, Most(2000)], Default("")]
    """What the program that asked is told, and the record has."""
    content: Annotated[Annotated[Mapping[str, Any], Most(10_000)] | None, Default(None)]
    """What was filled in, where the request asks for that."""
