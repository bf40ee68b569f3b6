"""Kinds of values with their bounds, for options and the arguments of operations.

Annotations here are evaluated at import, for ``model.options`` reads them: no ``from __future__ import annotations``.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Annotated, Literal

from casemate.model.operation import Between, Most

MAX_CODE = 8 << 20  # bytes of one program; larger data belongs in files
MOST_PAGE = 1_000_000  # characters, or bytes, of one answer

FilePath = str | PathLike[str]  # on this machine
Content = bytes | bytearray | memoryview | str | PathLike[str]  # of a file, or the path of a file to copy

Code = Annotated[str, Most(MAX_CODE)]
Name = Annotated[str, Most(200)]
Names = Annotated[Sequence[str], Most(1000)]
Path = Annotated[str, Most(1024)]
Address = Annotated[str, Most(8192)]  # a URL
Reason = Annotated[str, Most(500)]
Port = Annotated[int, Between(1, 65535)]
Wait = Annotated[float, Between(0.0, 3600.0)]
Cursor = Annotated[int, Between(0, 2**53)]
Page = Annotated[int, Between(1, MOST_PAGE)]
Files = Annotated[Mapping[str, Content], Most(10_000)]
Variables = Annotated[Mapping[str, str], Most(10_000)]
Effect = Literal["allow", "deny", "ask"]  # of a rule
Strength = Literal["shared-kernel-without-namespaces", "shared-kernel", "own-kernel"]  # of a wall, the weakest first
