"""An event loop that hears of few connections in one turn: when hundreds say something at once, others get theirs in
between."""

from __future__ import annotations

import asyncio
import select
import selectors
from typing import Any

_MOST = 24  # connections in one turn, of some tenths of a millisecond each


class _Few:
    """An epoll object that tells of no more than :data:`_MOST`. The kernel goes round those that are ready, so that
    each has its turn (epoll_wait(2))."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        """As ``select.epoll.poll``."""
        return self._epoll.poll(timeout, min(maxevents, _MOST) if maxevents > 0 else _MOST)


class _Selector(selectors.EpollSelector):
    def __init__(self) -> None:
        super().__init__()
        self._selector: Any = _Few(self._selector)


def new_loop() -> asyncio.AbstractEventLoop:
    """The event loop of a service."""
    return asyncio.SelectorEventLoop(_Selector())
