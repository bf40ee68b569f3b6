"""No process of the host's is touched, none of the cell's outlives it, and none in it gets a privilege."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import secrets
from collections import Counter
from pathlib import Path

import pytest
from tests.contract import witness
from tests.escapes import host
from tests.escapes.cells import Attack, attack, bare, held, held_bare, told, without
from tests.support import containers
from tests.support.waiting import until
from tests.warmth import is_init

from casemate import Done, Limits, sync


def _env(victim: host.Victim) -> dict[str, str]:
    return {"VICTIM": str(victim.pid), "ADDRESS": str(victim.address), "FD": str(victim.descriptor)}


def _facts(pid: int) -> tuple[object, ...]:
    return os.getpriority(os.PRIO_PROCESS, pid), Path(f"/proc/{pid}/oom_score_adj").read_text()


@pytest.mark.parametrize(
    "missing",
    [(), ("seccomp",), ("landlock",), ("seccomp", "landlock", "capabilities", "mounts")],
    ids=["nothing", "seccomp", "landlock", "all but namespaces"],
)
def test_a_process_of_the_host_is_not_touched(
    victim: host.Victim, sandbox: sync.Sandbox, language: str, missing: tuple[str, ...]
) -> None:
    """Signals by every call, ptrace, its memory read and written, its descriptors taken."""
    before = _facts(victim.pid)
    with without(*missing):
        seen = told(attack(sandbox, Attack("process", language), {**_env(victim), "WRITE": "1", "KILL": "1"}))
    assert victim.is_well()
    assert [place for place, secret in victim.secrets.items() if secret in seen] == []
    assert _facts(victim.pid) == before


def test_control_bare_the_same_attack_reads_stops_and_kills_it(
    victim: host.Victim, tmp_path: Path, language: str
) -> None:
    stopped = bare(Attack("process", language), _env(victim), tmp_path / "bare").text
    assert victim.secrets["environ"] in stopped
    assert victim.secrets["argv"] in stopped
    assert language != "python" or stopped.count(victim.secrets["memory"]) >= 2
    assert _facts(victim.pid)[0] == 5
    until(lambda: witness.state(victim.pid) in ("T", "t"), "the victim stopped")
    bare(Attack("process", language), {**_env(victim), "KILL": "1"}, tmp_path / "bare")
    assert victim.process.wait(host.DEADLINE) < 0


def test_control_bare_the_same_attack_overwrites_its_memory(victim: host.Victim, tmp_path: Path) -> None:
    source = Attack("process").code.split('attempt("seize"')[0] + "finish()\n"
    bare(Attack("memory", source=source), {**_env(victim), "WRITE": "1"}, tmp_path / "bare")
    assert victim.memory().startswith("overwritten")
    assert not victim.is_well()


# --------------------------------------------------------------------------------------------------- outliving the run


def test_daemons_die_with_the_run_and_do_not_delay_it(sandbox: sync.Sandbox, language: str) -> None:
    mark = f"daemon-{secrets.token_hex(8)}"
    execution = attack(sandbox, Attack("daemon", language), {"MARK": mark}, timeout=30)
    assert execution.status == "ok"
    assert execution.duration < 25, "the run did not wait for who holds its pipes"
    assert host.with_marker(mark) == []
    assert host.cell_processes() == []


def test_control_bare_the_same_daemons_live_on(tmp_path: Path, language: str) -> None:
    mark = f"daemon-{secrets.token_hex(8)}"
    try:
        bare(Attack("daemon", language), {"MARK": mark}, tmp_path / "bare")
        until(lambda: len(host.with_marker(mark)) >= 2, "daemons")
    finally:
        for pid in host.with_marker(mark):
            host.end(pid)


STUBBORN = """
import os, signal, sys, threading
for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
for nth in range(8):
    if os.fork() == 0:
        os.setsid()
        if nth % 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            signal.pause()
print("end of attack", flush=True)
while True:
    try:
        while True:
            pass
    except BaseException:
        continue
