"""Parameters that many commands have."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

Name = Annotated[str, Parameter(allow_leading_hyphen=True)]
Flag = Annotated[bool, Parameter(negative=())]
Output = Annotated[Literal["text", "json"], Parameter(name=("--output", "--format"))]  # json: the answer, for programs
AsJson = Annotated[bool, Parameter(name="--json", negative=(), show=False)]  # what --output json was called before
