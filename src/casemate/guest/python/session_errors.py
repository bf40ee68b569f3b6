"""Reports an exception to the host, whatever the exception does when it is inspected."""

import inspect
import sys
import traceback
import types

from _casemate.session_interrupts import own as __builtins__  # type: ignore[import-not-found,no-redef]
from _casemate.session_names import cut  # type: ignore[import-not-found]
from IPython.core.error import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["__builtins__", "describe", "exit_code", "remember", "text_of"]

_LONGEST = 2**20
_MOST_FRAMES = 50  # longer tracebacks are formatted by plain Python, which folds repetitions
_INTERRUPTED = 130
_Traceback = types.TracebackType
_format_exception = traceback.format_exception
_trace_of = BaseException.__dict__["__traceback__"].__get__
_type_name = type.__dict__["__name__"].__get__


def describe(shell: "Any", error: BaseException) -> "dict[str, object]":
    """Return the fields of an error frame."""
    number = _attribute(error, "errno") if issubclass(type(error), OSError) else None
    return {
        "name": _type_name(type(error)),
        "value": cut(_value(error), _LONGEST),
        "traceback": _end(text_of(shell, error)),
        "errno": number if type(number) is int else None,
    }


def _end(text: str) -> str:
    """Keep the end of a traceback, which matters most. An ellipsis marks the cut."""
    return text if len(text) <= _LONGEST else f"…{text[1 - _LONGEST :]}"


def exit_code(error: "BaseException | None") -> int:
    """Return the exit code of a program that ends with this error."""
    if error is None:
        return 0
    if issubclass(type(error), SystemExit):
        code = _attribute(error, "code")
        return 0 if code is None else code & 0xFF if type(code) is int else 1
    return _INTERRUPTED if issubclass(type(error), KeyboardInterrupt) else 1


def remember(error: BaseException) -> None:
    """Store the error where Python's own tools expect it: ``%tb``, ``%debug``, ``pdb.pm()``."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, _users_part(_trace_of(error))
    if sys.version_info >= (3, 12):
        sys.last_exc = error


def text_of(shell: "Any", error: BaseException) -> str:
    """Return the traceback as IPython formats it, or as plain Python does if IPython fails."""
    if issubclass(type(error), UsageError):
        return f"UsageError: {_value(error)}"
    try:
        if issubclass(type(error), SystemExit):
            return "".join(traceback.format_exception_only(type(error), error))
        lines = _ipython_lines(shell, error)
        if lines is not None:
            return "\n".join(lines)
    except Exception:
        pass
    return _plain(error)


def _ipython_lines(shell: "Any", error: BaseException) -> "list[str] | None":
    """Return IPython's lines, or None if those of plain Python are better."""
    if hasattr(error, "_render_traceback_"):
        lines: "list[str] | None" = error._render_traceback_()
        return lines
    if issubclass(type(error), SyntaxError):
        frames = [] if _is_of_the_code(error) else traceback.extract_tb(_users_part(_trace_of(error)))
        written: "list[str]" = shell.SyntaxTB.structured_traceback(type(error), error, frames)
        return written
    if sum(1 for _ in _links(_trace_of(error))) > _MOST_FRAMES or _has_group(error):
        return None
    trace = _users_part(_trace_of(error))
    search, inspect.getmodule = inspect.getmodule, _module_of  # type: ignore[assignment]
    try:
        rendered: "list[str]" = shell.InteractiveTB.structured_traceback(type(error), error, trace, tb_offset=0)
    finally:
        inspect.getmodule = search
    return rendered


def _module_of(thing: "Any", _filename: "str | None" = None) -> "Any":
    """Return the module of a frame or a function. ``inspect.getmodule`` asks every loaded module for its file, which
    takes milliseconds and copies their memory in a process forked from a zygote."""
    names = getattr(thing, "f_globals", None) or getattr(thing, "__globals__", None) or {}
    return sys.modules.get(names.get("__name__") or getattr(thing, "__module__", None) or "")


def _is_of_the_code(error: BaseException) -> bool:
    """Whether a syntax error is in the step itself, so that none of it ran."""
    return all(link.tb_frame.f_globals.get("__name__") != "__main__" for link in _links(_trace_of(error)))


def _links(trace: "Any") -> "Iterator[Any]":
    """Yield the links of a traceback, outermost first."""
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _has_group(error: "BaseException | None") -> bool:
    seen = 0
    while error is not None and seen < _MOST_FRAMES:
        if any(kind.__name__ == "BaseExceptionGroup" for kind in type(error).__mro__):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


def _plain(error: BaseException) -> str:
    try:
        return "".join(_format_exception(type(error), error, _users_part(_trace_of(error))))
    except Exception:
        return f"{_type_name(type(error))}: {_value(error)}\n"


def _users_part(trace: "Any") -> "Any":
    """Return the traceback without the session's frames, and without IPython's before the user's code."""
    links: "list[Any]" = []
    for link in _links(trace):
        module = str(link.tb_frame.f_globals.get("__name__"))
        if not (module.startswith("_casemate.") or (not links and module.startswith("IPython."))):
            links.append(link)
    trace = None
    for link in reversed(links):
        line = link.tb_lineno  # None if an interrupt hit an instruction without a line
        trace = _Traceback(
            trace, link.tb_frame, link.tb_lasti, link.tb_frame.f_code.co_firstlineno if line is None else line
        )
    return trace


def _attribute(error: BaseException, name: str) -> "Any":
    try:
        return getattr(error, name, None)
    except Exception:
        return None


def _value(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"
