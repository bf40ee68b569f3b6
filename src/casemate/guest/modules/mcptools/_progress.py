"""Progress of calls within a block."""

from contextvars import ContextVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    ProgressCallback = Callable[[float, "float | None", str], object]

_callback_of_block: "ContextVar[ProgressCallback | None]" = ContextVar("mcptools progress", default=None)


class on_progress:  # noqa: N801 - it is used like a function
    """``with on_progress(callback):`` reports the progress that servers send for calls in the block.

    ``callback(progress, total, message)`` is called in the thread or event loop of the call, a few times a second.
    ``total`` is None and ``message`` empty if the server does not send them. An exception in ``callback`` cancels the
    call. The block covers its task or thread, and tasks that start in it.
    """

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
    """Return the receiver of lines before an answer; None outside any block."""
    callback = _callback_of_block.get()
    if callback is None:
        return None

    def tell(said: "dict[str, Any]") -> None:
        progress, total, message = said.get("progress"), said.get("total"), said.get("message")
        if isinstance(progress, (int, float)):
            callback(progress, total if isinstance(total, (int, float)) else None, str(message or ""))

    return tell
