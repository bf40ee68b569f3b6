"""What a cell may use is bounded, and nothing of what it used is left on the host."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract import witness
from tests.escapes import host
from tests.escapes.cells import ROOT, Attack, attack, bare, held, held_bare
from tests.support.waiting import until
from tests.warm.ready import settle

from casemate import Execution, Limits, sync
from casemate.walls.native import demand

MIB = 1 << 20


def _take(sandbox: sync.Sandbox, what: str, many: int, limits: Limits, *, keep: bool = False) -> Execution:
    """``keep``: it stays with what it took; a limit that the host looks at cannot end what is over before a look."""
    it = Attack("resources")
    env = {"WHAT": what, "MANY": str(many), **({"HOLD": "1"} if keep else {})}
    return sandbox.run(it.code, env=env, files=it.files, limits=limits, timeout=60)


def _taken(execution: Execution) -> int:
    """How many it got; those that were killed before they could tell got too little to matter, and are -1."""
    found = re.search(r"took (\d+) ", execution.stdout)
    return int(found[1]) if found else -1


# --------------------------------------------------------------------------------------------- processes and threads


@pytest.mark.parametrize("what", ["processes", "threads", "orphans", "zombies", "programs"])
def test_the_number_of_processes_and_threads_is_bounded(sandbox: sync.Sandbox, what: str) -> None:
    """Counted by the host; with a wider limit, which is the control, there are more."""
    env = {"WHAT": what, "MANY": "40"}
    with held(sandbox, Attack("resources"), env, limits=Limits(processes=12)) as few:
        assert "stopped by" in few.text
        assert host.tasks_of(_all_of(few.pid)) <= 12
    with held(sandbox, Attack("resources"), env, limits=Limits(processes=100, memory="1GiB")) as many:
        assert "took 40 " in many.text, "the control"
        assert host.tasks_of(_all_of(many.pid)) >= 40 or what == "zombies"


def _all_of(pid: int) -> list[int]:
    """Every process of the cell of ``pid``, zombies included, without its init."""
    return witness.descendants(int(host.status_of(pid)["PPid"]))


BOMBS = {
    "python": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
    "shell": "bomb() { bomb | bomb & }; bomb 2>/dev/null; while :; do :; done",
    "node": "const c=require('child_process');setInterval(()=>{try{c.spawn(process.execPath,[__filename])"
    ".on('error',()=>{})}catch{}},1)",
}


def test_a_fork_bomb_is_over_at_its_time_limit(sandbox: sync.Sandbox, language: str) -> None:
    execution = sandbox.run(BOMBS[language], language=language, limits=Limits(processes=30), timeout=1)
    assert execution.status in ("timeout", "failed", "out_of_memory", "killed")
    assert execution.usage.processes <= 30 + 3  # they are counted one after the other, while they come and go
    assert host.cell_processes() == []
    assert sandbox.run("print(1)").ok


# --------------------------------------------------------------------------------------------------------- memory

SMALL = Limits(memory="64MiB", disk="16MiB", processes=64)
WIDE = Limits(memory="1GiB", disk="300MiB", processes=64)
_BOUND = 64 + 16  # MiB; files count as memory
_STACKS = 64  # MiB; without a cgroup, space for the stacks of threads, which RLIMIT_DATA cannot tell from other memory
_LOOKED_AT = ("shared", "children", "tcp")  # no limit of the kernel's refuses them where there is no cgroup v2


@pytest.mark.parametrize(
    ("what", "many", "mib_each"),
    [
        ("private", 200, 1), ("shared", 200, 1), ("tmp", 200, 1), ("shm", 200, 1), ("memfd", 200, 1),
        ("children", 30, 8), ("sockets", 400, 0.4), ("tcp", 100, 2), ("pipes", 500, 1 / 16),
    ],
)  # fmt: skip
def test_memory_of_every_kind_is_bounded(sandbox: sync.Sandbox, what: str, many: int, mib_each: float) -> None:
    """Two hundred MiB are wanted; what was got is at most what memory and disk together allow."""
    counted = any(one.limit == "memory" and one.hard for one in sandbox.run("pass").isolation.limits)
    is_looked_at = what in _LOOKED_AT or (what == "sockets" and not counted)
    execution = _take(sandbox, what, many, SMALL, keep=is_looked_at)
    got = _taken(execution) * mib_each
    if is_looked_at:
        assert execution.status == "out_of_memory"
    else:
        has_more = not counted or os.environ["CASEMATE_ISOLATION"] == "docker"  # whose supervisor's memory counts, too
        assert got <= (_BOUND + _STACKS if has_more else _BOUND) * 1.05
    if what not in ("memfd", "pipes") or counted:
        assert _taken(_take(sandbox, what, many, WIDE)) * mib_each >= min(many * mib_each, 190), "the control"


def test_the_signals_that_wait_are_bounded(sandbox: sync.Sandbox) -> None:
    """The kernel counts them for all programs of a user together."""
    assert 100 < _taken(_take(sandbox, "timers", 4000, WIDE)) <= 1024


def _instances() -> int:
    """How many of inotify this user may have now."""
    libc = ctypes.CDLL(None)
    held = list(itertools.takewhile(lambda fd: fd >= 0, (libc.inotify_init1(0) for _ in range(500))))
    for fd in held:
        os.close(fd)
    return len(held)


def test_the_users_inotify_is_left_for_the_user(wall: str, tmp_path: Path) -> None:
    """For real root, whose cells are other users, all of it; a few may be somebody else's meanwhile."""
    before, env = _instances(), {"WHAT": "inotify", "MANY": "500"}
    with sync.Sandbox(audit=tmp_path / "audit.db", concurrency=6) as many, contextlib.ExitStack() as stack:
        taken = [stack.enter_context(held(many, Attack("resources"), env)).text for _ in range(6)]
        assert _instances() > before - (before // 4 + 4 if os.geteuid() else 4)
        assert wall != "native" or "took 8 " in taken[0]
    with held_bare(Attack("resources"), {**env, "MANY": "12"}, tmp_path):
        assert _instances() <= before - 8, "the control"


@pytest.mark.parametrize("what", ["netlink", "netlink at once"])
def test_sockets_of_netlink_are_few_for_no_cgroup_counts_them(sandbox: sync.Sandbox, tmp_path: Path, what: str) -> None:
    env = {"WHAT": what, "MANY": "40"}
    with held(sandbox, Attack("resources"), env) as one:
        rows = Path(f"/proc/{one.pid}/net/protocols").read_text().splitlines()
        has_own = os.readlink(f"/proc/{one.pid}/ns/net") != os.readlink("/proc/self/ns/net")
        assert not has_own or next(int(row.split()[2]) for row in rows if row.startswith("NETLINK")) <= 16
        assert has_own or "took 0 " in one.text
    assert "took 40 " in bare(Attack("resources"), env, tmp_path).text, "the control"


_NO_WATCH_LEFT = """
import ctypes, errno, os, select, struct, sys, tempfile
from casemate.supervisor.syscall_numbers import numbers
from casemate.sync import Sandbox

call = numbers(os.uname().machine)["epoll_ctl"]
lines = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x50000 | errno.ENOSPC), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter, 0, 0) == 0
try:
    select.epoll().register(0)
except OSError as error:
    assert error.errno == errno.ENOSPC
else:
    sys.exit("there are watches")
wall = os.environ["CASEMATE_ISOLATION"]
with Sandbox(network="public", isolation=wall, audit=tempfile.mkdtemp() + "/a.db") as box, box.session() as session:
    print(box.run("print(6 * 7)").stdout.strip(), session.run("6 * 7").text, session.run("print(6 * 7)").stdout.strip())
"""


def test_casemate_goes_on_where_a_cell_has_left_the_user_without_watches() -> None:
    """epoll(7), max_user_watches: some millions, for all programs of a user together. A filter answers as it would."""
    done = subprocess.run(
        [sys.executable, "-c", _NO_WATCH_LEFT], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "42 42 42\n", done.stderr


_NO_WATCHES = """
import errno, runpy, selectors, sys

def epoll():
    raise OSError(errno.ENOSPC, "no watches are left")

selectors.DefaultSelector = epoll
sys.argv[0] = "casemate"
runpy.run_module("casemate", run_name="__main__")
"""


@pytest.mark.full
@pytest.mark.parametrize("command", [["run", "-"], ["wrap", "--mode", "overlay", "--", "cat"]], ids=["run", "wrap"])
def test_the_event_loops_of_commands_need_no_watches(command: list[str], scratch: Path) -> None:
    program = "print(40 + 2)" if command[0] == "run" else "42"
    if command[0] == "wrap" and os.environ["CASEMATE_ISOLATION"] == "docker":
        pytest.skip("no command of the machine is in an image")
    words = [sys.executable, "-c", _NO_WATCHES, *command]
    folder = scratch / "empty"  # it is copied behind landlock
    folder.mkdir(exist_ok=True)
    done = subprocess.run(words, input=program, check=False, capture_output=True, text=True, timeout=60, cwd=folder)
    assert done.stdout.strip() == "42", done.stderr


def test_shared_memory_of_several_processes_is_added_up(sandbox: sync.Sandbox) -> None:
    """Each of eight maps 48 MiB that the others could share: one of them alone is far below the limit. With this much
    disk the kernel, which counts files as memory, lets all eight be: what the look adds up ends them."""
    small = _take(sandbox, "children that share", 8, Limits(memory="160MiB", disk="300MiB"), keep=True)
    assert small.status == "out_of_memory"
    assert _taken(_take(sandbox, "children that share", 8, WIDE)) == 8, "the control"


NODE_HEAP = "const held=[];const log=require('fs');for(let n=1;n<=40;n++){held.push(new Array(1<<20).fill(n));"
NODE_HEAP += "log.writeSync(1,`took ${n*8} MiB\\n`)}"
NODE_BUFFERS = "const held=[];for(let n=1;n<=52;n++){held.push(Buffer.alloc(8<<20,1));"
NODE_BUFFERS += "require('fs').writeSync(1,`took ${n*8} MiB\\n`)}"
SHELL_MEMORY = "x=x; for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26; do x=$x$x; "
SHELL_MEMORY += "echo took $((${#x} >> 20)) MiB; done"


@pytest.mark.full
@pytest.mark.parametrize(
    ("language", "code", "memory", "bound"),
    [
        pytest.param("node", NODE_HEAP, "128MiB", 200, marks=pytest.mark.needs("node"), id="node heap"),
        pytest.param("node", NODE_BUFFERS, "128MiB", 400, marks=pytest.mark.needs("node"), id="node buffers"),
        pytest.param("shell", SHELL_MEMORY, "32MiB", 64, id="shell"),
    ],
)
def test_memory_is_bounded_in_other_languages_too(
    sandbox: sync.Sandbox, language: str, code: str, memory: str, bound: int
) -> None:
    small = sandbox.run(code, language=language, limits=Limits(memory=memory, disk="1MiB"))
    wide = sandbox.run(code, language=language, limits=Limits(memory="1GiB"))
    assert not small.ok
    assert _most(small) < bound
    assert _most(wide) >= bound, "the control"
    assert wide.ok


def _most(execution: Execution) -> int:
    return max([int(found) for found in re.findall(r"took (\d+) MiB", execution.stdout)], default=0)


# ---------------------------------------------------------------------------------------------------- cpu and time


def test_cpu_time_over_many_processes_is_bounded(sandbox: sync.Sandbox) -> None:
    small = _take(sandbox, "burners", 20, Limits(cpu_time=0.5, cpus=2))
    assert small.status == "killed"
    assert small.cause is not None
    assert small.cause.code == "cpu_limit"
    assert _take(sandbox, "burners", 5, Limits(cpus=2)).ok, "the control"


def test_cpu_time_of_orphans_is_bounded(sandbox: sync.Sandbox) -> None:
    execution = _take(sandbox, "burning orphans", 40, Limits(cpu_time=0.5, cpus=2))
    assert execution.usage.cpu_seconds < 1.5
    assert execution.status == "killed"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import re; re.match('(a+)+$', 'a' * 60 + 'b')"),
        ("python", "10 ** 10 ** 9"),
        ("python", "sum(range(10 ** 12))"),
        ("shell", "while :; do :; done"),
        pytest.param("node", "/(a+)+$/.test('a'.repeat(60) + 'b')", marks=pytest.mark.needs("node")),
        pytest.param("node", "for (;;) ;", marks=pytest.mark.needs("node")),
    ],
)
def test_what_never_ends_is_ended(sandbox: sync.Sandbox, language: str, code: str) -> None:
    execution = sandbox.run(code, language=language, timeout=0.6)
    assert execution.status == "timeout"
    assert host.cell_processes() == []


