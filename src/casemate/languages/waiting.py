"""Decides whether a program can begin in a process that started before the program was known.

A waiting process cannot change what it read when it started. A program that needs such a change takes the slower way.
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
_MAX_ORDER = 6000  # bytes; a pipe of a user with very many pipes holds 8 KiB, and writing more would block
# Variables read by the dynamic loader, the C library and OpenSSL when a process starts.
_AT_START = re.compile(r"LD_|MALLOC_|GLIBC_|GCONV_|LC_|LANG\Z|LANGUAGE\Z|LOCPATH|NLSPATH|OPENSSL_|SSL_|ICU_")


@dataclass(frozen=True, slots=True)
class RequestedProgram:
    """A program to begin."""

    launch: Launch  # how to execute it
    program_name: str
    arguments: tuple[str, ...]
    code: bytes
    files: Mapping[str, bytes | Path]
    env: Mapping[str, str] = field(repr=False)  # its whole environment
    given_env: Mapping[str, str] = field(repr=False)  # the caller's part of it, including secrets
    base_env: Mapping[str, str]  # the rest, made for the limits ``most``
    limits: Limits
    most: Limits  # the limits that cells are made with
    folder: Path | None  # the caller's workspace
    preload: tuple[str, ...] | None  # modules that the sandbox was asked to preload; None for the default
    session: bool = False  # whether it is an interpreter that takes steps, on the descriptor on which it waits


def too_special(asked: RequestedProgram, default_name: str) -> str:
    """Why a program of any language cannot begin in a waiting process; empty if it can."""
    if asked.program_name != default_name:
        return f"its program has another name, {asked.program_name}"
    if asked.files and asked.folder is not None:
        return "files are given over a caller's folder"
    if "output" in asked.files:
        return "a given file is named output"
    return ""


def read_at_start(asked: RequestedProgram, more: re.Pattern[str]) -> str:
    """Why these variables need a new process; empty if they do not. ``more``: further names this interpreter reads."""
    for name in asked.given_env:
        if _AT_START.match(name) or more.match(name):
            return f"the variable {name} is read when a process starts"
    return ""


def json_order(env: Mapping[str, str], arguments: tuple[str, ...], *, session: bool = False) -> bytes | str:
    """The order for processes that read JSON, or the reason why none can be made."""
    order: dict[str, object] = {"env": dict(env), "arguments": arguments}
    if session:
        order["session"] = True  # requests follow on the descriptor of the order
    try:
        body = _TO_JSON(order).encode()
    except UnicodeEncodeError:
        return "a variable or an argument is not valid UTF-8"
    return check_order_length(len(body).to_bytes(4, "big") + body)


def check_order_length(order: bytes) -> bytes | str:
    """``order``, or the reason if it is too long."""
    return order if len(order) <= _MAX_ORDER else "its variables and arguments are too long to be handed over"
