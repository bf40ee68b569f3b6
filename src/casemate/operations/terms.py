"""What parameters of operations may be: kinds of values, with their bounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from casemate.execution.request import MAX_CODE, Content
from casemate.model.operation import Between, Most

DAY = 86_400.0  # seconds
MOST_PAGE = 1_000_000  # characters, or bytes, of one answer

Language = Literal["python", "node", "shell"]
Code = Annotated[str, Most(MAX_CODE)]
Name = Annotated[str, Most(200)]
Path = Annotated[str, Most(1024)]
Text = Annotated[str, Most(64 << 20)]
Seconds = Annotated[float, Between(0.01, 7 * DAY)]
Wait = Annotated[float, Between(0.0, 3600.0)]
Cursor = Annotated[int, Between(0, 2**53)]
Page = Annotated[int, Between(1, MOST_PAGE)]
Files = Annotated[Mapping[str, Content], Most(10_000)]
Variables = Annotated[Mapping[str, str], Most(10_000)]
Names = Annotated[Sequence[str], Most(1000)]
Metadata = Annotated[Mapping[str, Any], Most(1000)]