"""


def test_a_program_that_ignores_every_signal_is_dead_after_its_time(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run(STUBBORN, timeout=3)
    assert "end of attack" in execution.stdout
    assert execution.status == "timeout"
    assert host.cell_processes() == []


def test_the_death_of_the_supervisor_is_the_death_of_its_cells(scratch: Path, wall: str) -> None:
    """The control is in the test: the processes are there before."""
    with sync.Sandbox(audit=scratch / "audit-supervisor.db") as sandbox:
        sandbox.run("pass")
        before = {*witness.children(os.getpid()), *containers.supervisors()}
        with sync.Sandbox(audit=scratch / "audit-supervisor.db") as other:
            events = other.stream("import os; os.fork(); print('here', flush=True); __import__('time').sleep(60)")
            next(iter(events))
            (supervisor,) = until(lambda: _with_cells(before), "the control: a process in the cell")
            mine = host.cell_processes(supervisor)
            host.end(supervisor)
            until(lambda: not any(witness.state(pid) for pid in mine), "the end of the cells")
            if wall == "docker":  # it is of this run alone
                assert [event.execution.status for event in events if isinstance(event, Done)] == ["killed"]
                return
            with pytest.raises(Exception, match=r"supervisor|closed"):
                list(events)


def _with_cells(before: set[int]) -> list[int]:
    """The supervisors that came since and have a program."""
    now = {*witness.children(os.getpid()), *containers.supervisors()} - before
    return [pid for pid in now if host.cell_processes(pid)]


CORE = """
import os, resource, signal
from tests.escapes.payloads.attempts import attempt, finish
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
attempt("allow", lambda: resource.setrlimit(resource.RLIMIT_CORE, (hard, hard)))
pid = os.fork()
if pid == 0:
    os.abort()
