"""What a caller asks for, checked for form and bounded, before any policy has seen it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casemate.model.limits import Limits
from casemate.model.secrets import NO_SECRETS, Secrets


@dataclass(frozen=True, slots=True)
class Request:
    """One execution as asked for.

    ``code``: the program's bytes (valid UTF-8, no NUL); ``program_name``: the file name that
    tracebacks show; ``timeout``: seconds or None for the operator's cap; ``files``: relative
    name to content (``bytes``) or to a regular file on the host (``Path``). ``session``: of which it is a step;
    ``has_stdin``: whether a step was given any. ``allowed_domains``: None for all that the sandbox allows.
    ``secrets``: variables besides ``env``, whose values nobody else sees.
    """

    id: str
    code: bytes
    language: str
    program_name: str
    arguments: tuple[str, ...]
    timeout: float | None
    limits: Limits | None
    env: Mapping[str, str]
    files: Mapping[str, bytes | Path]
    stdin: bytes
    namespace: str
    metadata: Mapping[str, Any]
    session: str | None = None
    has_stdin: bool = False
    allowed_domains: tuple[str, ...] | None = None
    secrets: Secrets = NO_SECRETS
