"""What callers give to a sandbox, as the JSON values that its service takes."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate.errors import InvalidArgument

if TYPE_CHECKING:
    from casemate.execution.request import Content
    from casemate.model.limits import Limits
    from casemate.remote.blocking import BlockingHttp
    from casemate.remote.client import RemoteOperations

_INLINE = 128 * 1024  # bytes of a file that travel with the arguments; larger ones are uploaded
_INLINE_ALL = 1024 * 1024  # of all files together


def text_of(argument: str, value: str | bytes) -> str:
    """Programs and standard input travel as text. Raises ``InvalidArgument`` for bytes that are none."""
    if isinstance(value, str):
        return value
    try:
        return bytes(value).decode()
    except (UnicodeDecodeError, TypeError):
        raise InvalidArgument(
            argument, "a service takes text or UTF-8 only", remediation="Give other bytes as a file (files=...)."
        ) from None


def limits_of(limits: Limits | None) -> dict[str, Any] | None:
    """Limits as a document."""
    return None if limits is None else {field.name: getattr(limits, field.name) for field in fields(limits)}


def plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON values, without those that nobody gave. Raises ``InvalidArgument``."""
    told = {name: value for name, value in given.items() if value is not None}
    for name in ("code", "stdin"):
        if name in told:
            told[name] = text_of(name, told[name])
    if "limits" in told:
        told["limits"] = limits_of(told["limits"])
    for name in ("secrets", "allowed_domains", "arguments"):
        if isinstance(told.get(name), str):
            raise InvalidArgument(name, f"{told[name]!r} is one text; give a list of them")
        if isinstance(told.get(name), Sequence | frozenset | set):
            told[name] = list(told[name])
    return {name: value for name, value in told.items() if value != [] or name == "allowed_domains"}


async def upload_files(remote: RemoteOperations, files: Mapping[str, Content] | None) -> dict[str, Any] | None:
    """Files as the service takes them: small ones as they are, others sent ahead. Raises ``InvalidArgument``."""
    if files is None:
        return None
    travels, told = _Travels(), {}
    for name, content in files.items():
        data = await asyncio.to_thread(_bytes_of, name, content)
        told[name] = travels.inline(content, data) or {"handle": await remote.upload(data)}
    return told


def uploaded_blocking(blocking: BlockingHttp, files: Mapping[str, Content] | None) -> dict[str, Any] | None:
    """The same for methods that are not awaited: blocks. Raises as that does."""
    if files is None:
        return None
    travels, told = _Travels(), {}
    for name, content in files.items():
        data = _bytes_of(name, content)
        told[name] = travels.inline(content, data) or {"handle": blocking.upload(data)}
    return told


class _Travels:
    """What may still travel with the arguments of one call."""

    def __init__(self) -> None:
        self._left = _INLINE_ALL

    def inline(self, content: Content, data: bytes) -> dict[str, str] | None:
        """A file as it travels with the arguments; None for one that is too large for that."""
        if len(data) > min(_INLINE, self._left):
            return None
        self._left -= len(data)
        return _inline(content, data)


def _inline(content: Content, data: bytes) -> dict[str, str]:
    return {"text": content} if isinstance(content, str) else {"base64": base64.b64encode(data).decode()}


def _bytes_of(name: str, content: Content) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    if not isinstance(content, os.PathLike):
        raise InvalidArgument("files", f"{name!r} is neither bytes, str nor a path")
    try:
        return Path(content).read_bytes()
    except OSError as error:
        raise InvalidArgument("files", f"{name!r}: {os.fspath(content)!r}: {error.strerror}") from None
