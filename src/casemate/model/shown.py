"""Objects that show themselves: one line as their repr, and a summary elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.panel import Panel

    from casemate.model.showing import Summary

_MOST_LINE = 200  # characters of a repr


class Shown(ABC):
    """An object with a line and a summary. `casemate.model.showing` is imported only for the summary."""

    __slots__ = ()

    @abstractmethod
    def _line(self) -> str:
        """The most important facts."""

    @abstractmethod
    def _summary(self) -> Summary:
        """The full view."""

    def __repr__(self) -> str:
        from casemate.visible import shorten, visible

        return f"<{shorten(visible(self._line()), _MOST_LINE - 2)}>"

    def __rich__(self) -> Panel:
        return self._summary().as_panel()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:  # noqa: ARG002
        from casemate.model.showing import html_of

        summary = self._summary()
        return {"text/plain": summary.as_text(), "text/html": html_of(summary)}


class ShownSession(Shown):
    """A session, local or remote."""

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
