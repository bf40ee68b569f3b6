"""The first process of a cell without namespaces: it forks the program behind its walls, reaps, and ends the cell.

It is trusted and out of the program's reach: its Landlock domain contains that of the program, so no signal and no
ptrace gets to it. All orphans become its children (PR_SET_CHILD_SUBREAPER). It ends everything when the program or the
supervisor ends or the supervisor shuts the channel. kill(-1) reaches only its domain, and processes that fork at that
moment do not escape, because the kernel visits all processes at once (kill(2), fork(2)).

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

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from typing import Any, NoReturn

LISTENER = b"n"  # the message with the listener on which the supervisor answers the program's calls
_CHANNEL = init.FIRST_FREE
_SIGKILL, _SIGTERM, _SIGCHLD = 9, 15, 17
_MAX_PAYLOAD = 64 << 20
_NAME = b"casemate-init"


def run(channel: int, status: int, cgroup_fds: list[int], settings: dict[str, Any]) -> places.Table:
    """Run a cell's first process: prepare, wait for the request on ``channel``, fork the program, wait for it.

    Returns only if the program is forked and not executed, and then in its process, behind every wall, with the table
    of its places. ``settings`` has the seccomp ``program``."""
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
        kernel.give_up_rights(request["ids"])  # the cell's own user, if it has one
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, _SIGTERM)  # sent at the supervisor's end; changing the user clears it
        phase.name = "landlock"
        if not landlock.restrict_signals():
            raise OSError(95, "Landlock cannot keep signals inside a cell")  # EOPNOTSUPP; kill(-1) would reach all
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
    link = _socket.socket(fileno=_CHANNEL)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, _SIGKILL)
    os.setsid()
    if request["cpu_set"]:
        os.sched_setaffinity(0, request["cpu_set"])
    os.chdir(places.real(request["cwd"], request["places"]))
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # lets the supervisor measure it
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
    phase.name = "limits"  # sending the listener may fail with a low NOFILE (ETOOMANYREFS)
    if "rlimits" in request["layers"]:
        init.do(init.add_rlimits, request["rlimits"])
    if request["awaits_order"]:
        os.write(init.STATUS, init.SET_UP)  # its limits can be narrowed from now on
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
    given = wire.decode_command(os.pread(init.PAYLOAD, _MAX_PAYLOAD, 0))
    argv, env = places.command(*given[:2], request["places"])
    if request["awaits_order"]:
        env["CASEMATE_PLACES"] = "\n".join("\t".join(row) for row in request["places"])  # to translate its order
    return argv, env


def _execute(argv: list[str], env: dict[str, str], *, control: bool) -> NoReturn:
    for number in init.IGNORED_BY_PYTHON:
        kernel.default_signal(number)
    if not control:
        os.set_inheritable(init.CONTROL, False)
    os.execve(argv[0], argv, env)


def _wait_for_program(pid: int) -> NoReturn:
    for fd in (0, 1, 2, init.CONTROL, init.PAYLOAD, init.ORDER):
        init.close(fd)
    kernel.default_signals()  # handlers of preloaded modules must not run here
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
                os._exit(125)  # no report is wanted
    _end_all(pid, end)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = int((used.ru_utime + used.ru_stime) * 1e6)
    os.write(init.STATUS, init.REPORT.pack(b"x", end[0], used.ru_maxrss * 1024, cpu, 0))
    os._exit(0)


def _wake(_number: int, _frame: object) -> None:
    """The wakeup descriptor reports the signal."""


def _reap(program: int, end: list[int], flags: int) -> bool:
    """Reap what has ended; without ``flags``, wait for one process. ``end`` gets the status of ``program``. Returns
    whether any process is left."""
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
    while _reap(program, end, os.WNOHANG):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, _SIGKILL)
        _reap(program, end, 0)
