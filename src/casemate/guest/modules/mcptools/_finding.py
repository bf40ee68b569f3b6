"""Modules of tools come from the host when they are imported, so that those added later are there at
once. A program may also add a server of its own choice, which somebody outside has to allow."""

import sys

from ._objects import ask_or_raise
from ._wire import ToolError, ToolUnavailable, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_IMPORT_SECONDS = 30.0  # whoever imports holds up every other import of the process
_PACKAGE = __name__.rpartition(".")[0]


class ShownText(str):
    """Text that is shown as it is, also as the value of a notebook's last line."""

    def __repr__(self) -> str:
        return str(self)


class HostFinder:
    """Finds what no folder has, by asking the host."""

    @staticmethod
    def find_spec(name: str, path: "Sequence[str] | None" = None, target: object = None) -> "ModuleSpec | None":
        """The module ``name`` of this package, if the host has it. Errors say why not, and name no module: ``from``
        would take them for its own, and tell another reason."""
        head, _, last = name.rpartition(".")
        if not head or (head != _PACKAGE and not head.startswith(f"{_PACKAGE}.")) or last.startswith("_"):
            return None
        try:
            answer = ask_or_raise({"do": "source", "module": f"mcptools{name[len(_PACKAGE) :]}"}, _IMPORT_SECONDS)
        except ToolError as error:
            raise ModuleNotFoundError(str(error)) from None
        package = answer.get("package") is True
        loader: Any = HostLoader(str(answer.get("source", "")))
        make: Any = type(sys.__spec__)  # ModuleSpec, without importing what imports it
        spec: "ModuleSpec" = make(name, loader, origin=f"<{name}>", is_package=package)
        return spec


class HostLoader:
    """Runs source that the host sent."""

    def __init__(self, source: str) -> None:
        self._source = source

    def create_module(self, spec: "ModuleSpec") -> None:
        """An ordinary module."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run the source in ``module``."""
        name = module.__name__
        exec(compile(self._source, f"<{name}>", "exec", dont_inherit=True), vars(module))

    def get_source(self, name: str) -> str:
        """For tracebacks and `inspect`."""
        return self._source


def install() -> None:
    """Ask the host last, after every folder."""
    if HostFinder not in sys.meta_path:
        sys.meta_path.append(HostFinder)


def search(query: str = "", detail: str = "brief") -> str:
    """Tools for what ``query`` says; all of them without. ``detail``: "names", "brief", or "full" with parameters."""
    return ShownText(ask_or_raise({"do": "search", "query": query, "detail": detail}).get("text", ""))


def servers() -> "list[str]":
    """The packages of the servers that there are now; none where nobody answers."""
    return sorted({package for package, _ in _modules()})


def tools_of(package: str) -> "list[str]":
    """The modules of a server's tools that there are now."""
    return sorted(tool for found, tool in _modules() if f"{_PACKAGE}.{found}" == package)


def _modules() -> "list[tuple[str, str]]":
    """Package and module of each tool."""
    try:
        answer = ask({"do": "list"}, _IMPORT_SECONDS)
    except ToolUnavailable:
        return []
    listing = answer.get("tools")
    names = [str(row.get("module", "")).split(".") for row in listing] if isinstance(listing, list) else []
    return [(name[1], name[2]) for name in names if len(name) == 3]


def register(name: str, definition: "dict[str, Any]") -> str:
    """Add an MCP server as ``name``: ``{"command": ..., "args": [...], "env": {...}}`` or ``{"url": ...}``.

    Whoever permits calls is asked, and shown exactly that; a command runs behind a wall outside of this program, and
    gets nothing that is not in the definition. Its tools can be imported at once. Gives a text that says what came of
    it; raises ``ToolError``.
    """
    return ShownText(ask_or_raise({"do": "register", "name": name, "definition": definition}).get("text", ""))
