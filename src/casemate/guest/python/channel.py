"""The control pipe to the host: length-prefixed JSON objects on descriptor 3, sent whole or not at all."""

import _thread
import json
import os

from _casemate import control  # type: ignore[import-not-found]

FRAME_LIMIT = 16 * 2**20

_lock = _thread.allocate_lock()


def encode(frame: "dict[str, object]") -> bytes:
    """The frame's bytes without its length. Raises ``ValueError`` or ``TypeError`` for what JSON does not have."""
    return json.dumps(frame, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def is_open() -> bool:
    """Whether descriptor 3 still is the control pipe, and this is the process that it was given to.

    Frames of several processes would mix; and a program may have closed the pipe and opened a file in its place.
    """
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
        try:
            while data:
                data = data[os.write(control[0], data) :]
        except OSError:
            return False
    return True
