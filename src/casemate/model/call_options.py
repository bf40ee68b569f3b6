"""The options of a step and of a decision. Those of other calls are in ``casemate.api.options``.

Annotations here are evaluated at import, for ``model.options`` reads them: no ``from __future__ import annotations``.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from casemate.model.operation import Between, Most
from casemate.model.options import Default

DAY = 86_400.0  # seconds
USUAL_SECONDS = 60.0  # default timeout of a run or a step
USUAL_CELL_SECONDS = 120.0  # of a cell in an MCP client's session
USUAL_PAGE_SECONDS = 30.0  # of a web page
USUAL_TIMES = (USUAL_SECONDS, USUAL_CELL_SECONDS, USUAL_PAGE_SECONDS)
Seconds = Annotated[float, Between(0.01, 7 * DAY)]
Text = Annotated[str, Most(64 << 20)]
Scope = Literal["once", "run", "session"]
Priority = Literal["low", "normal", "high"]


class RecordOptions(TypedDict, total=False):
    """Options of any call that is recorded."""

    metadata: Annotated[Annotated[Mapping[str, Any], Most(1000)] | None, Default(None)]
    """JSON values that are returned with the outcome, and recorded."""


class StepOptions(RecordOptions, total=False):
    """Options of a program in a session."""

    timeout: Annotated[Seconds | None, Default(USUAL_SECONDS)]
    """Seconds that the program may run, without the time that it waits for an approval; none for `limits.wall`."""
    stdin: Annotated[Text | bytes | None, Default(None)]
    """What the program reads as standard input."""
    priority: Annotated[Priority, Default("normal")]
    """`"low"`, `"normal"` or `"high"`: its place among waiting programs; at most normal for an agent."""
    start_within: Annotated[Seconds | None, Default(None)]
    """Seconds that it may wait in the queue before it is refused; none for no bound."""


class DecisionOptions(TypedDict, total=False):
    """Options of an answer to an approval request."""

    scope: Annotated[Scope, Default("once")]
    """How long the same may cross again without asking: once, or until the run or the session ends."""
    uses: Annotated[Annotated[int, Between(1, 1_000_000)] | None, Default(None)]
    """How often the same may cross, including this time; none for no bound."""
    expires: Annotated[Seconds | None, Default(None)]
    """Seconds from now after which it may not cross any more; none for the whole scope."""
    reason: Annotated[Annotated[str, Most(2000)], Default("")]
    """The reason, for the program that asked and for the record."""
    content: Annotated[Annotated[Mapping[str, Any], Most(10_000)] | None, Default(None)]
    """The values of a form, if the request asks for some."""
