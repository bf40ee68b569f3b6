"""Tools for files of a session's workspace and for artifacts of a run. The same files as resources."""

from __future__ import annotations

import base64
import json
import mimetypes
from collections.abc import Mapping
from typing import Any

from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    ImageContent,
    ReadResourceResult,
    TextContent,
    TextResourceContents,
)

from casemate.errors import InvalidArgument, Unavailable
from casemate.policy.shown import shown_value
from casemate.surfaces.mcp import answers
from casemate.surfaces.mcp.answers import file_uri, picture_of, place_of, session_uri
from casemate.surfaces.mcp.callers import Call, Caller, Refused
from casemate.surfaces.mcp.tool import CHANGES, LOOKS, Definition, text, whole

_BINARY_PAGE = 13_500  # bytes of a file in one answer: 18,000 characters of base64
_MOST_IMAGE = 1_000_000  # bytes of a picture in an answer, and the most read at once
_MOST_READ = 64 * 2**20  # bytes of a resource: no client takes a larger message
_MOST_LISTED = 500  # names in one answer
_FILE_ITSELF = "the file"
_IMAGES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


async def read_file(call: Call) -> CallToolResult:
    """One page of a file as text, a picture as a picture, other bytes as base64."""
    given = call.arguments
    where, path, offset = _where(given), str(given["path"]), int(given.get("offset", 0))
    if "run" in where and (picture := picture_of(path)) is not None:
        data, media_type = await _picture(call.caller, where["run"], picture)
        if len(data) <= _MOST_IMAGE and not offset:
            return _image(path, data, media_type)
        return _bytes_page(path, data[offset : offset + _BINARY_PAGE], len(data), offset)
    order = {**where, "path": path, "offset": offset}
    content = await call.caller.invoke("files.read", {**order, "limit": _BINARY_PAGE})
    size = int(content["size"])
    if content["text"] is not None:
        end = size if content["next"] is None else int(content["next"])
        return _page(path, content["text"], (offset, end, size), "text", _FILE_ITSELF)
    data = base64.b64decode(content["base64"])
    media_type = next((kind for start, kind in _IMAGES.items() if data.startswith(start)), "")
    if media_type and not offset and size <= _MOST_IMAGE:
        whole_file = await call.caller.invoke("files.read", {**order, "limit": _MOST_IMAGE, "encoding": "base64"})
        return _image(path, base64.b64decode(whole_file["base64"]), media_type)
    return _bytes_page(path, data, size, offset)


async def write_file(call: Call) -> CallToolResult:
    """Write a file of a session's workspace."""
    given = call.arguments
    if ("text" in given) == ("base64" in given):
        raise InvalidArgument("text", "give either text or base64", remediation=WRITE_FILE.usage)
    content = {name: given[name] for name in ("text", "base64") if name in given}
    session, path = str(given["session"]), str(given["path"])
    await call.caller.invoke("files.write", {"session": session, "path": path, **content})
    uri = session_uri(session, path)
    size = len(base64.b64decode(given["base64"])) if "base64" in given else len(given["text"].encode())
    return answers.text_answer(f"Wrote {size} bytes to {json.dumps(path)}.", {"path": path, "size": size, "uri": uri})


async def list_files(call: Call) -> CallToolResult:
    """The files of a folder, or all artifacts of a run."""
    where = _where(call.arguments)
    if "run" in where:
        listed = await call.caller.invoke("artifacts.list", where)
    else:
        folder = str(call.arguments.get("path", "."))
        listed = await call.caller.invoke("files.list", {**where, "path": folder})
    entries = [_entry(where, one) for one in listed]
    named = entries[:_MOST_LISTED]
    handle = next(f'{name}="{value}"' for name, value in where.items())
    lines = [f"{one['size']:>12} {shown_value(one['name'])}{'/' if one['is_folder'] else ''}"
             for one in named]  # fmt: skip
    if len(entries) > len(named):
        lines.append(f"[{len(entries) - len(named)} more: list a folder of it with path]")
    if any(not one["is_folder"] for one in named):
        lines.append(f"[read_file({handle}, path=...) gets one]")
    return answers.text_answer("\n".join(lines) or "There are no files.", {"files": named})


