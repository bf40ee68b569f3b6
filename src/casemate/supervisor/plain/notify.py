"""Answers the notified calls of a cell's programs: on sockets, and changes of files by name.

Nothing that the cell can still change decides what happens. A socket is made here and a copy kept; the copy is what is
connected or bound. A path is pinned by a descriptor and must be where the cell can write; then the pinned file is
changed. The kernel never continues a call that points to memory which decides anything (seccomp_unotify(2)). A helper
binds a Unix socket to the path that the program gives, so that its name is that path. Landlock confines the helper to
folders where the cell can write.

A UDP socket is one end of a pair. The other end only answers name queries: for the cell's own names here, for other
names at the host. Nothing here waits for a cell: slow connections are made in helper processes.

Sources: seccomp_unotify(2), and the kernel's ``linux/un.h`` and ``linux/in6.h``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import contextlib
import errno
import os
import re
import stat

from casemate.supervisor import kernel, landlock, notifications
from casemate.supervisor.plain import names, notified
from casemate.supervisor.plain.connections import BACKLOG, BEGUN, HostConnections, give_up
from casemate.supervisor.syscall_numbers import numbers

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from casemate.supervisor.plain.connections import Way

    Loop = tuple[Callable[[int, Callable[[], None]], None], Callable[[int], None], set[int]]


_UNIX, _INET, _INET6 = _socket.AF_UNIX, _socket.AF_INET, _socket.AF_INET6
_STREAM, _DGRAM, _SEQPACKET = _socket.SOCK_STREAM, _socket.SOCK_DGRAM, _socket.SOCK_SEQPACKET
_NONBLOCK, _CLOEXEC = _socket.SOCK_NONBLOCK, _socket.SOCK_CLOEXEC
_DNS = 53
_WITHIN = 10  # seconds that a helper may take: a cell can delay its connection
_MOST_HELPERS, _MOST_WAITING = 8, 256  # helpers of a cell, and calls that wait for a helper
_SIGALRM, _MOST_LINGER = 14, 0.005
_MOST_COPIES = 256  # sockets of a cell that were never connected
_MOST_PAIRS = 4096
_MOST_ASKING = 256  # sockets of a cell that queried only its own names: threads query many at once
# IP_RECVERR and IPV6_RECVERR, which glibc's resolver needs; IP_OPTIONS, which can set another destination.
_OPTIONS = {(0, 11): 0, (41, 25): 0, (0, 4): errno.EPERM}
_AT_FDCWD, _AT_NOFOLLOW, _AT_EMPTY_PATH = -100, 0x100, 0x1000
_SET_UID, _SET_GID = 0o4000, 0o2000
_UNCHANGED = 0xFFFFFFFF  # leaves an owner unchanged
_DESCRIPTORS = re.compile(rb"^/(?:proc/(?:thread-)?self|dev)/fd/")  # the caller's, not ours


class NotifiedCalls:
    """The notified calls of one cell. ``folders``: those that it can write to; ``ids``: its user and group, unless
    ours; ``loop``: functions to watch and unwatch descriptors, and our set of known children."""

    def __init__(
        self, listener: int, network: HostConnections, folders: Sequence[str], ids: list[int] | None, loop: Loop
    ) -> None:
        self.listener = listener
        self._network, self._ids = network, ids
        self._watch, self._unwatch, self._children = loop
        self._helpers: dict[int, tuple[int, _socket.socket]] = {}  # by pidfd: its pid and its copy of the socket
        self._waiting: list[notified.NotifiedCall] = []  # calls that wait for a helper
        self._folders = tuple(f"{folder}/" for folder in folders)
        self._copies: dict[int, _socket.socket] = {}  # sockets by inode number, oldest first
        self._bound: dict[int, int] = {}  # bound TCP sockets: the caller's descriptor of each
        self._pairs: dict[int, None] = {}  # inode numbers of UDP sockets
        self._asking: dict[int, _socket.socket] = {}  # our ends of them, by descriptor, oldest first

    def close(self) -> None:
        """Stop answering: every notified call fails from now on."""
        os.close(self.listener)
        for helper in list(self._helpers):
            with contextlib.suppress(ProcessLookupError):
                _signal.pidfd_send_signal(helper, 9)
            self._reap(helper)
        for inode in list(self._copies):
            self._forget(inode)
        for fd in list(self._asking):
            self._stop_asking(fd)

    def answer(self) -> None:
        """Answer the next call. Raises ``OSError`` if no more can come."""
        if notification := notifications.receive(self.listener):
            self._handle(notified.NotifiedCall(self.listener, notification))

    def _handle(self, call: notified.NotifiedCall) -> None:
        try:
            if self._ids is not None:
                kernel.set_file_ids(*self._ids)  # act with the cell's own rights
            self._answer(call)
        except Exception as error:  # noqa: BLE001 - a cell's call must not stop the supervisor
            call.send(getattr(error, "errno", None) or errno.EACCES)
        finally:
            if self._ids is not None:
                kernel.set_file_ids(0, 0)

    def _answer(self, call: notified.NotifiedCall) -> None:
        match _NAMES.get(call.number):
            case "socket":
                self._make_socket(call)
            case "connect":
                self._connect(call)
            case "bind":
                self._bind(call)
            case "listen":
                self._listen(call)
            case "setsockopt":
                level, name, *_ = (one & 0xFFFFFFFF for one in call.arguments[1:])
                call.send(_OPTIONS.get((level, name), 0), go_on=(level, name) not in _OPTIONS)
            case "chmod" | "fchmod" | "fchmodat" | "fchmodat2" | "utimensat" as name:
                self._change_file(call, name)
            case "chown" | "fchown" | "lchown" | "fchownat" as name:
                self._keep_owner(call, name)
            case "setpriority" | "ioprio_set":
                call.send(errno.EPERM, go_on=call.is_own(call.arguments[1]))
            case "prlimit64" | "sched_setparam" | "sched_setscheduler" | "sched_setattr" | "sched_setaffinity":
                call.send(errno.EPERM, go_on=call.is_own(call.arguments[0]))
            case _:
                call.send(errno.ENOSYS)

    # -- sockets

    def _make_socket(self, call: notified.NotifiedCall) -> None:
        family, kind, protocol = call.arguments[:3]
        flags, kind = kind & (_NONBLOCK | _CLOEXEC), kind & ~(_NONBLOCK | _CLOEXEC)
        if kind not in (_STREAM, _SEQPACKET if family == _UNIX else _DGRAM):
            call.send(errno.EPERM)
        elif family != _UNIX and protocol not in (0, 6 if kind == _STREAM else 17):
            call.send(errno.EPROTONOSUPPORT)
        elif kind == _DGRAM:
            self._make_pair(call, flags)
        else:
            made = _socket.socket(family, kind | flags, 0)
            call.add(made.fileno(), flags & _CLOEXEC)
            self._copies[os.fstat(made.fileno()).st_ino] = made
            if len(self._copies) > _MOST_COPIES:
                self._forget(next(iter(self._copies)))

    def _make_pair(self, call: notified.NotifiedCall, flags: int) -> None:
        theirs, ours = _socket.socketpair(_UNIX, _SEQPACKET | flags)
        try:
            self._pairs[os.fstat(theirs.fileno()).st_ino] = None
            if len(self._pairs) > _MOST_PAIRS:
                del self._pairs[next(iter(self._pairs))]
            self._asking[ours.fileno()] = ours
            self._watch(ours.fileno(), lambda: self._answer_question(ours))
            if len(self._asking) > _MOST_ASKING:
                self._stop_asking(next(iter(self._asking)))
            call.add(theirs.fileno(), flags & _CLOEXEC)
        finally:
            theirs.close()

    def _answer_question(self, ours: _socket.socket) -> None:
        with contextlib.suppress(OSError):  # the cell reads no answers, or is gone
            message = ours.recv(names.MOST_QUESTION, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
            answer, end = names.answer(message, os.uname().nodename), self._network.names_end()
            if message and (answer is not None or end is None):
                ours.recv(1, _socket.MSG_DONTWAIT)
                if reply := answer or names.refuse(message):
                    ours.send(reply, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
                return
            if message and end is not None:
                self._network.hand_over(end, ours.fileno())
        self._stop_asking(ours.fileno())

    def _stop_asking(self, fd: int) -> None:
        self._unwatch(fd)
        self._asking.pop(fd).close()

    def _connect(self, call: notified.NotifiedCall) -> None:
        address = call.address()
        inode = call.socket_inode(call.arguments[0])
        if inode in self._pairs:
            there = notified.inet(address)
            call.send(0 if there is not None and there[1] == _DNS else errno.ENETUNREACH)
            return
        if self._has_to_wait(call):
            return
        copy = self._copies.get(inode)
        if copy is None:
            raise OSError(errno.EISCONN, "it is connected, or listens")
        if copy.family == _UNIX:
            place = self._pin(call, _AT_FDCWD, notified.unix_path(address), os.O_NOFOLLOW)
            try:
                self._connect_apart(call, inode, lambda: copy.connect_ex(f"/proc/self/fd/{place}"), place)
            finally:
                os.close(place)
        else:
            connect, fds = self._way(copy, address)
            number = connect(wait=False)
            if number == errno.EAGAIN:
                self._connect_apart(call, inode, lambda: connect(wait=True), *fds)
            else:
                self._finish(call, inode, number)

    def _way(self, copy: _socket.socket, address: bytes) -> Way:
        there = notified.inet(address)
        if there is None:
            raise OSError(errno.EAFNOSUPPORT, "no address")
        if _is_loopback(there[0]):
            return self._network.own_way(copy, there[1])
        end = self._network.ends.get(("tcp", *there))
        if end is None:
            is_ours = there[0].startswith(("198.18.", "198.19."))
            raise OSError(errno.ECONNREFUSED if is_ours else errno.ENETUNREACH, "no host")
        return self._network.way(copy, end)

    def _has_to_wait(self, call: notified.NotifiedCall) -> bool:
        """Whether all helpers are busy. ``call`` then waits for one, or fails if too many wait. Ended callers are
        dropped, because a cell could make any number of them."""
        if len(self._helpers) < _MOST_HELPERS:
            return False
        if len(self._waiting) >= _MOST_WAITING:
            self._waiting = [one for one in self._waiting if one.is_waiting()]
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(call)
        else:
            call.send(errno.EAGAIN)
        return True

    def _connect_apart(
        self, call: notified.NotifiedCall, inode: int, connect: Callable[[], int], *fds: int, is_kept: bool = False
    ) -> None:
        """Connect, bind or listen in a helper process with a time limit, then answer. ``is_kept`` keeps the copy."""
        copy = _socket.socket(fileno=os.dup(self._copies[inode].fileno()))  # stays open even if the other is forgotten
        try:
            pid = os.fork()
        except OSError:
            give_up(copy)
            raise
        if pid == 0:
            _connect_and_exit(connect, (self._copies[inode].fileno(), *fds), self._ids)
        self._children.add(pid)
        helper = os.pidfd_open(pid)
        self._helpers[helper] = pid, copy

        def hear(_keeps_its_listener: object = connect) -> None:
            number = self._reap(helper)
            if is_kept:
                call.send(number)
            else:
                self._finish(call, inode, number)
            while self._waiting and len(self._helpers) < _MOST_HELPERS:
                self._handle(self._waiting.pop(0))

        self._watch(helper, hear)

    def _reap(self, helper: int) -> int:
        """Reap a helper and return its errno. Abort an unfinished connect: later it could reach another server."""
        self._unwatch(helper)
        os.close(helper)
        pid, copy = self._helpers.pop(helper)
        self._children.discard(pid)
        code = -1
        with contextlib.suppress(ChildProcessError):  # the search for orphans reaped it
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code not in BEGUN:
            give_up(copy)
        _close(copy)
        return code if code >= 0 else errno.ETIMEDOUT

    def _finish(self, call: notified.NotifiedCall, inode: int, number: int) -> None:
        if number in BEGUN and inode in self._copies:
            self._forget(inode)
        call.send(number)

    def _bind(self, call: notified.NotifiedCall) -> None:
        address = call.address()
        inode = call.socket_inode(call.arguments[0])
        if inode in self._pairs:
            call.send(0)
            return
        copy = self._copies.get(inode)
        if copy is None:
            raise OSError(errno.EINVAL, "it is connected, or listens")
        if copy.family == _UNIX:
            self._bind_unix(call, inode, copy, notified.unix_path(address))
            return
        there = notified.inet(address)
        if there is None or not _is_loopback(there[0]):
            raise OSError(errno.EADDRNOTAVAIL, "no loopback")
        loopback = self._network.loopback
        try:
            loopback.bind(copy, there[1])
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.ENOBUFS):
                raise
            self._forget_closed(call)
            loopback.bind(copy, there[1])
        self._bound[inode] = call.arguments[0]
        call.send(0)

    def _forget_closed(self, call: notified.NotifiedCall) -> None:
        """Drop bound sockets that the caller has closed: our copies would hold their ports."""
        for inode, fd in list(self._bound.items()):
            is_open = False
            with contextlib.suppress(OSError):
                is_open = call.socket_inode(fd) == inode
            if not is_open:
                self._forget(inode)

    def _forget(self, inode: int) -> None:
        _close(self._copies.pop(inode))
        self._bound.pop(inode, None)

    def _listen(self, call: notified.NotifiedCall) -> None:
        inode = call.socket_inode(call.arguments[0])
        copy, loopback = self._copies.get(inode), self._network.loopback
        if inode in self._pairs:
            raise OSError(errno.EOPNOTSUPP, "datagrams")
        if copy is None:
            call.send(0 if loopback.listens(inode) else errno.EINVAL)
            return
        backlog = min(call.arguments[1] & 0xFFFFFFFF, BACKLOG)
        if copy.family != _UNIX:
            loopback.listen(copy, backlog)
            loopback.note_listening(inode)
            self._finish(call, inode, 0)
        elif not self._has_to_wait(call):
            loopback.note_listening(inode)
            self._connect_apart(call, inode, lambda: _errno_of(lambda: copy.listen(backlog)))

    def _bind_unix(self, call: notified.NotifiedCall, inode: int, copy: _socket.socket, path: bytes) -> None:
        if self._has_to_wait(call):
            return
        folder = os.open(f"/proc/{call.pid}/cwd", os.O_PATH | os.O_CLOEXEC)

        def bind() -> None:
            os.fchdir(folder)
            landlock.restrict((), self._folders, ())
            copy.bind(path)

        try:
            self._connect_apart(call, inode, lambda: _errno_of(bind), folder, is_kept=True)
        finally:
            os.close(folder)

    # -- files

    def _change_file(self, call: notified.NotifiedCall, name: str) -> None:
        folder, path, mode, flags = _file_arguments(name, call.arguments)
        times = None
        if name == "utimensat":
            times = call.read(mode, 32) if mode else None
            mode = 0
        elif mode & _SET_UID:
            raise PermissionError(errno.EPERM, "set-id")
        text = call.path(path) if path else b""
        call.check()
        nofollow = os.O_NOFOLLOW if flags & _AT_NOFOLLOW else 0
        place = self._pin(call, folder, text, nofollow)
        try:
            if name == "utimensat":
                kernel.set_times(place, times)
            elif stat.S_ISLNK(kind := os.fstat(place).st_mode):
                raise OSError(errno.EOPNOTSUPP, "a link has no mode")
            elif mode & _SET_GID and not stat.S_ISDIR(kind):
                raise PermissionError(errno.EPERM, "set-id")
            else:
                os.chmod(f"/proc/self/fd/{place}", mode & 0o3777)
        finally:
            os.close(place)
        call.send(0)

    def _keep_owner(self, call: notified.NotifiedCall, name: str) -> None:
        """Succeed without a change if the file already has the requested owner, else refuse."""
        first, second, third, fourth, fifth, *_ = call.arguments
        folder, path, ids, flags = _AT_FDCWD, first, (second, third), 0
        if name == "fchown":
            folder, path = notified.to_int(first), 0
        elif name == "fchownat":
            folder, path, ids, flags = notified.to_int(first), second, (third, fourth), fifth
        text = call.path(path) if path else b""
        call.check()
        nofollow = os.O_NOFOLLOW if name == "lchown" or flags & _AT_NOFOLLOW else 0
        place = self._pin(call, folder, text, nofollow)
        status = os.fstat(place)
        os.close(place)
        is_kept = all(one & _UNCHANGED in (own, _UNCHANGED) for one, own in zip(ids, status[4:6], strict=True))
        call.send(0 if is_kept else errno.EPERM)

    def _pin(self, call: notified.NotifiedCall, folder: int, path: bytes, flags: int) -> int:
        """A descriptor of ``path`` as the caller sees it from ``folder``, which an empty path means. Raises
        ``OSError``, including if the file is not in a folder where the cell can write."""
        flags |= os.O_PATH | os.O_CLOEXEC
        if path.startswith(b"/"):
            place = os.open(_DESCRIPTORS.sub(b"/proc/%d/fd/" % call.pid, path), flags)
        else:
            base = f"/proc/{call.pid}/{'cwd' if folder == _AT_FDCWD else f'fd/{folder}'}"
            try:
                place = os.open(base, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                raise OSError(errno.EBADF, "no such descriptor") from None
            if path:
                base_fd = place
                try:
                    place = os.open(path, flags, dir_fd=base_fd)
                finally:
                    os.close(base_fd)
        lies = os.readlink(f"/proc/self/fd/{place}")
        if not f"{lies}/".startswith(self._folders):
            os.close(place)
            raise PermissionError(errno.EACCES, "not in a folder that the cell can write")
        return place


_NAMES = {number: name for name, number in numbers(kernel.machine).items()}


def _file_arguments(name: str, arguments: Sequence[int]) -> tuple[int, int, int, int]:
    """The folder, the address of the path (0: the folder itself), the mode or the address of the times, the flags."""
    first, second, third, fourth, *_ = arguments
    folder = notified.to_int(first)
    if name == "chmod":
        return _AT_FDCWD, first, second, 0
    if name == "fchmod":
        return folder, 0, second, 0
    if name == "utimensat":
        return folder, second, third, fourth
    return folder, second, third, fourth if name == "fchmodat2" else 0


def _close(copy: _socket.socket) -> None:
    """close(2). If the cell has set SO_LINGER, it waits for unsent data, so a timer's signal interrupts it."""
    _signal.signal(_SIGALRM, lambda *_: None)
    _signal.setitimer(_signal.ITIMER_REAL, _MOST_LINGER, _MOST_LINGER)
    copy.close()
    _signal.setitimer(_signal.ITIMER_REAL, 0)


def _errno_of(act: Callable[[], object]) -> int:
    try:
        act()
    except OSError as error:
        return error.errno or errno.EACCES
    return 0


def _connect_and_exit(connect: Callable[[], int], fds: Sequence[int], ids: Sequence[int] | None) -> NoReturn:
    """Run ``connect`` in a helper with only the descriptors ``fds``, as the user ``ids`` if the cell has its own: the
    kernel reports the helper's user to the other end of a Unix socket (unix(7), SO_PEERCRED)."""
    number = errno.EACCES
    try:
        kernel.default_signals()
        if ids is not None:
            kernel.give_up_rights(ids)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)  # last, because changing the user clears it
        _signal.alarm(_WITHIN)
        first = 0
        for fd in sorted(fds):
            os.closerange(first, fd)
            first = fd + 1
        kernel.close_from(first)
        number = connect()
    finally:
        os._exit(number)


def _is_loopback(host: str) -> bool:
    return host == "0.0.0.0" or host.startswith("127.")  # noqa: S104 - connecting to it reaches the loopback
