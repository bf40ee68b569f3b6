"""Answers for models: a complete text, a structure with the same text, pictures, and links.

Many clients show a model only the structure (MCP, Tools, Structured Content: a server should give both).

The text begins with casemate's own lines, in brackets. The last of these says that everything below comes from the
program. No casemate line comes after it, so no output can pass for one. Both parts are bounded. A program's output is
passed on unchanged: a model's client shows it, not a terminal. Within casemate's own lines, a program's text is on one
line, with escapes for unprintable characters.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from mcp_types import CallToolResult, ImageContent, ResourceLink, TextContent

from casemate.model.execution import Crossing, not_reached
from casemate.model.isolation import hidden_notes
from casemate.operations.documents import known_fields
from casemate.policy.shown import escape_text, shown_value
from casemate.visible import plain

if TYPE_CHECKING:
    from mcp_types import ContentBlock

    from casemate.surfaces.mcp.callers import Document

_SCHEME = "casemate"
_HANDLE = r"[A-Za-z0-9._:-]{1,128}"
_URI = re.compile(rf"{_SCHEME}://(run|session)/({_HANDLE})/(.+)", re.DOTALL)
_PICTURE = re.compile(r"/display/(\d{1,6})\.(png|jpg)")
_SUFFIXES = {"image/png": "png", "image/jpeg": "jpg"}
TEMPLATES = (
    (f"{_SCHEME}://run/{{run}}/{{+path}}", "A file that a run left"),
    (f"{_SCHEME}://session/{{session}}/{{+path}}", "A file in a session's workspace"),
)
_LONGEST = 8192  # characters of an address


@dataclass(frozen=True, slots=True)
class Place:
    kind: str  # "run" or "session"
    handle: str
    path: str


def file_uri(run: str, path: str) -> str:
    """The address of a run's artifact."""
    return f"{_SCHEME}://run/{run}/{quote(path, safe='/')}"


def session_uri(session: str, path: str) -> str:
    """The address of a file in a session's workspace."""
    return f"{_SCHEME}://session/{session}/{quote(path, safe='/')}"


def place_of(uri: str) -> Place | None:
    """The file that an address names; None if the address does not belong to casemate."""
    if len(uri) > _LONGEST:
        return None
    found = _URI.fullmatch(uri)
    try:
        return None if found is None else Place(found[1], found[2], unquote(found[3], errors="strict"))
    except UnicodeDecodeError:
        return None


def picture_name(place: int, media_type: str) -> str:
    """The name of a displayed picture that is too large for an answer. No file's name begins with a slash."""
    return f"/display/{place}.{_SUFFIXES[media_type]}"


def picture_of(path: str) -> tuple[int, str] | None:
    """The index among a run's results, and the media type, of such a name; None for any other name."""
    found = _PICTURE.fullmatch(path)
    if found is None:
        return None
    return int(found[1]), next(kind for kind, suffix in _SUFFIXES.items() if suffix == found[2])


MOST_TEXT = 20_000  # characters of one answer
OUTPUT = 18_000  # characters of a program's text; the rest of `MOST_TEXT` is for casemate's lines
_BELOW = "all below is {}"
_OUTPUT = "the program's output"
_MOST_IMAGE = 1_000_000  # bytes of one picture within an answer
_MOST_IMAGES = 8
_MOST_FILES = 20  # named in an answer
_MOST_REFUSED = 3  # hosts named in an answer
_LONGEST_REFUSED = 300  # characters about one host
_SHOWN_TYPES = ("image/png", "image/jpeg")


@dataclass(frozen=True, slots=True)
class Page:
    text: str
    cursor: int  # where the next part begins
    is_whole: bool  # no output is left after it so far


def text_answer(text: str, structured: Mapping[str, Any] | None = None, *, is_error: bool = False) -> CallToolResult:
    """An answer of one text, cut if it is too long."""
    return CallToolResult(
        content=[TextContent(type="text", text=cut(text, MOST_TEXT))],
        structured_content=None if structured is None else dict(structured),
        is_error=is_error,
    )


def failure(error: Exception) -> CallToolResult:
    """A tool's error, for the model to read."""
    return text_answer(str(error), is_error=True)


def cut(text: str, most: int) -> str:
    """``text`` cut to ``most`` characters, with a note on how many are missing."""
    if len(text) <= most:
        return text
    note = f"\n[{len(text) - most + 60} more characters are not shown]"
    return text[: most - 60] + note


def above(text: str, lines: Sequence[str], what: str = _OUTPUT) -> str:
    """casemate's ``lines``, at least one, and below them ``text``, described by ``what``. The lines are cut so that
    ``text`` with up to :data:`OUTPUT` characters fits into an answer."""
    below = f"\n[{_BELOW.format(what)}]\n" if text else ""
    said = "\n".join(f"[{plain(' '.join(line.splitlines()))}]" for line in lines)
    return cut(said, MOST_TEXT - OUTPUT - len(below)) + below + text


