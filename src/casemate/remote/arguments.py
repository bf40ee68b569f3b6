"""What callers give to a sandbox, as the JSON values that its service takes."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate.errors import InvalidArgument

if TYPE_CHECKING:
    from casemate.execution.request import Content
    from casemate.model.limits import Limits
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
    """The limits that were given, as a document."""
    return None if limits is None else {name: getattr(limits, name) for name in sorted(limits.given)}


def plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON values, without those that nobody gave. Raises ``InvalidArgument``."""
    values = {name: value for name, value in arguments.items() if value is not None}
    for name in ("code", "stdin"):
        if name in values:
            values[name] = text_of(name, values[name])
    if "limits" in values:
        values["limits"] = limits_of(values["limits"])
    for name in ("secrets", "allowed_domains", "arguments"):
        if isinstance(values.get(name), str):
            raise InvalidArgument(name, f"{values[name]!r} is one text; give a list of them")
        if isinstance(values.get(name), Sequence | frozenset | set):
            values[name] = list(values[name])
    return {name: value for name, value in values.items() if value != [] or name == "allowed_domains"}


async def upload_files(remote: RemoteOperations, files: Mapping[str, Content] | None) -> dict[str, Any] | None:
    """Files as the service takes them: small ones as they are, others uploaded first. Raises ``InvalidArgument``."""
    if files is None:
        return None
    space, sent = _INLINE_ALL, dict[str, Any]()
    for name, content in files.items():
        data = await asyncio.to_thread(_bytes_of, name, content)
        if len(data) > min(_INLINE, space):
            sent[name] = {"handle": await remote.upload(data)}
        else:
            space -= len(data)
            sent[name] = {"text": content} if isinstance(content, str) else {"base64": base64.b64encode(data).decode()}
    return sent


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