# ------------------------------------------------------------------------------------------ disk, inodes, descriptors


@pytest.mark.parametrize("what", ["tmp", "shm", "workspace"])
def test_the_disk_is_bounded(sandbox: sync.Sandbox, what: str) -> None:
    wide = Limits(disk="100MiB", memory="400MiB")
    small = _take(sandbox, what, 60, Limits(disk="8MiB", memory="400MiB"))
    assert 6 * MIB <= _size(small) <= 9 * MIB
    assert _size(_take(sandbox, what, 60, wide)) == 60 * MIB, "the control"


def _size(execution: Execution) -> int:
    found = re.search(r"size (\d+)", execution.stdout)
    assert found, execution.text
    return int(found[1])


_OWN_INODES = 24  # for the cell's own folders; what they do not need the program gets


def test_the_number_of_files_is_bounded(sandbox: sync.Sandbox) -> None:
    assert 0 < _taken(_take(sandbox, "inodes", 2000, Limits(inodes=500))) <= 500 + _OWN_INODES
    assert _taken(_take(sandbox, "inodes", 2000, Limits())) == 2000, "the control"


def test_the_number_of_descriptors_is_bounded(sandbox: sync.Sandbox) -> None:
    """Counted by the host."""
    env = {"WHAT": "descriptors", "MANY": "900"}
    with held(sandbox, Attack("resources"), env, limits=Limits(open_files=64)) as one:
        assert len(os.listdir(f"/proc/{one.pid}/fd")) <= 64
    with held(sandbox, Attack("resources"), env, limits=Limits(open_files=1024)) as one:
        assert len(os.listdir(f"/proc/{one.pid}/fd")) >= 900, "the control"


