"""Several processes run the tests that one has read. Each takes the next file that nobody has.

To read the tests takes as long as to run a thousand of them, and pytest-xdist has each of its processes do so.
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

_PLACE = struct.Struct("=H")  # of a file among all, in the pipe from which they are taken
_SIZE = struct.Struct("=I")  # of a message
_SILENT = ("terminalreporter", "outcomes")  # plugins of the parent's, which tells what the copies say
Group = list[pytest.Item]


class Spread:
    """A plugin: runs the tests in ``count`` copies of this process. ``scope_of``: tests for which it says the same stay
    together, in their order."""

    def __init__(self, count: int, scope_of: Callable[[pytest.Item], str]) -> None:
        self._count = count
        self._scope_of = scope_of

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Instead of pytest's own loop."""
        if session.testsfailed or session.config.option.collectonly:
            return None
        scopes: dict[str, Group] = {}
        for item in session.items:
            scopes.setdefault(self._scope_of(item), []).append(item)
        groups = list(scopes.values())
        places = _pipe_of_places(len(groups))
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all
        gc.freeze()  # a collection in a copy would copy what it looks at
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
    """What all copies read from: a file's place, as long as there are more. A read of so few bytes is one step."""
    places, into = os.pipe()
    os.write(into, b"".join(map(_PLACE.pack, range(count))))
    os.close(into)
    return places


def _hear(session: pytest.Session, copies: list[Copy]) -> None:
    """Pass on what the copies say, until all have ended."""
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
    """A process that runs tests, as its parent sees it."""

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
        self._left: dict[str, pytest.Item] = {}  # tests that it has taken, and that are not over

    def hear(self) -> bool:
        """Pass on its next message; false when that was the last."""
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
        """End it, if it has not."""
        self.link.close()
        os.kill(self._pid, signal.SIGKILL)  # not reaped yet, so the number is still its
        os.waitpid(self._pid, 0)


def _run(session: pytest.Session, groups: list[Group], places: int, link: socket.socket) -> NoReturn:
    """In a copy: run files and tell what comes of them, until there are no more."""
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
    except BaseException:  # noqa: BLE001 - the end of this process, whatever happened
        telling.tell("died", traceback.format_exc())
    finally:
        os._exit(0)


def _have_own_captures(manager: Any) -> None:
    """Put a file of this copy's own behind what pytest captures in, which it shares with its parent. The streams stay
    what they are: modules that were imported may have kept them."""
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
    """A plugin: tells the parent what a copy does."""

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
