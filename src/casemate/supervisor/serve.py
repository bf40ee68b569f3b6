"""The supervisor's loop: make cells, begin their programs, watch their limits, say how each ended."""

from __future__ import annotations

import _socket
import os
import resource
import select
import time

from casemate.supervisor import (
    broker,
    cells,
    cgroups,
    doors,
    due,
    enter,
    host,
    kernel,
    roots,
    sessions,
    spare,
    spares,
    zygotes,
)
from casemate.supervisor.identity import Identity

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_EMFILE = 24
# Of a request for a cell.
_FOR_THE_CELL = (
    "layers", "rlimits", "cpu_set", "readable", "writable", "control", "forked", "cwd", "order", "session",
)  # fmt: skip
_GIVEN = ("stdin", "stdout", "stderr", "control", "payload", "order")  # descriptors that a cell gets
_MAX_WAIT = 3600.0  # seconds; only so that a wait has a bound
_ASK_AGAIN = 1.0  # seconds until zygotes that do not answer are looked at again
_REMOVE_AGAIN = 0.02  # seconds until a cgroup that the kernel still holds is tried again


class Server:
    """Serves one host over one socket, alone in its thread."""

    def __init__(self, socket: _socket.socket, mode: str, cell_id: int, groups: cgroups.Cgroups) -> None:
        self._host = host.Host(socket)
        self._identity = Identity(cell_id, cell_id, mapped=mode != "user")
        self._roots: dict[str, str] = {}
        self._broken_roots: dict[str, str] = {}
        self._spares = spares.Spares(self._identity, groups)
        self._zygotes: dict[str, zygotes.Zygote] = {}
        self._cells: dict[str, cells.Cell] = {}
        self._due = due.Due()  # when each cell wants to be looked at
        self._doors = doors.Doors(self._host.say)
        self._sessions = sessions.Sessions(self._identity, self._host.say)
        self._pids: set[int] = set()  # of the first processes of cells, until they are reaped
        self._unborn: dict[str, list[Callable[[], None]]] = {}  # cells that a zygote makes, and what is to be done then
        self._removals: list[cgroups.Group] = []
        self._epoll = select.epoll()
        self._happened: dict[int, Callable[[], None]] = {}  # what to do when a descriptor becomes readable
        self._serving = True
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        # Descriptors that cells of this user have in flight count against us (unix(7), ETOOMANYREFS).
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def try_cgroups(self) -> dict[str, str | None]:
        """Whether cgroups can be used here, for memory and for cpu, as tried on a spare."""
        return self._spares.try_cgroups()

    def run(self) -> None:
        """Serve until the host closes its end; then return, and with us every cell ends."""
        self._watch(self._host.fileno(), self._receive)
        while self._serving:
            for fd, _ in self._next_events():
                happened = self._happened.get(fd)
                if happened:
                    happened()
            now = time.monotonic()
            for cell_id in self._due.take(now):
                self._cells[cell_id].keep_time(now)
                self._note_time(cell_id)
            for key in [made.key for made in self._zygotes.values() if made.is_silent(now)]:
                self._end_zygote(key)
        self._end_all()

    def _next_events(self) -> list[tuple[int, int]]:
        happened = self._epoll.poll(0)
        if happened:
            return happened
        # There is nothing else to do.
        self._removals = [group for group in self._removals if not group.remove()]
        self._spares.prepare()
        return self._epoll.poll(self._wait())

    def _wait(self) -> float:
        longest = _REMOVE_AGAIN if self._removals else _ASK_AGAIN if self._unborn else _MAX_WAIT
        return min(max(0.0, min(self._due.next(), self._spares.next_time()) - time.monotonic()), longest)

    def _note_time(self, cell_id: str) -> None:
        known = self._cells.get(cell_id)
        if known:
            self._due.put(cell_id, known.next_time())

    def _watch(self, fd: int, happened: Callable[[], None]) -> None:
        self._happened[fd] = happened
        self._epoll.register(fd, select.EPOLLIN)

    def _unwatch(self, fd: int) -> None:
        del self._happened[fd]
        self._epoll.unregister(fd)

    # -- what the host says

    def _receive(self) -> None:
        received = self._host.receive()
        if received is None:
            self._serving = False
            return
        message, fds, is_whole = received
        if is_whole:
            self._obey(message, fds)
        else:
            cells.close_all(fds.values())
            self._host.refuse(message["id"], "descriptors", _EMFILE, "the supervisor may open no more files")

    def _obey(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        """Do what the host says; ``fds`` are ours, and closed by whoever is done with them."""
        match message["op"]:
            case "root":
                self._build_root(message)
            case "launch":
                self._make(message, fds)
            case "begin":
                self._when_born(message["id"], lambda: self._begin(message, fds), lambda: cells.close_all(fds.values()))
            case "kill":
                self._when_born(message["id"], lambda: self._cells[message["id"]].kill(message["reason"]))
            case "pipes" | "step" | "step over" | "interrupt" | "freeze" | "thaw" | "show":
                self._when_born(message["id"], lambda: self._sessions.attend(self._cells[message["id"]], message))
            case "pause" | "go on":
                self._when_born(message["id"], lambda: self._cells[message["id"]].stand(message["op"] == "pause"))
            case "signal":
                self._when_born(message["id"], lambda: self._cells[message["id"]].pass_on(message["number"]))
            case "listen":
                self._when_born(message["id"], lambda: self._doors.more(self._cells[message["id"]], message))
            case "forget":
                self._sessions.forget(message["id"])
            case "zygote":
                self._start_zygote(message)
            case "end zygote":
                self._end_zygote(message["key"])

    def _when_born(self, cell_id: str, do: Callable[[], None], else_do: Callable[[], None] | None = None) -> None:
        """Do it to a cell: now, when its zygote has made it, or never when it has ended."""
        if cell_id in self._cells:
            do()
            self._note_time(cell_id)
        elif cell_id in self._unborn:
            self._unborn[cell_id].append(lambda: self._when_born(cell_id, do, else_do))
        elif else_do:
            else_do()

    def _build_root(self, message: dict[str, Any]) -> None:
        key = message["key"]
        try:
            self._roots[key] = roots.build(key, message["entries"])
        except (roots.RootError, OSError) as error:
            self._broken_roots[key] = str(error)

    # -- making cells

    def _make(self, request: dict[str, Any], fds: dict[str, int]) -> None:
        """A cell, from the zygote that the request names or from a spare of our own."""
        if request["root"] not in self._roots:
            cells.close_all(fds.values())
            self._host.refuse(request["id"], "root", 0, self._broken_roots.get(request["root"], "unknown root"))
            return
        request["cpu_set"] = self._spares.choose_cpus(request["limits"]["cpus"])
        if not request["forked"]:
            self._give(request, fds, None, 0)
            return
        zygote = self._zygotes.get(request["zygote"])
        if zygote is None or zygote.data is None:
            cells.close_all(fds.values())
            self._host.refuse(request["id"], "zygote", 0, "it has ended")
            return
        self._unborn[request["id"]] = []
        try:
            unborn = self._spares.unborn()
        except OSError as error:
            self._born(request, fds, None, 0, error.errno or 0)
            return
        shared = zygote.data
        zygote.ask(unborn, lambda made: self._born(request, fds, made, shared))

    def _born(self, request: dict[str, Any], fds: dict[str, int], made: spare.Spare | None, shared: int,
              number: int = 0) -> None:  # fmt: skip
        waiting = self._unborn.pop(request["id"])
        if made is None:
            cells.close_all(fds.values())
            self._host.refuse(request["id"], "zygote", number, "it could not make a cell")
        else:
            self._give(request, fds, made, shared)
        for do in waiting:
            do()

    def _give(self, request: dict[str, Any], fds: dict[str, int], made: spare.Spare | None, shared: int) -> None:
        """Give the first process of a cell all that it needs; ``made`` by a zygote, else a spare of ours."""
        try:
            self._start(request, fds, made, shared)
        except broker.BrokerError as error:
            self._host.refuse(request["id"], error.part, error.errno, str(error))
        except roots.RootError as error:
            self._host.refuse(request["id"], "environment", 0, str(error))
        except (OSError, enter.Refused) as error:
            self._host.refuse(request["id"], "launch", getattr(error, "errno", 0) or 0, str(error))
        finally:
            cells.close_all(fds.values())

    def _start(self, request: dict[str, Any], fds: dict[str, int], made: spare.Spare | None, shared: int) -> None:
        scratch = None
        try:
            for name in ("stdin", "stdout", "stderr", "control"):
                self._identity.give_fd(fds[name])
            scratch = self._sessions.scratch(request, fds)
            scratch.mounts.insert(0, (kernel.open_tree(self._roots[request["root"]]), ""))
            made = made or self._spares.take()
            known = self._hand_over(request, fds, made, scratch, shared)
        except BaseException:
            if made:
                made.discard()
            if scratch:
                scratch.close()
            raise
        scratch.close_mounts()
        self._cells[known.id] = known
        self._note_time(known.id)
        if known.session and not known.waits:
            self._sessions.opened(known)
        self._pids.add(known.pid)
        self._watch(known.pidfd, lambda: self._ended(known))
        self._watch(known.status_fd, lambda: self._reported(known))
        if known.group and known.group.oom_fd is not None:
            self._watch(known.group.oom_fd, lambda: known.kill("memory"))

    def _hand_over(
        self, request: dict[str, Any], fds: dict[str, int], made: spare.Spare, scratch: broker.Scratch, shared: int
    ) -> cells.Cell:
        if request["rlimits"]["DATA"] is not None:
            request["rlimits"]["DATA"] += shared
        told = {name: request[name] for name in _FOR_THE_CELL}
        known = cells.Cell(request, made, scratch, shared)
        try:
            known.limit(request["limits"])
            if request["listeners"]:
                self._doors.open(known, request)
            made.hand_over(told, scratch.mounts, {name: fds[name] for name in _GIVEN if name in fds})
        except BaseException:
            known.let_go()
            raise
        return known

    def _begin(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        """Tell a cell that waits what its program is.

        Its limits are lowered when its own set-up, which needs more than some of them, is over.
        """
        known = self._cells[message["id"]]
        if known.reason is not None:
            cells.close_all(fds.values())  # it is being ended, and still waits: that is told
            return
        if message["narrow"] and not known.in_place:
            known.to_begin = (message, fds)
            return
        try:
            if message["narrow"]:
                cpus = self._spares.choose_cpus(message["limits"]["cpus"])
                known.narrow(message["limits"], message["rlimits"], cpus, self._identity)
            known.scratch.begin(message, fds, self._identity)
            if message["listeners"]:
                self._doors.open(known, message)
            known.begin(message["deadline"])
            cells.pass_on(fds["unread"], message["order"], fds["order"])
            if known.session:
                self._sessions.opened(known)  # not before: requests come through the same pipe, after the order
        except broker.BrokerError as error:
            known.kill("unbegun")
            self._host.refuse(known.id, error.part, error.errno, str(error))
        except OSError as error:
            known.problem = str(error)
            known.kill("unbegun")  # its end is told, and that it never began
        finally:
            cells.close_all(fds.values())

    # -- zygotes

    def _start_zygote(self, asked: dict[str, Any]) -> None:
        key = asked["key"]
        root = self._roots.get(asked["root"])
        if root is None:
            self._host.say(
                {"op": "zygote", "key": key, "problem": self._broken_roots.get(asked["root"], "unknown root")}
            )
            return
        try:
            made = zygotes.Zygote(asked, root, self._identity, self._spares.program(), self._is_known)
        except OSError as error:
            self._host.say({"op": "zygote", "key": key, "problem": str(error)})
            return
        self._zygotes[key] = made
        self._watch(made.pidfd, lambda: self._end_zygote(key))
        self._watch(made.socket.fileno(), lambda: self._hear_zygote(made))

    def _hear_zygote(self, made: zygotes.Zygote) -> None:
        try:
            message = made.answered()
        except (OSError, ValueError):
            self._end_zygote(made.key)
            return
        if message is not None:
            self._host.say({**message, "op": "zygote", "key": made.key, "pid": made.pid})

    def _is_known(self, pid: int) -> bool:
        """Whether ``pid`` is a process of somebody's already."""
        zygotes_too = (made.pid for made in self._zygotes.values())
        return pid in self._pids or pid in zygotes_too or self._spares.is_ready(pid)

    def _end_zygote(self, key: str) -> None:
        """End a zygote, or take note of its end. Its cells live on."""
        made = self._zygotes.pop(key, None)
        if made is None:
            return
        self._unwatch(made.pidfd)
        self._unwatch(made.socket.fileno())
        self._host.say({"op": "zygote ended", "key": key, "detail": made.end()})

    # -- the end of a cell

    def _reported(self, known: cells.Cell) -> None:
        """A cell's init has written something. When the program has ended and nothing else is left in the cell, its end
        is told at once; init's own takes the kernel as long again."""
        if not known.hear():
            if known.in_place and known.to_begin:
                message, fds = known.to_begin
                known.to_begin = None
                self._begin(message, fds)
                self._note_time(known.id)
            if not known.in_place:
                self._unwatch(known.status_fd)  # nobody is left to write
            return
        self._unwatch(known.status_fd)
        report = known.reported or {}
        if "main" in report and known.reason is None and known.is_empty():
            self._tell_end(known, known.outcome(report))

    def _ended(self, known: cells.Cell) -> None:
        """A cell's first process has ended, and so has everything in it."""
        self._unwatch(known.pidfd)
        used = known.reap()
        self._pids.discard(known.pid)
        if known.reported is None:
            if known.status_fd in self._happened:
                self._unwatch(known.status_fd)
            known.hear()
        if known.id in self._cells:
            self._tell_end(known, known.outcome({**used, **(known.reported or {})}))
        if known.to_begin:
            cells.close_all(known.to_begin[1].values())
        if known.group:
            self._removals.append(known.group)  # after the result is on its way: it may wait in the kernel
        known.close()

    def _tell_end(self, known: cells.Cell, outcome: dict[str, Any]) -> None:
        del self._cells[known.id]
        self._due.drop(known.id)
        if known.group and known.group.oom_fd is not None:
            self._unwatch(known.group.oom_fd)
        report = known.reported or {}
        if "failed" in report:
            self._host.refuse(known.id, report["failed"], report["errno"], report["detail"])
        elif known.waits or outcome["reason"] == "unbegun":
            self._host.refuse(known.id, "waiting", 0, known.problem or "it ended before its program began")
        else:
            if known.session and known.reason != "closed":
                self._sessions.keep(known)
            self._host.say({"op": "ended", "id": known.id, **outcome}, [known.scratch.tree_fd])

    def _end_all(self) -> None:
        self._sessions.forget_all()
        for key in list(self._zygotes):
            self._end_zygote(key)
        self._spares.discard()
        for known in self._cells.values():
            known.kill("closed")
        for known in self._cells.values():
            os.waitpid(known.pid, 0)
            if known.group:
                known.group.remove()
