"""In whose name something is done: told by the surface that was asked, never by who asks. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_CALLER: ContextVar[str] = ContextVar("caller", default="")


@contextlib.contextmanager
def called_by(name: str) -> Iterator[None]:
    """What is begun meanwhile is ``name``'s, also what goes on by itself later: in records and in what it asks."""
    token = _CALLER.set(name)
    try:
        yield
    finally:
        _CALLER.reset(token)


def caller() -> str:
    """Whose this is; empty where the application itself does it."""
    return _CALLER.get()