_ONE_TERMINAL = "import os; os.openpty(); print('one')"


def test_pseudo_terminals_are_left_for_other_cells_and_the_host(sandbox: sync.Sandbox, wall: str) -> None:
    """The kernel bounds them behind the native wall; elsewhere a cell that has too many is ended."""
    if wall == "landlock" and os.geteuid():
        assert sandbox.run(_ONE_TERMINAL).status == "failed"  # they are closed
        return
    if wall in ("landlock", "docker"):
        ended = _take(sandbox, "terminals", 200, Limits(), keep=True)
        assert (ended.status, "64 pseudo-terminals" in str(ended.cause)) == ("killed", True)
    else:
        with held(sandbox, Attack("resources"), {"WHAT": "terminals", "MANY": "200"}) as one:
            assert "took 64 " in one.text
            assert sandbox.run(_ONE_TERMINAL).stdout == "one\n"
            for fd in os.openpty():
                os.close(fd)
    assert sandbox.run(_ONE_TERMINAL).stdout == "one\n"


AWKWARD = """
import os
from tests.escapes.payloads.attempts import attempt, finish
def deep():
    workspace = os.getcwd()
    os.mkdir("deep"); os.chdir("deep")
    for _ in range(1500):
        os.mkdir("d" * 20); os.chdir("d" * 20)
    open("bottom", "w").write("x")
    os.chdir(workspace)
def shut():
    os.makedirs("shut/inner"); open("shut/inner/file", "w").write("x")
    os.chmod("shut/inner", 0); os.chmod("shut", 0)
def names():
    for name in (b"line\\nbreak", b"\\xff\\xfe", b"-rf", b"\\x1b[2Jx", "\\u202egnp".encode(), b"n" * 255):
        open(b"output/" + name, "w").write("x")
def sparse():
    with open("output/sparse", "w") as file:
        file.truncate(1 << 40)
for action in (deep, shut, names, sparse):
    attempt(action.__name__, action)
finish()
"""


