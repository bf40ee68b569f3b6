"""The first process of a cell without namespaces: it forks the program behind its walls, reaps, and ends all of it.

It is trusted, and out of the program's reach: in a Landlock domain around the program's, so that no signal and no
ptrace comes from there. All orphans become its children (PR_SET_CHILD_SUBREAPER). It ends everything when the program
ends, or the supervisor, or when that lets go of its channel: kill(-1) reaches the domain and nothing outside. What
forks while that happens does not escape, for the kernel goes over all processes at once (kill(2), fork(2)).

    cgroup · id · signals scoped · request · fork · capabilities · Landlock · seccomp · resource limits · program
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import contextlib
import os
import resource
import select

from casemate.supervisor import init, kernel, landlock, wire
from casemate.supervisor.calls import SetupPhase
from casemate.supervisor.plain import places

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from typing import Any, NoReturn

LISTENER = b"n"  # the message that brings the descriptor on which the supervisor answers calls of the program's
_CHANNEL = init.FIRST_FREE
_SIGKILL, _SIGTERM, _SIGCHLD = 9, 15, 17
_MAX_PAYLOAD = 64 << 20
_NAME = b"casemate-init"


def run(channel: int, status: int, cgroup_fds: list[int], settings: dict[str, Any]) -> places.Table:
    """The life of a cell's first process: prepare, wait for the request on ``channel``, fork the program, wait for it.

    ``settings``: the seccomp ``program``. Returns only where the program is forked and not executed, in its process and
    behind every wall, the table of its places.
    """
    phase = SetupPhase()
    kernel.set_name(_NAME)
    try:
        phase.name = "cgroup"
        for fd in cgroup_fds:
            os.write(fd, b"0")
        link, status = init.keep_own_descriptors(channel, status)
        phase.name = "request"
        os.setsid()
        os.umask(0o022)
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        link.send(init.PREPARED)
        request, fds = init.receive_request(link)
        phase.name = "capabilities"
        kernel.give_up_rights(request["ids"])  # the cell's own user, where it has one
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, _SIGTERM)  # from the supervisor's end; cleared with the user before
        phase.name = "landlock"
        if not landlock.restrict_signals():
            raise OSError(95, "Landlock cannot keep signals inside a cell")  # EOPNOTSUPP; kill(-1) would reach anybody
        init.do(init.add_descriptors, {**fds, "status": status, "channel": link.detach()}, "channel")
        status = init.STATUS
        phase.name = "fork"
        pid = os.fork()
        if pid == 0:
            _become_program(request, settings, phase)
            table: places.Table = request["places"]
            return table
        _wait_for_program(pid)
    except BaseException as error:  # noqa: BLE001 - the end of this process, whatever happened
        init.report_failure(status, phase, error)
    os._exit(125)


def _become_program(request: dict[str, Any], settings: dict[str, Any], phase: SetupPhase) -> None:
    """In the program's process: restrict it, and execute its command where there is one."""
    link = _socket.socket(fileno=_CHANNEL)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, _SIGKILL)
    os.setsid()
    if request["cpu_set"]:
        os.sched_setaffinity(0, request["cpu_set"])
    os.chdir(places.real(request["cwd"], request["places"]))
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # what it uses is read from outside
    phase.name = "landlock"
    if "landlock" in request["layers"]:
        names = ("/proc/self/fd", "/proc/self/task")
        landlock.restrict(request["readable"], request["writable"], request["devices"], names, network=True)
    phase.name = "exec"
    command = None if request["interpreter"] else _command(request)
    phase.name = "seccomp"
    if "seccomp" in request["layers"]:
        _install_filter(settings, link)
    link.close()
    phase.name = "limits"  # after the listener is sent, which a low one of open files may refuse (ETOOMANYREFS)
    if "rlimits" in request["layers"]:
        init.do(init.add_rlimits, request["rlimits"])
    if request["awaits_order"]:
        os.write(init.STATUS, init.SET_UP)  # from here on its limits can be narrowed
    if command is not None:
        phase.name = "exec"
        _execute(*command, control=request["control"])
    kernel.set_name(os.path.basename(request["interpreter"]).encode())
    os.close(init.STATUS)
    os.close(init.PAYLOAD)


def _install_filter(settings: dict[str, Any], link: _socket.socket) -> None:
    listener = kernel.install_notifying_filter(settings["program"])
    kernel.send_fds(link, LISTENER, [listener])
    os.close(listener)


def _command(request: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """The command in the descriptor that only this cell holds."""
    given = wire.decode_command(os.pread(init.PAYLOAD, _MAX_PAYLOAD, 0))
    argv, env = places.command(*given[:2], request["places"])
    if request["awaits_order"]:
        env["CASEMATE_PLACES"] = "\n".join("\t".join(row) for row in request["places"])  # for its order
    return argv, env


def _execute(argv: list[str], env: dict[str, str], *, control: bool) -> NoReturn:
    for number in init.IGNORED_BY_PYTHON:
        kernel.default_signal(number)
    if not control:
        os.set_inheritable(init.CONTROL, False)
    os.execve(argv[0], argv, env)


def _wait_for_program(pid: int) -> NoReturn:
    """Wait for the end of the program ``pid``, end what is left in the cell, report, and exit."""
    for fd in (0, 1, 2, init.CONTROL, init.PAYLOAD, init.ORDER):
        init.close(fd)
    kernel.default_signals()  # what a preloaded module handles must not run in here
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    _signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (_SIGCHLD, _SIGTERM):
        _signal.signal(number, _wake)
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(_CHANNEL, select.POLLIN)
    end: list[int] = []
    while not end:
        _reap(pid, end, os.WNOHANG)
        for fd, _ in poll.poll(0 if end else None):
            if fd == _CHANNEL or _SIGTERM in os.read(woken, 4096):
                _end_all(pid, end)
                os._exit(125)  # nobody wants to know
    _end_all(pid, end)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = int((used.ru_utime + used.ru_stime) * 1e6)
    os.write(init.STATUS, init.REPORT.pack(b"x", end[0], used.ru_maxrss * 1024, cpu, 0))
    os._exit(0)


def _wake(_number: int, _frame: object) -> None:
    """Of the signal, the descriptor tells."""


def _reap(program: int, end: list[int], flags: int) -> bool:
    """Reap what has ended, without ``flags`` one after waiting for it; whether there is anything that has not.

    ``end`` gets the status of ``program``.
    """
    try:
        while True:
            pid, code = os.waitpid(-1, flags)
            if pid == program:
                end.append(code)
            if not pid or not flags:
                return True
    except ChildProcessError:
        return False


def _end_all(program: int, end: list[int]) -> None:
    """End and reap everything in the cell but this process."""
    while _reap(program, end, os.WNOHANG):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, _SIGKILL)
        _reap(program, end, 0)
