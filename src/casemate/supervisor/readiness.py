"""Which of many descriptors are ready."""

from __future__ import annotations

import select


class DescriptorPoll:
    """As ``select.poll``, but what rests costs nothing: epoll(7) watches it. For one thread.

    The kernel counts for each user what epoll watches, and a cell of the same user can leave no watch to others. A
    descriptor that epoll does not take is polled: all goes on, as slowly as by poll(2).
    """

    def __init__(self) -> None:
        """Raises ``OSError`` where no descriptor is left."""
        self._epoll = select.epoll()
        self._poll = select.poll()
        self._poll.register(self._epoll, select.POLLIN)
        self._polled: set[int] = set()

    def register(self, fd: int, events: int) -> None:
        """Tell of these ``events`` of ``fd`` from now on, and of no others that were asked for before."""
        if fd not in self._polled:
            try:
                self._epoll.register(fd, events)
                return
            except FileExistsError:
                self._epoll.modify(fd, events)
                return
            except OSError:
                self._polled.add(fd)
        self._poll.register(fd, events)

    def unregister(self, fd: int) -> None:
        """Tell of it no more. Before it is closed."""
        if fd in self._polled:
            self._polled.remove(fd)
            self._poll.unregister(fd)
        else:
            self._epoll.unregister(fd)

    def wait(self, seconds: float | None) -> list[tuple[int, int]]:
        """Descriptors and what is there, as soon as there is something, or after ``seconds``."""
        if not self._polled:
            return self._epoll.poll(seconds)
        ready = self._poll.poll(None if seconds is None else seconds * 1000)
        return [(fd, events) for fd, events in ready if fd in self._polled] + self._epoll.poll(0)

    def close(self) -> None:
        """Watch nothing any more."""
        self._epoll.close()
