"""Which of many descriptors are ready."""

from __future__ import annotations

import select


class DescriptorPoll:
    """As ``select.poll``, but what rests costs nothing, for epoll(7) watches it. Used by one thread.

    The kernel counts for each user what epoll watches, and a cell of the same user can use that up. What epoll refuses
    is polled by poll(2), which is slower.
    """

    def __init__(self) -> None:
        """Raises ``OSError`` where no descriptor is left."""
        self._epoll = select.epoll()
        self._poll = select.poll()
        self._poll.register(self._epoll, select.POLLIN)
        self._polled: set[int] = set()

    def register(self, fd: int, events: int) -> None:
        """Tell of these ``events`` of ``fd`` from now on, instead of those that were asked for before."""
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
        """Tell of ``fd`` no more. To be called before it is closed: a copy in another process keeps it watched."""
        if fd in self._polled:
            self._polled.remove(fd)
            self._poll.unregister(fd)
        else:
            self._epoll.unregister(fd)

    def wait(self, seconds: float | None) -> list[tuple[int, int]]:
        """What is ready, descriptors and events: as soon as something is, or nothing after ``seconds``. Of what is
        watched alike, what was ready or registered first comes first."""
        if not self._polled:
            return self._epoll.poll(seconds)
        ready = self._poll.poll(None if seconds is None else seconds * 1000)
        return [(fd, events) for fd, events in ready if fd in self._polled] + self._epoll.poll(0)

    def close(self) -> None:
        """Watch nothing any more."""
        self._epoll.close()
