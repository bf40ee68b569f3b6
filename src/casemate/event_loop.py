"""The event loop of casemate's own threads and commands."""

from __future__ import annotations

import asyncio
import selectors


def polling_loop() -> asyncio.AbstractEventLoop:
    """An event loop over poll(2). The kernel counts what epoll watches for each user, so that one cell could leave
    none to all other programs of the user (epoll(7), max_user_watches); of poll it counts nothing."""
    return asyncio.SelectorEventLoop(selectors.PollSelector())