os.waitpid(pid, 0)
finish()
"""


def test_a_crash_leaves_no_core_file(sandbox: sync.Sandbox) -> None:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    if pattern.startswith(("|", "/")) or resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("core files do not go to the working directory here: core_pattern or RLIMIT_CORE")
    assert attack(sandbox, Attack("core", source=CORE)).artifacts == ()
    with without("rlimits"):
        names = [one.name for one in attack(sandbox, Attack("core", source=CORE)).artifacts]
    assert any(name.startswith("core") for name in names), "the control"


# ------------------------------------------------------------------------------------------------- privileges, and init

PRIVILEGES = """
import os
from tests.escapes.payloads.attempts import attempt, finish, syscall
attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -1))
attempt("oom", lambda: open("/proc/self/oom_score_adj", "w").write("-1"))
attempt("fifo", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt("uid", lambda: os.setresuid(0, 0, 0))
attempt("gid", lambda: os.setresgid(0, 0, 0))
attempt("groups", lambda: os.setgroups([0]))
attempt("init's environment", lambda: open("/proc/1/environ", "rb").read())
attempt("init's memory", lambda: os.open("/proc/1/mem", os.O_RDWR))
attempt("init's status", lambda: os.open("/proc/1/fd/4", os.O_WRONLY))
attempt("trace init", lambda: syscall(101 if os.uname().machine == "x86_64" else 117, 0x4206, 1, 0, 0))
finish()
"""


def test_no_privilege_is_gained(sandbox: sync.Sandbox, tmp_path: Path) -> None:
    """Judged from the host: nice value, score, scheduler, ids, capabilities of what the attack has become."""
    baseline = Path("/proc/self/oom_score_adj").read_text()
    may_empty_bounding_set = os.geteuid() == 0 or os.environ["CASEMATE_ISOLATION"] == "native"
    for layers in ((), ("seccomp",), ("capabilities",), ("capabilities", "seccomp", "rlimits")):
        with without(*layers), held(sandbox, Attack("privileges", source=PRIVILEGES)) as one:
            status = host.status_of(one.pid)
            assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
            assert status["NoNewPrivs"] == "1"
            assert "0" not in status["Uid"].split() + status["Gid"].split() + status["Groups"].split()
            assert os.getpriority(os.PRIO_PROCESS, one.pid) >= 0
            assert int(Path(f"/proc/{one.pid}/oom_score_adj").read_text()) >= int(baseline)
            assert os.sched_getscheduler(one.pid) == os.SCHED_OTHER
            if not layers:
                assert status["Seccomp"] == "2"
                assert status["CapBnd"] == "0" * 16 or not may_empty_bounding_set
    if os.geteuid() == 0:
        source = PRIVILEGES.split('attempt("init', maxsplit=1)[0] + "finish()"
        with held_bare(Attack("privileges", source=source), {}, tmp_path / "bare") as control:
            assert os.getpriority(os.PRIO_PROCESS, control.pid) == -1, "the control"
            assert os.sched_getscheduler(control.pid) == os.SCHED_FIFO, "the control"


@pytest.mark.parametrize(
    "missing", [(), ("seccomp",), ("landlock",), ("init",), ("seccomp", "landlock"), ("init", "seccomp")]
)
def test_the_cells_init_is_neither_traced_nor_written(sandbox: sync.Sandbox, missing: tuple[str, ...]) -> None:
    """Its memory: not dumpable, and Landlock on /proc. Tracing: seccomp, and not dumpable."""
    with without(*missing), held(sandbox, Attack("privileges", source=PRIVILEGES)) as one:
        links = host.open_files(one.pid)
        init = int(host.status_of(one.pid)["PPid"])
        assert not [link for link in links if link.endswith("/mem")]
        assert "init" in missing or host.status_of(init)["TracerPid"] == "0"


def test_control_without_its_layers_init_is_written_and_traced(sandbox: sync.Sandbox) -> None:
    with without("init", "seccomp", "landlock"), held(sandbox, Attack("privileges", source=PRIVILEGES)) as one:
        init = int(host.status_of(one.pid)["PPid"])
        assert [link for link in host.open_files(one.pid) if link.endswith("/mem")]
        assert host.status_of(init)["TracerPid"] == str(one.pid)
        environment = Path(f"/proc/{init}/environ").read_bytes()
        assert environment
        assert hashlib.sha256(environment).hexdigest() in one.text


def test_the_limits_that_a_program_has_cannot_be_raised(sandbox: sync.Sandbox) -> None:
    """Judged by proc(5) from the host."""
    code = "import resource\nfrom tests.escapes.payloads.attempts import attempt, finish\n"
    code += "for n in ('NPROC', 'NOFILE', 'DATA', 'CORE'):\n    k = getattr(resource, 'RLIMIT_' + n)\n"
    code += "    attempt(n, lambda: resource.setrlimit(k, (resource.RLIM_INFINITY,) * 2))\nfinish()\n"
    wanted = [("open files", 64), ("core file size", 0)]
    isolation = os.environ["CASEMATE_ISOLATION"]
    if isolation == "native" or (isolation == "landlock" and os.geteuid() == 0):
        wanted.append(("processes", 17))  # else the supervisor or the engine counts them
    with held(sandbox, Attack("limits", source=code), limits=Limits(processes=16, open_files=64)) as one:
        limits = Path(f"/proc/{one.pid}/limits").read_text()
        for name, value in wanted:
            assert re.search(rf"Max {name} +{value} +{value} ", limits), limits


@pytest.mark.root_only
def test_no_two_cells_of_root_have_a_uid_in_common(sandbox: sync.Sandbox, language: str) -> None:
    """What the kernel counts for each user is each cell's own."""
    with sandbox.session(language) as one, sandbox.session(language) as other:
        for session in (one, other):
            assert session.run("").ok
        uids = [of_cell - {"0"} for of_cell in _uids_by_cell()]  # one that is just made is its maker's still
        assert len([of_cell for of_cell in uids if of_cell]) >= 2
        assert max(Counter(uid for of_cell in uids for uid in of_cell).values()) == 1


def _uids_by_cell() -> list[set[str]]:
    """Of all cells of this host with a program, or one that waits: those of its processes."""
    inits = [pid for supervisor in witness.serving() for pid in witness.descendants(supervisor) if is_init(pid)]
    return [{host.status_of(pid)["Uid"].split()[0] for pid in witness.descendants(init)} for init in inits]
