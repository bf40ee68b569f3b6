"""Handles each request of a session."""

import os
import sys

import _casemate  # type: ignore[import-not-found]
from _casemate import session_display
from _casemate import session_errors as errors
from _casemate import session_front as front
from _casemate import session_streams as streams
from _casemate.packages import use_installed  # type: ignore[import-not-found]
from _casemate.session_commands import approvals  # type: ignore[import-not-found]
from _casemate.session_frames import encode, pipes  # type: ignore[import-not-found]
from _casemate.session_interrupts import OTHER, interrupts  # type: ignore[import-not-found]
from _casemate.session_interrupts import own as __builtins__  # type: ignore[no-redef]
from _casemate.session_loop import loop  # type: ignore[import-not-found]
from _casemate.session_names import UserNames, cut  # type: ignore[import-not-found]
from _casemate.session_steps import ERR, steps  # type: ignore[import-not-found]
from _casemate.session_streams import stdin  # type: ignore[import-not-found]
from IPython.display import display

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["Serving", "__builtins__"]

_LONGEST_PROBLEM = 2000
_chdir, _exit = os.chdir, os._exit
_OWN_PLACES = ("/program/", "/workspace")
_plain_breakpoint = sys.breakpointhook


class Serving:
    """One session. ``end`` ends the process."""

    def __init__(self, shell: "Any", end: "Callable[[int], Any]") -> None:
        self._shell, shell.end = shell, end
        self._root = os.path.dirname(os.path.dirname(sys.argv[0])).rstrip("/")
        sys.modules["__main__"] = shell.user_module
        _casemate.display = display
        interrupts.install()
        interrupts.watch_finalizers()
        stdin.install()
        streams.install()
        steps.watch_threads()
        os.register_at_fork(before=steps.flush, after_in_child=_set_up_child)
        sys.breakpointhook = _breakpoint
        self._names = UserNames(shell.user_ns, shell.user_ns_hidden)

    def _place(self, path: str) -> str:
        """Return the real path of a cell path. On walls without mounts it is beside the program's folder."""
        return self._root + path if path.startswith(_OWN_PLACES) else path

    def answer(self, request: "dict[str, Any]") -> None:
        """Carry out the request, and send the outcome."""
        if request["op"] == "run":
            self._run(request)
        elif request["op"] == "answer":  # for a step that is over
            interrupts.state, interrupts.pending = OTHER, False
        else:
            interrupts.state, interrupts.pending = OTHER, False
            self._reply(request)

    def _run(self, request: "dict[str, Any]") -> None:
        error: "BaseException | None" = None
        try:
            step = steps.begin(request["step"], self._place(request["out"]), self._place(request["err"]))
        except OSError as failure:
            step, error = steps.running, failure
        if error is None:
            approvals.begin(request["asks"])
            error = self._execute(request)
        if not pipes.are_mine():
            self._end_child(error)
        approvals.end()
        streams.install()
        step.flush()
        if error is not None:
            step.send_fields("error", **self._describe_error(error))
        stdin.set_text(None)
        loop.adopt()
        interrupts.install()
        new, gone = self._names.changes()
        steps.flush()
        step.send_fields("done", exit=errors.exit_code(error), new=new, gone=gone)

    def _execute(self, request: "dict[str, Any]") -> "BaseException | None":
        """Run the code and show its figures. Returns the error that ended it."""
        try:
            self._prepare(request)
            error: "BaseException | None" = interrupts.call(front.TASKS[request["task"]], self._shell, request)
        except BaseException as failure:
            # IPython itself fails if a second interrupt comes while it handles the first.
            error = KeyboardInterrupt() if interrupts.came and isinstance(failure, Exception) else failure
            interrupts.state = OTHER
        if pipes.are_mine():
            try:
                interrupts.call(session_display.show_open_figures)
            except BaseException as failure:
                error = failure if error is None else error
        return error

    def _prepare(self, request: "dict[str, Any]") -> None:
        streams.install()
        interrupts.install()
        loop.offer()
        stdin.set_text(request["stdin"])
        stdin.ask = approvals.read_line if "input" in request["asks"] else None
        front.begin(self._shell, request["front"], has_colours=request["colours"])
        use_installed()
        if request["cwd"] is not None:
            _chdir(self._place(request["cwd"]))

    def _describe_error(self, error: BaseException) -> "dict[str, object]":
        """Describe the error. This runs the exception's own code, so it can be interrupted too."""
        for _ in range(2):
            try:
                fields: "dict[str, object]" = interrupts.call(errors.describe, self._shell, error)
            except BaseException:
                continue
            return fields
        name = "KeyboardInterrupt" if type(error) is KeyboardInterrupt else "Exception"
        return {"name": name, "value": "<its description failed>", "traceback": "", "errno": None}

    def _end_child(self, error: "BaseException | None") -> None:
        """End a process that the step forked and that reached the step's end."""
        try:
            if error is not None and not issubclass(type(error), SystemExit):
                steps.running.write_text(ERR, errors.text_of(self._shell, error) + "\n")
            steps.flush()
        finally:
            _exit(errors.exit_code(error))

    def _reply(self, request: "dict[str, Any]") -> None:
        try:
            reply = encode({"type": "reply", "id": request["id"], "value": self._value(request)})
            if pipes.send(reply):
                return
            problem = "the answer is larger than a frame can be"
        except (ValueError, TypeError, RecursionError) as error:
            problem = cut(str(error), _LONGEST_PROBLEM)
        pipes.send(encode({"type": "reply", "id": request["id"], "error": problem}))

    def _value(self, request: "dict[str, Any]") -> object:
        if request["op"] == "variables":
            return self._names.variables()
        if request["op"] == "get":
            return self._names.get(request["name"])
        if request["op"] == "set":
            return self._names.set(request["name"], request["value"])
        raise ValueError(f"no such request: {request['op']}")


def _set_up_child() -> None:
    """Set up a process that user code forked from the interpreter."""
    pipes.leave_to_parent()
    steps.renew_locks()
    approvals.renew_lock()
    loop.stop_in_child()


def _breakpoint(*arguments: object, **options: object) -> object:
    stdin.require("breakpoint()")
    return _plain_breakpoint(*arguments, **options)
