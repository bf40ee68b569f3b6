"""Objects that show themselves well: a line as their repr, and all that there is room for elsewhere. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.panel import Panel

    from casemate.model.showing import Summary

_MOST_LINE = 200  # characters of a repr


class Shown(ABC):
    """`casemate.model.showing` is loaded when more than the line is wanted."""

    __slots__ = ()

    @abstractmethod
    def _line(self) -> str:
        """The most important of it."""

    @abstractmethod
    def _summary(self) -> Summary:
        """What is shown where there is room."""

    def __repr__(self) -> str:
        from casemate.visible import visible

        line = visible(self._line())
        return f"<{line}>" if len(line) <= _MOST_LINE - 2 else f"<{line[: _MOST_LINE - 3]}…>"

    def __rich__(self) -> Panel:
        return self._summary().as_panel()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:  # noqa: ARG002
        from casemate.model.showing import html_of

        summary = self._summary()
        return {"text/plain": summary.as_text(), "text/html": html_of(summary)}


class ShownSession(Shown):
    """A session, wherever it lives."""

    __slots__ = ()

    if TYPE_CHECKING:
        id: str
        name: str | None
        language: str

        @property
        def is_closed(self) -> bool: ...

    def _line(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"Session{name} {self.language} {self.id}{' closed' if self.is_closed else ''}"

    def _summary(self) -> Summary:
        from casemate.model.showing import Summary

        state = "closed" if self.is_closed else "running a step" if getattr(self, "is_busy", False) else "open"
        facts = (("name", self.name or ""), ("language", self.language), ("handle", self.id), ("state", state))
        return Summary("Session", facts, tone="plain" if self.is_closed else "good")
