"""The control pipe to the host: length-prefixed JSON objects on descriptor 3, each sent whole or not at all.

Also reports uncaught exceptions.
"""

import _thread
import fcntl
import json
import os
import stat
import termios
import time

import _casemate  # type: ignore[import-not-found]

FRAME_LIMIT = 16 * 2**20
ORDER_TRIES, ORDER_PAUSE = 400, 0.0005  # 0.2 s in all; 0.05 s was too little on a busy machine

_lock = _thread.allocate_lock()
_LONGEST = 2**20


def encode(frame: "dict[str, object]") -> bytes:
    """Encode a frame without its length. Raises ``ValueError`` or ``TypeError`` for values that JSON cannot hold."""
    return json.dumps(frame, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def is_open() -> bool:
    """Whether descriptor 3 is still the control pipe, and this is the process that owns it.

    Frames of several processes would mix, and a program may have closed the pipe and opened another file in its place.
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
    """Send one encoded frame. Returns False if the pipe is not open or the frame is too large."""
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
    """Wait briefly until the host has read these pipes, so that it sees text and displays in order.

    Nothing else orders separate pipes. A host that does not read delays the program only this long.
    """
    for _ in range(ORDER_TRIES):
        if not any(_has_unread(descriptor) for descriptor in descriptors):
            return
        time.sleep(ORDER_PAUSE)


def _has_unread(descriptor: int) -> bool:
    try:
        waiting = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0")
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode) and any(waiting)
    except OSError:
        return False  # it is closed, or holds nothing for the host


def report_error(error: BaseException) -> None:
    """Send one error frame. Never raises, even if the exception itself is broken."""
    number = getattr(error, "errno", None) if isinstance(error, OSError) else None
    frame: "dict[str, object]" = {
        "type": "error",
        "name": type(error).__name__,
        "value": _cut_end(_message(error)),
        "traceback": _cut_beginning(_traceback(error)),
        "errno": number if isinstance(number, int) else None,
    }
    send(encode(frame))
    if isinstance(error, KeyboardInterrupt):
        _stay_interrupted()


def _cut_end(text: str) -> str:
    """Return ``text`` up to the size limit. The ellipsis at a cut tells the host to hide a partial secret there."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _cut_beginning(text: str) -> str:
    """Keep the end of a traceback, which matters most."""
    return text if len(text) <= _LONGEST else f"…{text[1 - _LONGEST :]}"


def _stay_interrupted() -> None:
    """Make Python die by SIGINT after Ctrl-C ended the program. Evaluating text clears its flag for that, and this
    module's imports evaluate text for named tuples."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    try:
        eval("interrupt()", {"interrupt": interrupt})
    except KeyboardInterrupt:
        return


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"


def _traceback(error: BaseException) -> str:
    try:
        import traceback

        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:
        return f"{type(error).__name__}: {_message(error)}\n"
