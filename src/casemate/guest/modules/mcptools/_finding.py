"""Imports tool modules from the host, so that tools added later can be imported at once. A program may also add its own
server, which needs approval."""

import sys

from ._objects import ask_or_raise
from ._wire import ToolError, ToolUnavailable, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_IMPORT_SECONDS = 30.0  # an import may block the process's other imports
_PACKAGE = __name__.rpartition(".")[0]


class ShownText(str):
    """Text that is shown without quotes, even as a notebook's result."""

    def __repr__(self) -> str:
        return str(self)


class HostFinder:
    """Finds modules that no folder has by asking the host."""

    @staticmethod
    def find_spec(name: str, path: "Sequence[str] | None" = None, target: object = None) -> "ModuleSpec | None":
        """Return the spec of a module of this package if the host has it. The error has no ``name``, because ``from``
        would take it for its own and report another reason."""
        head, _, last = name.rpartition(".")
        if not head or (head != _PACKAGE and not head.startswith(f"{_PACKAGE}.")) or last.startswith("_"):
            return None
        try:
            answer = ask_or_raise({"do": "source", "module": f"mcptools{name[len(_PACKAGE) :]}"}, _IMPORT_SECONDS)
        except ToolError as error:
            raise ModuleNotFoundError(str(error)) from None
        package = answer.get("package") is True
        loader: Any = HostLoader(str(answer.get("source", "")))
        make: Any = type(sys.__spec__)  # ModuleSpec, without importing importlib
        spec: "ModuleSpec" = make(name, loader, origin=f"<{name}>", is_package=package)
        return spec


class HostLoader:
    """Runs source from the host."""

    def __init__(self, source: str) -> None:
        self._source = source

    def create_module(self, spec: "ModuleSpec") -> None:
        """Use the default module."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run the source in ``module``."""
        name = module.__name__
        exec(compile(self._source, f"<{name}>", "exec", dont_inherit=True), vars(module))

    def get_source(self, name: str) -> str:
        """Return the source, for tracebacks and `inspect`."""
        return self._source


def install() -> None:
    """Add the finder after all others."""
    if HostFinder not in sys.meta_path:
        sys.meta_path.append(HostFinder)


def search(query: str = "", detail: str = "brief") -> str:
    """Find tools that match ``query``; all by default. ``detail``: "names", "brief", or "full" with parameters."""
    return ShownText(ask_or_raise({"do": "search", "query": query, "detail": detail}).get("text", ""))


def servers() -> "list[str]":
    """Return the packages of the current servers; none if the host does not answer."""
    return sorted({package for package, _ in _modules()})


def tools_of(package: str) -> "list[str]":
    """Return the modules of a server's current tools."""
    return sorted(tool for found, tool in _modules() if f"{_PACKAGE}.{found}" == package)


def _modules() -> "list[tuple[str, str]]":
    """Return package and module of each tool."""
    try:
        answer = ask({"do": "list"}, _IMPORT_SECONDS)
    except ToolUnavailable:
        return []
    listing = answer.get("tools")
    names = [str(row.get("module", "")).split(".") for row in listing] if isinstance(listing, list) else []
    return [(name[1], name[2]) for name in names if len(name) == 3]


def register(name: str, definition: "dict[str, Any]") -> str:
    """Add an MCP server as ``name``: ``{"command": ..., "args": [...], "env": {...}}`` or ``{"url": ...}``.

    The definition is shown to the approver. A command runs behind a wall outside this program, with nothing that is not
    in the definition. Its tools can be imported at once. Returns a text about the outcome; raises ``ToolError``.
    """
    return ShownText(ask_or_raise({"do": "register", "name": name, "definition": definition}).get("text", ""))
