"""The two pipes to the host: frames out on descriptor 3, requests in on descriptor 6.

Nothing here uses anything that user code could have changed: the C functions below read and write JSON.
"""

import json
import os
from _json import encode_basestring, make_encoder
from _thread import allocate_lock
from select import POLLIN, poll

from _casemate.session_interrupts import REQUESTS, interrupts  # type: ignore[import-not-found]
from _casemate.session_interrupts import own as __builtins__  # type: ignore[no-redef]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["__builtins__", "encode", "pipes"]

CONTROL = 3
FRAME_LIMIT = 16 * 2**20
CANNOT_SPEAK = 70  # exit code if the program has closed its interpreter's pipes
_read, _write, _fstat, _close, _getpid, _exit = os.read, os.write, os.fstat, os.close, os.getpid, os._exit
_set_inheritable = os.set_inheritable
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is not JSON")


def encode(value: object) -> str:
    """Encode ``value`` as JSON. Raises ``TypeError``, ``ValueError`` or ``RecursionError`` if JSON cannot hold it."""
    encoder = make_encoder({}, _refuse, encode_basestring, None, ":", ",", False, False, False)
    return "".join(encoder(value, 0))


class _Pipes:
    """Both pipes and their owner process. A forked child has neither."""

    __slots__ = ("_control", "_lock", "_requests", "pid")

    def __init__(self) -> None:
        self.pid = 0
        self._control = self._requests = (0, 0)
        self._lock = allocate_lock()

    def take(self) -> None:
        """Remember the pipes, and do not pass them to child programs.

        Raises ``OSError`` if they do not exist.
        """
        for descriptor in (CONTROL, REQUESTS):
            _set_inheritable(descriptor, False)
        self._control, self._requests, self.pid = _identity(CONTROL), _identity(REQUESTS), _getpid()

    def are_mine(self) -> bool:
        """Whether this process is the interpreter, not a child of it."""
        return _getpid() == self.pid

    def leave_to_parent(self) -> None:
        """Close both in a forked child, whichever thread held the lock."""
        self._lock = allocate_lock()
        for descriptor, identity in ((CONTROL, self._control), (REQUESTS, self._requests)):
            if _identity(descriptor) == identity:
                _close(descriptor)

    def send(self, payload: str) -> bool:
        """Send one frame. Returns False in a child, and for a frame too large. Ends the process if the pipe is gone."""
        if not self.are_mine():
            return False
        data = payload.encode("utf-8", "replace")
        if len(data) > FRAME_LIMIT:
            return False
        interrupts.hold()
        try:
            with self._lock:
                if _identity(CONTROL) != self._control:
                    _exit(CANNOT_SPEAK)
                _write_all(memoryview(len(data).to_bytes(4, "big") + data))
        finally:
            interrupts.release()
        return True

    def wait(self) -> None:
        """Wait until a request begins to arrive, or the pipe ends."""
        if _identity(REQUESTS) == self._requests:
            waiter = poll()
            waiter.register(REQUESTS, POLLIN)
            waiter.poll()

    def receive(self) -> "dict[str, Any] | None":
        """Return the next request, or None at the end of the pipe."""
        if not self.are_mine():
            _exit(0)
        head = self._read_all(4)
        body = self._read_all(int.from_bytes(head, "big")) if head else b""
        if not body:
            return None
        request: "dict[str, Any]" = _scan(body.decode("utf-8"), 0)[0]
        return request

    def _read_all(self, size: int) -> bytes:
        """Read exactly ``size`` bytes; returns b"" if the pipe has ended."""
        pieces, missing = [], size
        while missing:
            if _identity(REQUESTS) != self._requests:
                _exit(CANNOT_SPEAK)
            piece = _read(REQUESTS, missing)
            if not piece:
                return b""
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)


def _write_all(data: memoryview) -> None:
    try:
        while data:
            data = data[_write(CONTROL, data) :]
    except OSError:
        _exit(CANNOT_SPEAK)


def _identity(descriptor: int) -> "tuple[int, int]":
    try:
        status = _fstat(descriptor)
    except OSError:
        return (0, 0)
    return status.st_dev, status.st_ino


pipes = _Pipes()
