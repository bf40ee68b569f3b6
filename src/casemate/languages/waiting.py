"""May a program begin in a process that was started before it was known? Pure, but for looking at times of change.

What a process reads once, when it starts, cannot be told to one that waits: such a program takes the slower way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from casemate.model.limits import Limits
    from casemate.model.plan import Launch

_TO_JSON = json.JSONEncoder(ensure_ascii=False).encode
_MAX_ORDER = 6000  # bytes; the pipe of a user with very many pipes holds 8 KiB, and writing more would wait
# Read by the dynamic loader, the C library and OpenSSL when a process starts.
_AT_START = re.compile(r"LD_|MALLOC_|GLIBC_|GCONV_|LC_|LANG\Z|LANGUAGE\Z|LOCPATH|NLSPATH|OPENSSL_|SSL_|ICU_")


@dataclass(frozen=True, slots=True)
class RequestedProgram:
    """A program that is to be begun.

    ``launch``: how it would be executed, and ``env`` its whole environment, then; ``given_env``: what of that the
    caller gave, secrets included, and ``base_env`` the rest with ``most``, the limits that cells are made with, in
    mind; ``folder``: the caller's workspace; ``preload``: modules that the sandbox was asked to load ahead, None for
    the usual; ``session``: the program is an interpreter that takes steps, on the descriptor on which it waits.
    """

    launch: Launch
    program_name: str
    arguments: tuple[str, ...]
    code: bytes
    files: Mapping[str, bytes | Path]
    env: Mapping[str, str] = field(repr=False)
    given_env: Mapping[str, str] = field(repr=False)
    base_env: Mapping[str, str]
    limits: Limits
    most: Limits
    folder: Path | None
    preload: tuple[str, ...] | None
    session: bool = False


def too_special(asked: RequestedProgram, default_name: str) -> str:
    """Why no program of any language could begin so; empty when it may."""
    if asked.program_name != default_name:
        return f"its program has a name of its own, {asked.program_name}"
    if asked.files and asked.folder is not None:
        return "files are given over a caller's folder"
    if "output" in asked.files:
        return "a given file is called output"
    return ""


def read_at_start(asked: RequestedProgram, more: re.Pattern[str]) -> str:
    """Why the variables that were given need a new process; empty when they do not. ``more``: what it reads besides."""
    for name in asked.given_env:
        if _AT_START.match(name) or more.match(name):
            return f"the variable {name} is read when a process starts"
    return ""


def json_order(env: Mapping[str, str], arguments: tuple[str, ...], *, session: bool = False) -> bytes | str:
    """The order for processes that read JSON, or why there is none."""
    order: dict[str, object] = {"env": dict(env), "arguments": arguments}
    if session:
        order["session"] = True  # more will come where the order came from
    try:
        body = _TO_JSON(order).encode()
    except UnicodeEncodeError:
        return "a variable or an argument is not valid UTF-8"
    return check_order_length(len(body).to_bytes(4, "big") + body)


def check_order_length(order: bytes) -> bytes | str:
    """``order``, or why it is too long."""
    return order if len(order) <= _MAX_ORDER else "its variables and arguments are too long to be handed over"
