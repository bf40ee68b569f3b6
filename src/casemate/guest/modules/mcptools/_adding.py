"""A server of the program's own choice, which somebody outside has to allow."""

from ._errors import error_of
from ._finding import Listing
from ._wire import ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def register(name: str, definition: "dict[str, Any]") -> str:
    """Add an MCP server as ``name``: ``{"command": ..., "args": [...], "env": {...}}`` or ``{"url": ...}``.

    Whoever permits calls is asked, and shown exactly that; a command runs behind a wall outside of this program, and
    gets nothing that is not in the definition. Its tools can be imported at once. Gives a text that says what came of
    it; raises ``ToolError``.
    """
    answer = ask({"do": "register", "name": name, "definition": definition})
    if answer.get("ok") is not True:
        raise error_of(answer)
    return Listing(answer.get("text", ""))
