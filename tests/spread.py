"""Runs tests in several copies of the process that collected them. Each copy takes the next file that is left.

Collecting takes as long as running a thousand tests, and pytest-xdist collects in each of its processes.
"""

from __future__ import annotations

import gc
import marshal
import os
import selectors
import signal
import socket
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

_PLACE = struct.Struct("=H")  # the index of a group of tests, in the pipe that copies take them from
_SIZE = struct.Struct("=I")  # the length of a message
_SILENT = ("terminalreporter", "outcomes")  # reporting plugins: only the parent runs them
Group = list[pytest.Item]


class Spread:
    """A plugin that runs the tests in ``count`` copies of this process. Tests with the same ``scope_of`` value stay
    together, in their order."""

    def __init__(self, count: int, scope_of: Callable[[pytest.Item], str]) -> None:
        self._count = count
        self._scope_of = scope_of

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Replace pytest's own loop."""
        if session.testsfailed or session.config.option.collectonly:
            return None
        scopes: dict[str, Group] = {}
        for item in session.items:
            scopes.setdefault(self._scope_of(item), []).append(item)
        groups = list(scopes.values())
        places = _pipe_of_places(len(groups))
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # all copies share the folder
        gc.freeze()  # a garbage collection in a copy would copy all memory pages it visits
        copies = [Copy(session, groups, places) for _ in range(self._count)]
        try:
            _hear(session, copies)
            if os.read(places, 1):
                raise RuntimeError("every process that runs tests has ended, and some files are left")
        finally:
            os.close(places)
            for copy in copies:
                copy.end()
        return True


def _pipe_of_places(count: int) -> int:
    """A pipe filled with the indexes of all groups. All copies read from it; a read of so few bytes is atomic."""
    places, into = os.pipe()
    os.write(into, b"".join(map(_PLACE.pack, range(count))))
    os.close(into)
    return places


def _hear(session: pytest.Session, copies: list[Copy]) -> None:
    """Process the copies' messages until all copies have ended."""
    with selectors.DefaultSelector() as selector:
        for copy in copies:
            selector.register(copy.link, selectors.EVENT_READ, copy)
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.hear():
                    selector.unregister(key.fileobj)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)


class Copy:
    """The parent's view of a process that runs tests."""

    def __init__(self, session: pytest.Session, groups: list[Group], places: int) -> None:
        self._config = session.config
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            ours.close()
            _run(session, groups, places, theirs)
        theirs.close()
        self.link = ours
        self._groups = groups
        self._left: dict[str, pytest.Item] = {}  # tests that it has taken and not finished

    def hear(self) -> bool:
        """Process its next message. False if it was the last."""
        kind, value = self._next_message()
        if kind == "takes":
            self._left.update((item.nodeid, item) for item in self._groups[value])
        elif kind == "ends":
            del self._left[value]
        elif kind == "report":
            self._tell(self._config.hook.pytest_report_from_serializable(config=self._config, data=value))
        elif kind == "died":
            said = f"the process that was to run it ended\n{value}"
            if not self._left:
                raise RuntimeError(said)
            for item in self._left.values():
                self._tell(pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call"))
        return kind not in ("died", "over")

    def _next_message(self) -> tuple[str, Any]:
        head = self.link.recv(_SIZE.size, socket.MSG_WAITALL)
        size = _SIZE.unpack(head)[0] if len(head) == _SIZE.size else 0
        body = self.link.recv(size, socket.MSG_WAITALL) if size else b""
        if len(body) < max(size, 1):
            return "died", ""
        kind, value = marshal.loads(body)
        return kind, value

    def _tell(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        self._config.hook.pytest_runtest_logreport(report=report)

    def end(self) -> None:
        """Kill it if it still runs."""
        self.link.close()
        os.kill(self._pid, signal.SIGKILL)  # it was not reaped yet, so the pid is still its own
        os.waitpid(self._pid, 0)


def _run(session: pytest.Session, groups: list[Group], places: int, link: socket.socket) -> NoReturn:
    """In a copy: run groups of tests and report their outcomes until no group is left."""
    manager = session.config.pluginmanager
    telling = _Telling(session.config, link)
    try:
        for name in _SILENT:
            manager.unregister(name=name)
        _have_own_captures(manager.getplugin("capturemanager"))
        manager.register(telling)
        items = _items(groups, places, telling)
        item = next(items, None)
        while item is not None:
            following = next(items, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
        telling.tell("over", None)
    except BaseException:  # noqa: BLE001 - reported to the parent; the process ends in any case
        telling.tell("died", traceback.format_exc())
    finally:
        os._exit(0)


def _have_own_captures(manager: Any) -> None:
    """Give this copy its own capture files instead of those shared with its parent. The stream objects stay the same,
    because imported modules may hold references to them."""
    captures = manager._global_capturing
    for one in (captures.out, captures.err):
        if one is not None:
            with tempfile.TemporaryFile() as own:
                os.dup2(own.fileno(), one.tmpfile.fileno(), inheritable=False)


def _items(groups: list[Group], places: int, telling: _Telling) -> Iterator[pytest.Item]:
    while data := os.read(places, _PLACE.size):
        (place,) = _PLACE.unpack(data)
        telling.tell("takes", place)
        yield from groups[place]


class _Telling:
    """A plugin that sends a copy's progress to the parent."""

    def __init__(self, config: pytest.Config, link: socket.socket) -> None:
        self._config = config
        self._link = link

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.tell("ends", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self.tell("report", hook.pytest_report_to_serializable(config=self._config, report=report))

    def tell(self, kind: str, value: Any) -> None:
        data = marshal.dumps((kind, value))
        self._link.sendall(_SIZE.pack(len(data)) + data)