def test_trees_that_are_hard_to_read_or_delete_leave_nothing_behind(sandbox: sync.Sandbox, scratch: Path) -> None:
    """Depth, folders without permissions, odd names, a file of 1 TiB that holds nothing; with an output folder."""
    folder = scratch / "awkward"
    folder.mkdir()
    with sync.Sandbox(audit=scratch / "audit-awkward.db", output_dir=folder) as one:
        one.run("pass")
        settle(one)  # what is kept ready for later runs has descriptors, too
        before = host.leftovers()
        execution = attack(one, Attack("awkward", source=AWKWARD))
        is_sparse_refused = os.environ["CASEMATE_ISOLATION"] == "landlock"  # where each file has a bound
        assert execution.stdout.count(": done") == 4 - is_sparse_refused, "the control: they were made"
        assert sum(artifact.size for artifact in execution.artifacts) < 1 << 20
        assert host.leftovers()["mounts"] == before["mounts"]
        _back_to(before, len(execution.artifacts) + 1)
    assert all(0x20 <= ord(character) < 0x7F for path in folder.rglob("*") for character in path.name)


# ------------------------------------------------------------------------------------------------ the host application

FLOODS = {
    "stdout": "import os\nwhile True: os.write(1, b'x' * 65536 + b'\\n')",
    "one endless line": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "both": "import os\nwhile True: os.write(1, b'x' * 4096); os.write(2, b'\\xff' * 4096)",
    "children": "import os\nfor _ in range(5): os.fork()\nwhile True: os.write(1, b'y\\n' * 2048)",
    "frames that are no frames": "import os\nwhile True: os.write(3, b'\\0\\0\\0\\4null' * 500)",
    "results": "import os, json\nb = json.dumps({'type': 'display', 'bundle': {'text/plain': 'x' * 60000}}).encode()\n"
    "d = len(b).to_bytes(4, 'big') + b\nwhile True:\n    x = d\n    while x: x = x[os.write(3, x):]",
    "small pieces": 'b = b\'{"type":"display","bundle":{"application/json":[\' + b\'[],\' * 2500000 + b\'0]}}\'\n'
    "import os\nx = len(b).to_bytes(4, 'big') + b\nwhile x: x = x[os.write(3, x):]",
}
_GROWTH = 64  # MiB a host may grow by: twice the limits of the output, and the interpreter's own ways