def end_answer(state: Document, page: Page) -> CallToolResult:
    """The answer for a run that is over."""
    run, session, execution = str(state["run"]), state["session"], state["execution"]
    lines = [_ending_text(execution), *_failure_lines(execution, page)]
    if not page.is_whole:
        lines.append(f'There is more output: read_output(run="{run}", cursor={page.cursor})')
    if not page.text and page.is_whole and execution["status"] == "ok":
        lines.append("it printed nothing")
    pictures, picture_lines, links = _pictures(run, execution)
    files, file_lines, file_links = _files(run, execution)
    if session:
        lines.append(f'session: {session} (give session="{session}" to go on in it)')
    if execution.get("state") == "lost":
        names = ", ".join(execution.get("lost_names") or [])
        lines.append(f"The session's state is lost{': ' + cut(names, 200) if names else ''}. Its files are there.")
    background = cut(str(execution.get("background") or ""), OUTPUT) if page.is_whole else ""
    if background:
        lines.append("earlier steps left something running that wrote more: see the second part, or background")
    text = above(page.text, [*lines, *_not_reached(execution), *picture_lines, *file_lines])
    structured: Document = {
        "text": text,
        "background": background,
        "run": run,
        "session": session,
        "status": execution["status"],
        "exit_code": execution.get("exit_code"),
        "duration": round(float(execution.get("duration") or 0.0), 6),
        "cursor": page.cursor,
        "is_whole": page.is_whole,
        "images": len(pictures),
        "files": files,
        "cause": _cause(execution),
    }
    content: list[ContentBlock] = [TextContent(type="text", text=text)]
    if background:  # in its own part: no program knows this run's handle, so none can fake the heading
        heading = above(background, [f"background of run {run}"], "what earlier steps left running")
        content.append(TextContent(type="text", text=heading))
    content += [*pictures, *links, *file_links]
    return CallToolResult(content=content, structured_content=structured, is_error=execution["status"] != "ok")


def unfinished_answer(state: Document, handle: str, page: Page, *, can_answer: bool, is_alone: bool) -> CallToolResult:
    """The answer for work that continues, with the next call. ``can_answer``: a person at this client may approve;
    ``is_alone``: no other approver exists."""
    next_call = f'read_output(run="{handle}", cursor={page.cursor})'
    status, session = state["status"], state.get("session")
    if status == "waiting":
        lines = [f"waiting for an approval; it continues once the request is answered. run: {handle}"]
        lines += [_question(one) for one in state["approvals"]]
        if not is_alone:
            lines.append("In a terminal: casemate approvals list, then casemate approvals approve ID (or deny ID).")
        if can_answer:
            lines.append("The next call asks the user here again.")
        lines.append(f'Then call {next_call}, or give up with cancel_run(run="{handle}").')
    else:
        lines = [
            f"{status}, and continues. run: {handle}",
            f'Call {next_call} for more, or cancel_run(run="{handle}") to end it.',
        ]
    if session:
        lines.append(f"session: {session}")
    text = above(page.text, lines)
    structured: Document = {
        "text": text, "background": "", "run": handle, "session": session, "status": status, "exit_code": None,
        "duration": None,
        "cursor": page.cursor, "is_whole": page.is_whole, "images": 0, "files": [], "cause": None,
    }  # fmt: skip
    return text_answer(text, structured)


def outcome_schema() -> dict[str, Any]:
    """JSON Schema of the fields of a run's structured answer."""
    file = {"name": {"type": "string"}, "size": {"type": "integer"}, "media_type": {"type": "string"},
            "uri": {"type": "string"}}  # fmt: skip
    return {
        "text": {"type": "string", "description": "The text to read: how it ended, and the output."},
        "background": {"type": "string", "description": "Later output of what earlier steps left running."},
        "run": {"type": "string", "description": "Handle of the run, for read_output, cancel_run and read_file."},
        "session": {"type": ["string", "null"], "description": "Handle of the session it ran in."},
        "status": {
            "type": "string",
            "enum": ["ok", "failed", "timeout", "out_of_memory", "killed", "cancelled", "denied",
                     "queued", "running", "waiting"],
            "description": "How it ended; queued, running and waiting continue.",
        },
        "exit_code": {"type": ["integer", "null"]},
        "duration": {"type": ["number", "null"], "description": "Seconds."},
        "cursor": {"type": "integer", "description": "Where read_output goes on."},
        "is_whole": {"type": "boolean", "description": "Whether the text holds all output from its start to the cursor "
                     "and no output is left after it."},
        "images": {"type": "integer", "description": "Pictures in this answer."},
        "files": {"type": "array", "items": {"type": "object", "properties": file, "required": list(file)}},
        "cause": {
            "type": ["object", "null"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"},
                           "remediation": {"type": "string"}, "retryable": {"type": "boolean"}},
            "description": "Which limit, rule or caller ended it.",
        },
    }  # fmt: skip


