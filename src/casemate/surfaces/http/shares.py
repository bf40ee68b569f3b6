"""How much of a service one caller may use at once, so that there is something left for others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from casemate.errors import QueueFull

_MOST_REQUESTS = 1000  # of one account under way: half of what a place takes
_SOON = 1.0  # seconds
_MOST_BYTES = 64 * 2**20  # of one account's bodies that are held in memory


@dataclass(slots=True)
class _Used:
    requests: int = 0
    bytes: int = 0


class Share:
    """One request's part of what its account uses."""

    def __init__(self, used: _Used) -> None:
        self._used = used
        self._bytes = 0

    def hold(self, size: int) -> None:
        """So many bytes more are held until the request is over. Raises ``QueueFull`` for too many."""
        if self._used.bytes + size > _MOST_BYTES:
            raise QueueFull(f"more than {_MOST_BYTES} bytes of your requests are being read", retry_after=_SOON)
        self._used.bytes += size
        self._bytes += size

    def end(self) -> None:
        """The request is over."""
        self._used.bytes -= self._bytes


class Shares:
    """Of all accounts that are being answered."""

    def __init__(self) -> None:
        self._used: dict[tuple[str, str], _Used] = {}

    @contextmanager
    def of(self, namespace: str, payer: str) -> Iterator[Share]:
        """A request's share, as long as it is answered. Raises ``QueueFull`` where there are too many."""
        used = self._used.setdefault((namespace, payer), _Used())
        if used.requests >= _MOST_REQUESTS:
            raise QueueFull(f"{_MOST_REQUESTS} requests of yours are under way", retry_after=_SOON)
        used.requests += 1
        share = Share(used)
        try:
            yield share
        finally:
            share.end()
            used.requests -= 1
            if not used.requests:
                self._used.pop((namespace, payer), None)
