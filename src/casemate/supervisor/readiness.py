"""Polling of many descriptors."""

from __future__ import annotations

import select

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable


class DescriptorPoll:
    """Like ``select.poll``, but idle descriptors cost nothing, because epoll(7) watches them. For one thread. A cell of
    the same user can use up the user's limit on epoll; what epoll refuses goes to poll(2), which is slower."""

    def __init__(self) -> None:
        """Raises ``OSError`` if no descriptor is free."""
        self._epoll = select.epoll()
        self._poll = select.poll()
        self._poll.register(self._epoll, select.POLLIN)
        self._polled: set[int] = set()

    def register(self, fd: int, events: int) -> None:
        """Watch ``fd`` for ``events``, replacing earlier ones."""
        if fd not in self._polled:
            try:
                self._epoll.register(fd, events)
            except FileExistsError:
                self._epoll.modify(fd, events)
            except OSError:
                self._polled.add(fd)
        if fd in self._polled:
            self._poll.register(fd, events)

    def unregister(self, fd: int) -> None:
        """Stop watching ``fd``. Call this before closing it: a copy in another process would keep it watched."""
        if fd in self._polled:
            self._polled.remove(fd)
            self._poll.unregister(fd)
        else:
            self._epoll.unregister(fd)

    def wait(self, seconds: float | None) -> list[tuple[int, int]]:
        """The ready descriptors and their events, after at most ``seconds``. poll's come first, by registration;
        then epoll's, by readiness."""
        if not self._polled:
            return self._epoll.poll(seconds)
        ready = self._poll.poll(None if seconds is None else seconds * 1000)
        return [(fd, events) for fd, events in ready if fd in self._polled] + self._epoll.poll(0)

    def close(self) -> None:
        self._epoll.close()


class Poller:
    """Calls a handler for each descriptor that is ready."""

    def __init__(self) -> None:
        self._poll = DescriptorPoll()
        self._handlers: dict[int, Callable[[], object]] = {}

    def set_interest(self, fd: int, events: int, handle: Callable[[], object] = bool) -> None:
        """Call ``handle`` on any of ``events``. 0 ends the interest, and must be set before ``fd`` is closed."""
        if events:
            self._handlers[fd] = handle
            self._poll.register(fd, events)
        elif self._handlers.pop(fd, None):
            self._poll.unregister(fd)