@functools.lru_cache
def _application(scratch: Path, *arguments: str) -> dict[str, Any]:
    path = os.pathsep.join([str(ROOT), str(Path(sync.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", "tests.escapes.flood", str(scratch / "audit-flood.db"), *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout or "{}")
    return told


_ALIKE = ("one endless line", "both", "small pieces")  # as others, to the host


@pytest.mark.parametrize(
    "flood", [pytest.param(one, marks=[pytest.mark.full] if one in _ALIKE else []) for one in FLOODS]
)
def test_the_hosts_memory_does_not_grow_with_what_a_cell_says(scratch: Path, flood: str) -> None:
    told = _application(scratch, FLOODS[flood])
    assert told["grown"] < _GROWTH
    assert told["next"] == "1\n"
    if "frames" not in flood and flood not in ("results", "small pieces"):
        assert told["cause"] == "output_limit"


@pytest.mark.parametrize("flood", ["frames that are no frames", "results"])
def test_a_cell_that_floods_the_control_pipe_is_ended(scratch: Path, flood: str) -> None:
    assert _application(scratch, FLOODS[flood])["status"] != "timeout"


IN_FLIGHT = """
import socket, time
pairs, count = [], 0
try:
    while count < 3000:
        pairs.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
        pairs[-1][0].setblocking(False)
        try:
            for _ in range(10):
                socket.send_fds(pairs[-1][0], [b"x"], [0] * 250)
                count += 250
        except BlockingIOError:
            pass
except OSError:
    pass
print("taken", count, flush=True)
time.sleep(70)
"""


def test_descriptors_in_flight_do_not_stop_other_runs(scratch: Path) -> None:
    """The kernel counts them for each user: where the host has no more than a cell, its own messages are refused."""
    assert _application(scratch, IN_FLIGHT, "beside") == {"other": "1\n"}


# ------------------------------------------------------------------------------------------------------- nothing left


@pytest.fixture
def others() -> set[int]:
    """The supervisors of sandboxes that other tests keep."""
    return set(witness.supervisors())


@pytest.fixture
def fresh(scratch: Path, monkeypatch: pytest.MonkeyPatch, others: set[int]) -> Iterator[sync.Sandbox]:
    monkeypatch.setattr(demand, "IDLE", 0.2)  # ready cells end soon, so each run gets a new one
    monkeypatch.setattr("casemate.languages.python.runtime.PRELOADED", ("IPython.core.interactiveshell",))
    with sync.Sandbox(audit=scratch / "audit-fresh.db") as one:
        one.run("pass")
        yield one


def test_nothing_is_left_after_hostile_runs(fresh: sync.Sandbox, others: set[int]) -> None:
    before = host.leftovers()
    fresh.run(BOMBS["python"], limits=Limits(processes=20), timeout=0.4)
    _take(fresh, "private", 200, SMALL)
    _take(fresh, "workspace", 60, Limits(disk="8MiB"))
    until(lambda: _cells_with_groups(others) <= 1, "the removal of the groups of all cells but the ready one")
    assert host.leftovers()["mounts"] == before["mounts"]
    _back_to(before, 2)  # artifacts that are still held


def _back_to(before: dict[str, object], held: int) -> None:
    """Until this process has no more descriptors than it had, but for the files it still holds."""
    most = int(str(before["descriptors"])) + held
    until(lambda: int(str(host.leftovers()["descriptors"])) <= most, "the end of descriptors")


def _cells_with_groups(others: set[int]) -> int:
    """How many cells have cgroups, in whatever hierarchy, but for those of ``others``."""
    folders = map(Path, witness.cgroup_folders(*set(witness.supervisors()) - others))
    cells = {(folder.parent.name, folder.name) for folder in folders}
    return sum(supervisor.startswith("casemate-") for supervisor, _ in cells)


_IN_FLIGHT = """
import os, resource, sys
from casemate import sync
how = {"audit": sys.argv[1], "isolation": os.environ["CASEMATE_ISOLATION"]}
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))  # as many as a cell may open
FILL = '''
import socket
pairs, sent = [], 0
try:
    while True:
        pairs += socket.socketpair()
        pairs[-1].setblocking(False)
        try:
            while True:
                socket.send_fds(pairs[-1], [b"x"], [0] * 250)
                sent += 250
        except BlockingIOError:
            pass
except OSError as error:
    print(error.errno, sent > 0)
'''
with sync.Sandbox(**how) as sandbox, sandbox.session() as session:
    print(session.run(FILL).stdout, end="")
    for _ in range(3):
        print(sandbox.run("echo other", language="shell").stdout, end="")
    with sync.Sandbox(**how) as another:
        print(another.run("echo other", language="shell").stdout, end="")
"""


@pytest.mark.user_only
def test_descriptors_in_flight_do_not_keep_the_supervisor_from_serving_others(audit: Path) -> None:
    """The kernel counts them for all processes of a user, but for those of root (ETOOMANYREFS in unix(7))."""
    done = subprocess.run(
        [sys.executable, "-c", _IN_FLIGHT, str(audit)], stdout=subprocess.PIPE, text=True, timeout=120, check=True
    )
    assert done.stdout == f"{errno.ETOOMANYREFS} True\n" + 4 * "other\n"