async def get_artifacts(call: Call) -> CallToolResult:
    """A run's artifacts with hashes, and the signed statement about them."""
    run = str(call.arguments["request_id"])
    state = await call.caller.invoke("runs.wait", {"run": run, "seconds": 0.0})
    if state["status"] != "done" or state.get("execution") is None:
        raise Refused(f"run {run} is not over: its files are collected when it ends")
    files = [
        {**{name: one[name] for name in ("name", "size", "sha256", "media_type")}, "uri": file_uri(run, one["name"])}
        for one in state["execution"]["artifacts"]
    ]
    lines = [
        f"{shown_value(one['name'])} {one['size']} bytes sha256 {one['sha256']}: "
        f'read_file(run="{run}", path={json.dumps(one["name"])})'
        for one in files
    ]
    statement = None
    try:
        statement = await call.caller.invoke("evidence.statement", {"run": run})
        lines.append(f"[signed by the key {statement['signatures'][0]['keyid']}]")
    except Unavailable as error:
        lines.append(f"[not signed: {error.message}]")
    told = {"files": files[:_MOST_LISTED], "statement": statement}
    return answers.text_answer("\n".join(lines if files else ["The run left no files.", *lines]), told)


async def read_resource(caller: Caller, uri: str) -> ReadResourceResult | None:
    """The file at an address; None if the address does not belong to casemate. Raises ``CasemateError``."""
    place = place_of(uri)
    if place is None:
        return None
    if place.kind == "run" and (picture := picture_of(place.path)) is not None:
        data, media_type = await _picture(caller, place.handle, picture)
        return _blob(uri, data, media_type)
    data = await _whole(caller, {place.kind: place.handle, "path": place.path})
    guessed = mimetypes.guess_type(place.path)[0]
    try:
        content = data.decode()
    except UnicodeDecodeError:
        content = "\0"
    if "\0" in content:  # binary, as for read_file
        return _blob(uri, data, guessed or "application/octet-stream")
    one = TextResourceContents(uri=uri, mime_type=guessed or "text/plain", text=content)
    return ReadResourceResult(contents=[one])


async def _whole(caller: Caller, order: Mapping[str, Any]) -> bytes:
    """All bytes of a file. Raises :class:`Refused` if it is too large for a message."""
    parts: list[bytes] = []
    offset: int | None = 0
    while offset is not None:
        part = await caller.invoke(
            "files.read", {**order, "offset": offset, "limit": _MOST_IMAGE, "encoding": "base64"}
        )
        if int(part["size"]) > _MOST_READ:
            raise Refused(f"the file has {part['size']} bytes; at most {_MOST_READ} can be read at once")
        parts.append(base64.b64decode(part["base64"]))
        offset = part["next"]
    return b"".join(parts)


def _blob(uri: str, data: bytes, media_type: str) -> ReadResourceResult:
    one = BlobResourceContents(uri=uri, mime_type=media_type, blob=base64.b64encode(data).decode())
    return ReadResourceResult(contents=[one])


def _where(given: Mapping[str, Any]) -> dict[str, str]:
    """The ``run`` or ``session``. Raises ``InvalidArgument`` unless exactly one is given."""
    where = {name: str(given[name]) for name in ("run", "session") if given.get(name)}
    if len(where) != 1:
        raise InvalidArgument("run", "give either run or session: a handle of yours")
    return where


async def _picture(caller: Caller, run: str, wanted: tuple[int, str]) -> tuple[bytes, str]:
    place, media_type = wanted
    state = await caller.invoke("runs.wait", {"run": run, "seconds": 0.0})
    results = (state.get("execution") or {}).get("results") or []
    encoded = results[place].get(media_type) if place < len(results) else None
    if not isinstance(encoded, str):
        raise Refused(f"run {run} displayed no such picture")
    return base64.b64decode(encoded), media_type


