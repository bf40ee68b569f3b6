"""The control pipe to the host: length-prefixed JSON objects on descriptor 3, sent whole or not at all."""

import _thread
import fcntl
import json
import os
import stat
import termios
import time

import _casemate  # type: ignore[import-not-found]

FRAME_LIMIT = 16 * 2**20
ORDER_TRIES, ORDER_PAUSE = 100, 0.0005  # a twentieth of a second in all

_lock = _thread.allocate_lock()


def encode(frame: "dict[str, object]") -> bytes:
    """The frame's bytes without its length. Raises ``ValueError`` or ``TypeError`` for what JSON does not have."""
    return json.dumps(frame, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def is_open() -> bool:
    """Whether descriptor 3 still is the control pipe, and this is the process that it was given to.

    Frames of several processes would mix; and a program may have closed the pipe and opened a file in its place.
    """
    control = _casemate.control
    if control is None or os.getpid() != control[3]:
        return False
    try:
        status = os.fstat(control[0])
    except OSError:
        return False
    same: bool = (status.st_dev, status.st_ino) == control[1:3]
    return same


def send(payload: bytes) -> bool:
    """Send one encoded frame; False when there is nobody to send it to, or when it is too large."""
    if len(payload) > FRAME_LIMIT or not is_open():
        return False
    data = memoryview(len(payload).to_bytes(4, "big") + payload)
    with _lock:
        _wait_until_read(1, 2)
        try:
            while data:
                data = data[os.write(_casemate.control[0], data) :]
        except OSError:
            return False
        _wait_until_read(_casemate.control[0])
    return True


def _wait_until_read(*descriptors: int) -> None:
    """Wait a moment until the host has read what is in these pipes, so that it sees text and displays in order.

    There is no order between pipes but this. A host that does not read holds nothing up for longer than the moment.
    """
    for _ in range(ORDER_TRIES):
        if not any(_holds_unread(descriptor) for descriptor in descriptors):
            return
        time.sleep(ORDER_PAUSE)


def _holds_unread(descriptor: int) -> bool:
    try:
        waiting = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0")
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode) and any(waiting)
    except OSError:
        return False  # it is closed, or something that holds nothing for the host
