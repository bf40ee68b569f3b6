"""What a program's process writes to, learned from one that is thrown away, in the zygote.

A forked interpreter copies each page that it writes to when it first does: to start, run and end a program of one
line it is some two hundred, and the program waits for each. A cell that waits for its program copies those ahead.
"""

from __future__ import annotations

import array
import os
import select
import sys

from casemate.supervisor import cell

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    Ranges = list[tuple[int, int]]

PROGRAM = "main.py"
# What most programs do first; its output goes nowhere. Where a session's interpreter is loaded, that is played. None of
# the words may be in it for which `leaving` has a program end as any other does.
TEXT = """import _casemate
if hasattr(_casemate, "session_ready"):
    from _casemate import session
    session.main()
def f(x):
    return [f"{n!r} {n / 2:.1f}" for n in range(x)]
print(*f(3))
"""
_ORDER = b'{"env": {"PATH": "/usr/bin", "TZ": "UTC", "REHEARSAL": "1"}, "arguments": []}'
_SESSION_ORDER = _ORDER[:-1] + b', "session": true}'
_STEPS = ("x = [1]\\nprint(x)", "x", "__import__('sys').modules['_casemate.leaving'].at_the_end[-1]()")
_STEP = '{"op": "run", "step": %d, "code": "%s", "out": "/dev/null", "err": "/dev/null", "stdin": null, "cwd": null}'
_WITHIN = 5.0  # seconds; it takes ten milliseconds
_PRESENT, _SHARED, _ALONE = 1 << 63, 1 << 61, 1 << 56  # of an entry in pagemap (proc(5))
_SIGKILL = 9


class Rehearsal:
    """A process that plays a program's: in it ``is_player`` is true, and everything goes on as in a cell."""

    def __init__(self) -> None:
        self._told, tell = os.pipe()
        self._pid = os.fork()
        self.is_player = self._pid == 0
        if self.is_player:
            os.close(self._told)
            _stand_in(tell)
        else:
            os.close(tell)

    def written(self) -> Ranges:
        """Address and length of everything that the player has written to up to its end; nothing where that cannot be
        seen. Its end is waited for."""
        try:
            return _owned(self._pid) if self._comes_to_its_end() else []
        except (OSError, ValueError):
            return []
        finally:
            os.kill(self._pid, _SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._told)

    def _comes_to_its_end(self) -> bool:
        ready, _, _ = select.select([self._told], [], [], _WITHIN)
        return bool(ready) and os.read(self._told, 1) == b"e"


def _stand_in(tell: int) -> None:
    """Put what a cell would have where the program finds it: an order, pipes, and a last thing to do."""
    high = cell.above(tell)
    order, give = os.pipe()
    for message in _messages():
        os.write(give, len(message).to_bytes(4, "big") + message)
    nowhere, out = os.pipe()
    for fd, place in ((order, cell.ORDER), (out, 1), (out, 2), (out, cell.CONTROL)):
        os.dup2(fd, place)
    os.set_blocking(nowhere, False)

    def end() -> None:
        os.write(high, b"e")
        select.select([], [], [])  # the zygote has a look at us, and ends us

    sys.modules["_casemate.leaving"].at_the_end.append(end)


def _messages() -> list[bytes]:
    """What the player is told: its order, and a session's interpreter some steps, the last of which is its end."""
    if "_casemate.session_ready" not in sys.modules:
        return [_ORDER]
    return [_SESSION_ORDER, *((_STEP % (number, code)).encode() for number, code in enumerate(_STEPS, 1))]


def _owned(pid: int) -> Ranges:
    """Private memory of ``pid`` that nobody shares with it, page by page and put together where they adjoin."""
    page = os.sysconf("SC_PAGE_SIZE")
    ranges: Ranges = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for line in maps:
            places, rights, *_ = line.split()
            if rights[1] == "w" and rights[3] == "p":
                first, last = (int(place, 16) for place in places.split("-"))
                entries = array.array("Q", os.pread(pagemap.fileno(), (last - first) // page * 8, first // page * 8))
                for number, entry in enumerate(entries):
                    if entry & _PRESENT and entry & _ALONE and not entry & _SHARED:
                        _add(ranges, first + number * page, page)
    return ranges


def _add(ranges: Ranges, address: int, length: int) -> None:
    if ranges and sum(ranges[-1]) == address:
        ranges[-1] = (ranges[-1][0], ranges[-1][1] + length)
    else:
        ranges.append((address, length))