def _bytes_page(path: str, data: bytes, size: int, offset: int) -> CallToolResult:
    encoded = base64.b64encode(data).decode()
    return _page(path, encoded, (offset, offset + len(data), size), "base64", f"{_FILE_ITSELF}, as base64")


def _page(path: str, content: str, place: tuple[int, int, int], encoding: str, what: str) -> CallToolResult:
    offset, end, size = place
    text = answers.above(content, [_place(offset, end, size)], what)
    told = {"path": path, "size": size, "offset": offset, "end": end, "encoding": encoding}
    return answers.text_answer(text, {"text": text, **told})


def _place(offset: int, end: int, size: int) -> str:
    if not size:
        return "the file is empty"
    more = f"; {size - end} are left: read_file with offset={end}" if end < size else ""
    return f"bytes {offset} to {end} of {size}{more}"


def _image(path: str, data: bytes, media_type: str) -> CallToolResult:
    told = {"path": path, "size": len(data), "offset": 0, "end": len(data), "encoding": "image"}
    text = f"[{json.dumps(path)}: a picture of {len(data)} bytes, {media_type}]"
    return CallToolResult(
        content=[
            TextContent(type="text", text=text),
            ImageContent(type="image", data=base64.b64encode(data).decode(), mime_type=media_type),
        ],
        structured_content={"text": text, **told},
    )


def _entry(where: Mapping[str, str], one: Mapping[str, Any]) -> dict[str, Any]:
    name = str(one["name"])
    uri = file_uri(where["run"], name) if "run" in where else session_uri(where["session"], name)
    return {"name": name, "size": int(one.get("size") or 0), "is_folder": one.get("kind") == "folder", "uri": uri}


_RUN = text("Handle of a run of yours, for one of its files.")
_SESSION = text("Handle of a session of yours, for a file in its workspace.")
_TEXT = {"type": "string"}
_FILE = {"type": "object", "properties": {"name": _TEXT, "uri": _TEXT}, "required": ["name"]}
_PLACE = {"path": {"type": "string"}, "size": {"type": "integer"}}

READ_FILE = Definition(
    "read_file",
    "Read a file",
    "Read a file that a run left, or one in a session's workspace: text page by page, a picture as a picture, "
    "other bytes as base64. Give run or session.",
    {"path": text("Its name, as list_files or the run's answer shows it."), "run": _RUN, "session": _SESSION,
     "offset": whole("Byte to begin at.", default=0)},
    read_file,
    required=("path",),
    gives={"text": {"type": "string"}, **_PLACE, "offset": {"type": "integer"}, "end": {"type": "integer"},
           "encoding": {"type": "string"}},
    kind=LOOKS,
)  # fmt: skip

WRITE_FILE = Definition(
    "write_file",
    "Write a file",
    "Write a file into a session's workspace; an existing one is replaced. Give text or base64. For a program in a "
    "fresh cell give files to execute_code instead.",
    {"session": _SESSION, "path": text("Its name, relative to the working directory."),
     "text": text("Its content as text."), "base64": text("Its content as base64.")},
    write_file,
    required=("session", "path"),
    gives={**_PLACE, "uri": {"type": "string"}},
    kind=CHANGES,
)  # fmt: skip

LIST_FILES = Definition(
    "list_files",
    "List files",
    "List the files of a folder in a session's workspace, or those that a run left. Give run or session.",
    {"run": text("Handle of a run of yours."), "session": text("Handle of a session of yours."),
     "path": text("A folder.", default=".")},
    list_files,
    gives={"files": {"type": "array", "items": _FILE}},
    kind=LOOKS,
)  # fmt: skip

GET_ARTIFACTS = Definition(
    "get_artifacts",
    "Files of a run",
    "The files that a run left, with size and SHA-256, how to read each, and a signed statement of all.",
    {"request_id": text("Handle of a run of yours.")},
    get_artifacts,
    required=("request_id",),
    gives={"files": {"type": "array", "items": _FILE}, "statement": {"type": ["object", "null"]}},
    kind=LOOKS,
)
