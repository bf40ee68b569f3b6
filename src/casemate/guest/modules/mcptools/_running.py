"""Calls of one tool, for generated modules."""

import sys

from ._objects import Object, error_of, plain, result_of
from ._wire import InvalidArguments, ask, ask_later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


class Tool:
    """One tool: its names on the wire, the class of its parameters, and the shape of its result."""

    def __init__(self, server: str, name: str, params: "type[Object]", shape: "Any") -> None:
        self._server, self._name, self._params, self._shape = server, name, params, shape

    def run(self, params: "Any", arguments: "dict[str, Any]") -> "Any":
        """Call the tool and wait. Raises ``ToolError``."""
        request, tell = _with_progress(self._request(params, arguments))
        return self._result(ask(request, None, tell))

    async def arun(self, params: "Any", arguments: "dict[str, Any]") -> "Any":
        """Call the tool in an event loop. Raises ``ToolError``."""
        request, tell = _with_progress(self._request(params, arguments))
        return self._result(await ask_later(request, tell))

    def _request(self, params: "Any", arguments: "dict[str, Any]") -> "dict[str, Any]":
        if params is not None and arguments:
            raise InvalidArguments("give either Params(...) or keywords")
        if params is None:
            params = self._params(**arguments)
        elif not isinstance(params, dict):
            raise InvalidArguments(f"Params(...) or a dictionary is wanted, not {type(params).__name__}")
        try:
            arguments = plain(params)
        except RecursionError:
            raise InvalidArguments("the arguments cannot be sent as JSON: one of them contains itself") from None
        request = {"do": "call", "server": self._server, "tool": self._name, "arguments": arguments}
        line = line_of_program()
        return {**request, "line": line} if line else request

    def _result(self, answer: "dict[str, Any]") -> "Any":
        if answer.get("ok") is not True:
            raise error_of(answer)
        return result_of(answer, self._shape, self._server)


def line_of_program() -> "int | None":
    """Return the innermost line of the submitted code that runs in this thread, if there is one."""
    lines: "dict[str, int]" = {}
    frame: "Any" = sys._getframe()
    while frame is not None:
        code = frame.f_code
        lines.setdefault(code.co_filename, frame.f_lineno)
        if code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            is_submitted = "/program/" in code.co_filename or code.co_filename.startswith("<ipython-input")
            return lines[code.co_filename] if is_submitted else None
        frame = frame.f_back
    return None


def _with_progress(request: "dict[str, Any]") -> "tuple[dict[str, Any], Callable[[dict[str, Any]], object] | None]":
    """Return the request, and the receiver of progress from the innermost `on_progress` block."""
    module = sys.modules.get(f"{__name__.rpartition('.')[0]}._progress")  # without it there is no such block
    tell = None if module is None else module.progress_listener()
    return (request, None) if tell is None else ({**request, "progress": True}, tell)


def members(package: str) -> "tuple[Callable[[str], Any], Callable[[], list[str]]]":
    """Return ``__getattr__`` and ``__dir__`` of a server's package, which load tools on first use."""

    def load(name: str) -> "Any":
        if name.startswith("_"):
            raise AttributeError(name)
        from importlib import import_module

        try:
            return import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            raise AttributeError(f"{error}; dir({package}) lists all") from error

    def list_names() -> "list[str]":
        from ._finding import tools_of

        return tools_of(package)

    return load, list_names
