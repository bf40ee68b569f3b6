"""The Python interpreter of a session: takes steps from the host and runs them, one at a time, in one namespace.

docs/internals/session-protocol.md describes the pipes. Around this file: session_shell runs code, session_steps
knows whose output is whose, session_streams and session_input are the standard streams, session_interrupts is SIGINT.
Their code uses nothing that user code can replace: neither the builtins, nor modules it would have to look up.
"""

import atexit
import functools
import os
import sys

import _casemate  # type: ignore[import-not-found]
from _casemate import session_ready as ready
from _casemate.session_frames import CANNOT_SPEAK, encode, pipes  # type: ignore[import-not-found]
from _casemate.session_interrupts import STARTING, interrupts  # type: ignore[import-not-found]
from _casemate.session_own import own as __builtins__  # type: ignore[import-not-found,no-redef]
from _casemate.session_steps import steps  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["__builtins__", "main"]

_exit, _modules = os._exit, sys.modules
_run_at_exit = atexit._run_exitfuncs


def main() -> "NoReturn":
    """Serve the host until it closes the pipe of requests, or the user's code ends the process."""
    pipes.take()
    if ready.problem is not None:
        pipes.send(encode({"type": "ready", "problem": ready.problem}))
        _exit(0)
    from _casemate.session_serving import Serving  # type: ignore[import-not-found]

    try:
        serving = Serving(ready.take(), end)
        _put_text_before_every_end()
        pipes.send(encode({"type": "ready"}))
        while True:
            serving.wait()
            pipes.wait()
            interrupts.state = STARTING
            request = pipes.receive()
            if request is None:
                end(0)
            serving.answer(request)
    except BaseException:  # what the session stands on is gone: its descriptors, its memory
        _exit(CANNOT_SPEAK)


def _put_text_before_every_end() -> None:
    """What ends the interpreter without its own end would take lines along that a flood of them has collected."""
    for name in ("_exit", "abort", "execv", "execve"):
        setattr(os, name, _after_flushing(getattr(os, name)))


def _after_flushing(function: "Any") -> "Any":
    @functools.wraps(function)
    def flush_and_call(*arguments: "Any", **named: "Any") -> "Any":
        steps.flush()
        return function(*arguments, **named)

    return flush_and_call


def end(code: int) -> "NoReturn":
    """End the process as an interpreter ends: what was written is put, what was registered is run."""
    if pipes.are_mine():
        _casemate.control = None  # the one-shot hook would report the last error of the session
        leaving = _modules.get("_casemate.leaving")
        if leaving is not None:
            atexit.unregister(leaving._leave)
    try:
        _run_at_exit()
        steps.flush()
    finally:
        _exit(code & 0xFF)
