"""How far a call is, for blocks that want to hear it."""

from contextvars import ContextVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    ProgressCallback = Callable[[float, "float | None", str], object]

_callback_of_block: "ContextVar[ProgressCallback | None]" = ContextVar("mcptools progress", default=None)


class on_progress:  # noqa: N801 - it reads as a function does
    """``with on_progress(callback):`` has calls within the block tell how far they are: ``callback(progress, total,
    message)``, in the thread or event loop of the call, a few times a second. ``total`` is None and ``message`` empty
    where the server does not say. Only what servers report is told; an exception of ``callback`` cancels the call.

    It holds for the task or thread that the block is in, and for tasks that begin there."""

    def __init__(self, callback: "ProgressCallback") -> None:
        self._callback = callback
        self._before: "list[Any]" = []

    def __enter__(self) -> None:
        self._before.append(_callback_of_block.set(self._callback))

    def __exit__(
        self, kind: "type[BaseException] | None", error: "BaseException | None", trace: "TracebackType | None"
    ) -> None:
        _callback_of_block.reset(self._before.pop())


def progress_listener() -> "Callable[[dict[str, Any]], object] | None":
    """What is told of lines before an answer; None outside of any block."""
    callback = _callback_of_block.get()
    if callback is None:
        return None

    def tell(said: "dict[str, Any]") -> None:
        progress, total, message = said.get("progress"), said.get("total"), said.get("message")
        if isinstance(progress, (int, float)):
            callback(progress, total if isinstance(total, (int, float)) else None, str(message or ""))

    return tell
