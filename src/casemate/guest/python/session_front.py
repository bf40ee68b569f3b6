"""Steps for a front end such as a notebook: they run code, deliver a widget's message, or answer an editor's question
about code.

Widgets use comms: https://jupyter-client.readthedocs.io/en/stable/messaging.html#custom-messages. The environment
provides the package ``comm``. It is patched on import to send frames.
"""

import json
import re
import sys
from binascii import a2b_base64, b2a_base64

from _casemate.session_interrupts import own as __builtins__  # type: ignore[import-not-found,no-redef]
from _casemate.session_steps import steps  # type: ignore[import-not-found]
from IPython.core.completer import provisionalcompleter, rectify_completions
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.tokenutil import token_at_cursor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["TASKS", "__builtins__", "begin", "install"]

_MOST_MATCHES = 500


class _Front:
    message: "str | None" = None  # id of the front end's message that the step answers; None without a front end
    has_colours = False

    def get_parent(self, *_: object) -> "dict[str, Any]":
        """Let output widgets find their messages, as with ipykernel's kernel."""
        return {"header": {"msg_id": self.message}}


_front = _Front()


def begin(shell: "Any", message: "str | None", *, has_colours: bool) -> None:
    """Prepare a step. Colours are enabled only once, so that ``%colors`` can disable them. With a front end, rich and
    tqdm see a notebook, as with ipykernel."""
    _front.message = message
    if has_colours and not _front.has_colours:
        _front.has_colours = True
        shell.run_line_magic("colors", "neutral")
    if message is not None:
        type(shell).__name__ = "ZMQInteractiveShell"
        shell.config["IPKernelApp"] = type(shell.config)()


# --- tasks --------------------------------------------------------------------------------------------------------


def _run_code(shell: "Any", request: "dict[str, Any]") -> "BaseException | None":
    result = InteractiveShell.run_cell(shell, request["code"], request["remembers"])
    error: "BaseException | None" = result.error_before_exec
    return result.error_in_exec if error is None else error


def _take_message(_shell: "Any", request: "dict[str, Any]") -> None:
    """Deliver a front end's message to its comm."""
    message = json.loads(request["code"])
    message["buffers"] = [memoryview(a2b_base64(data)) for data in message["buffers"]]
    manager = __import__("comm").get_comm_manager()
    getattr(manager, message["type"])(None, None, message)


def _complete(shell: "Any", request: "dict[str, Any]") -> None:
    question = json.loads(request["code"])
    code, cursor = question["code"], question["cursor"]
    found = _completions(shell, code, cursor)
    _answer_completions(found, cursor)  # at once, because jedi may be interrupted
    if found and re.search(r"\.\w*$", code[:cursor]):
        return  # to complete a module's names, jedi would read all of its files
    # jedi knows what the code itself imports or assigns, but not the session's objects.
    before, shell.Completer.use_jedi = shell.Completer.use_jedi, True
    try:
        more = _completions(shell, code, cursor)
    finally:
        shell.Completer.use_jedi = before
    known = {one.text for one in found}
    places = {(one.start, one.end) for one in found or more}
    new = [one for one in more if one.text not in known and (one.start, one.end) in places]
    _answer_completions(found + new, cursor)


def _completions(shell: "Any", code: str, cursor: int) -> "list[Any]":
    with provisionalcompleter():
        return list(rectify_completions(code, shell.Completer.completions(code, cursor)))[:_MOST_MATCHES]


def _answer_completions(found: "list[Any]", cursor: int) -> None:
    start, end = (found[0].start, found[0].end) if found else (cursor, cursor)
    dot = int(bool(found) and all(one.text.startswith(".") for one in found))  # typed already, not part of the name
    _answer({"start": start + dot, "end": end, "matches": [[one.text[dot:], one.type or ""] for one in found]})


def _look_up(shell: "Any", request: "dict[str, Any]") -> None:
    question = json.loads(request["code"])
    name = token_at_cursor(question["code"], question["cursor"])
    try:
        bundle = shell.object_inspect_mime(name, detail_level=question["detail"])
    except KeyError:
        bundle = {}
    _answer(bundle)


def _check(shell: "Any", request: "dict[str, Any]") -> None:
    status, indent = shell.check_complete(json.loads(request["code"])["code"])
    _answer({"status": status, "indent": indent})


def _answer(value: object) -> None:
    steps.running.send_fields("result", bundle={"application/json": value})


TASKS = {"code": _run_code, "comm": _take_message, "complete": _complete, "look_up": _look_up, "check": _check}


# --- comms --------------------------------------------------------------------------------------------------------


def install(module: "Any") -> None:
    """Make comms that are created from now on reach the front end."""
    create_plain = module.create_comm

    class FrontComm(module.base_comm.BaseComm):  # type: ignore[misc]
        """One comm."""

        kernel = _front

        def publish_msg(
            self, msg_type: str, data: object = None, metadata: object = None, buffers: "Any" = None, **keys: "Any"
        ) -> None:
            """Send a frame."""
            frame = {
                "kind": msg_type.removeprefix("comm_"),
                "comm": self.comm_id,
                "target": str(keys.get("target_name") or ""),
                "data": data or {},
                "metadata": metadata or {},
                "buffers": [b2a_base64(buffer, newline=False).decode() for buffer in buffers or ()],
            }
            text = json.dumps(frame, default=_plain, allow_nan=False, ensure_ascii=False)
            if not steps.current().send_frame("comm", text[1:-1]):
                raise ValueError("a message of a widget is too large, or comes from a forked process")

    def create_comm(*arguments: "Any", **options: "Any") -> "Any":
        return (create_plain if _front.message is None else FrontComm)(*arguments, **options)

    module.create_comm = create_comm


def _plain(value: "Any") -> object:
    """Convert values that JSON lacks: numpy numbers, dates, sets."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b2a_base64(value, newline=False).decode()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value.item() if hasattr(value, "item") else list(value)


_loaded = sys.modules.get("comm")
if _loaded is not None:
    install(_loaded)