def _ending_text(execution: Document) -> str:
    parts = [f"status: {execution['status']}"]
    if execution.get("exit_code") is not None:
        parts.append(f"exit code {execution['exit_code']}")
    parts.append(f"{float(execution.get('duration') or 0.0):.3f} s")
    return ", ".join(parts)


def _failure_lines(execution: Document, page: Page) -> list[str]:
    lines = []
    error = execution.get("error")
    if error and f"{error.get('name', '')}: {str(error.get('value', ''))[:200]}" not in page.text:
        lines.append(cut(f"error: {error.get('name', '')}: {error.get('value', '')}", 1000))
    if error and str(error.get("value", "")).startswith("No module named"):
        lines.append("a package is missing: %pip install NAME, or the tool install_package, adds one to a session")
    if execution["status"] != "ok":
        notes = (execution.get("isolation") or {}).get("notes") or []
        lines += hidden_notes(map(str, notes), page.text + str((error or {}).get("name", "")))
    if (cause := execution.get("cause")) is not None:
        lines.append(cut(" ".join(filter(None, (cause["message"], cause.get("remediation")))), 600))
    return lines


def _not_reached(execution: Document) -> list[str]:
    """Hosts that it tried to reach and did not; its client may have seen only a broken connection."""
    found = not_reached(Crossing(**known_fields(Crossing, one)) for one in execution.get("crossings") or [])
    lines = [cut(f"not reached: {where}: {reason}", _LONGEST_REFUSED) for where, reason in found[:_MOST_REFUSED]]
    return [*lines, f"not reached: {len(found) - _MOST_REFUSED} more"] if len(found) > _MOST_REFUSED else lines


def _cause(execution: Document) -> Document | None:
    cause = execution.get("cause")
    if cause is None:
        return None
    return {name: cause.get(name) for name in ("code", "message", "remediation", "retryable")}


def _question(one: Document) -> str:
    what = (
        f"{escape_text(str(one['server']))}.{escape_text(str(one['tool']))}"
        if one.get("tool")
        else escape_text(str(one["summary"]))
    )
    return f"- approval {one['id']}: {one['kind']} {cut(what, 200)}"


def _pictures(run: str, execution: Document) -> tuple[list[ImageContent], list[str], list[ResourceLink]]:
    """The pictures that fit, in order; a line and a link for each other one."""
    blocks: list[ImageContent] = []
    lines: list[str] = []
    links: list[ResourceLink] = []
    for place, result in enumerate(execution.get("results") or []):
        media_type = next((one for one in _SHOWN_TYPES if isinstance(result.get(one), str)), None)
        if media_type is None:
            continue
        size = _size(result[media_type])
        if size is None:
            continue
        if size <= _MOST_IMAGE and len(blocks) < _MOST_IMAGES:
            blocks.append(ImageContent(type="image", data=result[media_type], mime_type=media_type))
        elif len(links) < _MOST_FILES:
            name = picture_name(place, media_type)
            lines.append(f'A picture of {size} bytes is not shown: read_file(run="{run}", path="{name}")')
            links.append(_link(run, name, size, media_type))
    return blocks, lines, links


def _size(encoded: str) -> int | None:
    try:
        return len(base64.b64decode(encoded, validate=True))
    except (ValueError, binascii.Error):
        return None


def _files(run: str, execution: Document) -> tuple[list[Document], list[str], list[ResourceLink]]:
    artifacts: Sequence[Document] = execution.get("artifacts") or []
    named = artifacts[:_MOST_FILES]
    files = [
        {"name": one["name"], "size": one["size"], "media_type": one["media_type"], "uri": file_uri(run, one["name"])}
        for one in named
    ]
    lines: list[str] = []
    for one in named:
        name = shown_value(one["name"])
        lines.append(f'file of {one["size"]} bytes: read_file(run="{run}", path={name})')
    if len(artifacts) > len(named):
        lines.append(f'{len(artifacts) - len(named)} more files: list_files(run="{run}")')
    return files, lines, [_link(run, one["name"], one["size"], one["media_type"]) for one in named]


def _link(run: str, name: str, size: int, media_type: str) -> ResourceLink:
    return ResourceLink(
        type="resource_link",
        uri=file_uri(run, name),
        name=name,
        size=size,
        mime_type=media_type,
        description=f"read_file(run={json.dumps(run)}, path={json.dumps(name)}) gets it",
    )
