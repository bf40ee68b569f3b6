"""The tools that this program may call, as functions: `from mcptools.<server>.<tool> import run`.

`search("words")` finds tools, `dir(mcptools)` lists servers, `help(mcptools.<server>)` lists a server's tools. Calls
are checked and answered outside the sandbox. A failed call raises a `ToolError`.
"""

from ._finding import install, register, search, servers
from ._objects import UNSET, Audio, Blob, Image, Link, Object, Output, Resource, Text, content_of
from ._wire import InvalidArguments, ToolDenied, ToolError, ToolTimeout, ToolUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._progress import on_progress as on_progress

__all__ = [
    "UNSET",
    "Audio",
    "Blob",
    "Image",
    "InvalidArguments",
    "Link",
    "Object",
    "Output",
    "Resource",
    "Text",
    "ToolDenied",
    "ToolError",
    "ToolTimeout",
    "ToolUnavailable",
    "content_of",
    "on_progress",
    "register",
    "search",
]

install()


def __getattr__(name: str) -> "Any":
    """Load a server's package, or a rarely used function, on first use."""
    if name == "on_progress":
        from ._progress import on_progress

        return on_progress
    if name.startswith("_"):
        raise AttributeError(name)
    from importlib import import_module

    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"{error}; mcptools.search() lists what there is") from error


def __dir__() -> "list[str]":
    return servers()
