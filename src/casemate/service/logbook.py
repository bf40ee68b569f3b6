"""The service's own log: one JSON object a line, bounded, without programs, arguments or secrets."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from casemate.errors import Unavailable
from casemate.remote.places import LOG, open_private

MOST_BYTES = 5 * 2**20  # of the file; the one before it is kept, so it is at most twice that
_OLD = LOG + ".1"
_FACTS = ("event", "method", "path", "status", "seconds", "principal", "kind", "signal", "runs", "address")


class Logbook(logging.Handler):
    """Writes records into the folder's log. Facts are those named in ``extra`` that are known; nothing else of a record
    but its message is written, and of an exception its class and where it was raised."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._fd = -1

    def emit(self, record: logging.LogRecord) -> None:
        """Write one; a log that cannot be written ends nobody."""
        told: dict[str, Any] = {"at": round(record.created, 3), "level": record.levelname.lower()}
        told |= {name: value for name in _FACTS if (value := getattr(record, name, None)) is not None}
        told["message"] = record.getMessage()[:500]
        if record.exc_info and record.exc_info[0]:
            told["error"], told["where"] = record.exc_info[0].__name__, _where(record.exc_info[2])
        with contextlib.suppress(OSError, Unavailable):
            os.write(self._opened(), json.dumps(told).encode() + b"\n")

    def close(self) -> None:
        """Harmless when repeated."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        super().close()

    def _opened(self) -> int:
        if self._fd >= 0 and os.fstat(self._fd).st_size < MOST_BYTES:
            return self._fd
        folder = open_private(self._folder, make=True)
        try:
            if self._fd >= 0:
                os.close(self._fd)  # which leaves a descriptor for the next one
                self._fd = -1
                os.replace(LOG, _OLD, src_dir_fd=folder, dst_dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(LOG, flags, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
        return self._fd


def begin(folder: Path) -> logging.Logger:
    """The service's logger, which writes into ``folder``; libraries' warnings go there, too, and nothing elsewhere."""
    book = Logbook(folder)
    root = logging.getLogger()
    root.handlers[:] = [book]
    root.setLevel(logging.WARNING)
    logger = logging.getLogger("casemate.service")
    logger.setLevel(logging.INFO)
    return logger


def _where(traceback: Any) -> str:
    """File and line of where it was raised: never a line of source, which may hold what somebody gave."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}" if traceback else ""
