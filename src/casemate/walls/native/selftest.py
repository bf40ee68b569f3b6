"""The self-test: a wall is offered only after throwaway cells have tried to get out of it, and failed.

The outcome is kept for this boot, kernel, user and version; a cell never sees the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from casemate import __version__
from casemate.errors import WallUnavailable
from casemate.model.isolation import IsolationReport, Proof
from casemate.model.limits import Limits
from casemate.model.plan import WORKSPACE, Launch, Plan, Workspace
from casemate.walls.native.launch import Silent
from casemate.walls.wall import Cell, Sink, Stream

if TYPE_CHECKING:
    from casemate.walls.wall import CellEnding

_GUEST = Path(__file__).parents[2] / "guest"
_DEADLINE = 20.0  # seconds; the test takes about a tenth of one, more on a machine under heavy load
_MAX_OUTPUT = 1 << 16
_MIB = 1 << 20
_LIMITS = Limits(memory=256 * _MIB, processes=20, disk=4 * _MIB, open_files=100, wall=_DEADLINE)
_MEMORY_LIMITS = Limits(memory=64 * _MIB, processes=20, disk=4 * _MIB, wall=_DEADLINE)
_NO_VICTIM = 1 << 22  # beyond the kernel's largest process id
_SLACK = 1 * _MIB  # of the disk limit: folders, and the program itself

Start = Callable[[Plan, Sink], Cell]
LaunchProgram = Callable[[str, tuple[str, ...]], Launch]


class _FirstOutput(Silent):
    """A sink that keeps the first output of a throwaway cell, which sends no frames."""

    def __init__(self) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()

    def output(self, stream: Stream, data: bytes) -> None:
        kept = self.stdout if stream == "stdout" else self.stderr
        kept += data[: _MAX_OUTPUT - len(kept)]


class Bench(NamedTuple):
    """What the self-test needs: the name of the ``wall``, the host's ``facts``, how to ``start`` a cell, how Python
    programs are launched, how the outcome is reported, and where cells have what is launched; whether the files that a
    cell leaves are its own user's; cases that this wall is ``without``, as its report says."""

    wall: str
    facts: dict[str, Any]
    start: Start
    system_entries: tuple[Any, ...]
    launch: LaunchProgram
    report: Callable[[dict[str, Any], tuple[Proof, ...], float], IsolationReport]
    place: Callable[[Launch], Launch]
    leaves_own_files: bool
    without: frozenset[str] = frozenset()


async def prove(bench: Bench) -> IsolationReport:
    """The report of a wall that holds, from the cache or by testing it. Raises ``WallUnavailable``."""
    key = _key(bench)
    cached = _read_cache(key)
    if cached is not None:
        return bench.report(bench.facts, *cached)
    proofs, at = (*await _try_escapes(bench), await _try_memory(bench)), time.time()
    proofs = tuple(proof for proof in proofs if proof.case not in bench.without)
    failed = [f"{proof.case} ({proof.detail})" for proof in proofs if not proof.held]
    if failed:
        raise WallUnavailable(
            f"The {bench.wall} wall does not hold on this machine; its self-test failed at: {'; '.join(failed)}",
            reason="self_test",
            remediation="Nothing is run behind a wall that leaks. Please report it with the output of casemate doctor.",
        )
    _write_cache(key, proofs, at)
    return bench.report(bench.facts, proofs, at)


async def _try_escapes(bench: Bench) -> tuple[Proof, ...]:
    from casemate.files.temporary import TemporaryFolder

    with ExitStack() as stack:
        try:
            folder = TemporaryFolder("selftest")
        except OSError as error:
            raise WallUnavailable(
                f"The self-test has no folder for its files: {error.strerror}",
                reason="no_temporary_folder",
                remediation="Make room in the folder for temporary files, or name another with TMPDIR. In a read-only "
                "container: --tmpfs /tmp",
            ) from None
        stack.callback(folder.remove)
        canary = folder.path / "canary"
        secret = os.urandom(16).hex()
        canary.write_text(secret)
        before = canary.stat()
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        name = f"casemate-{secret[:12]}"
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{name}")
        abstract.listen()
        # With two slashes it is no place of the cell's on a wall that moves these.
        arguments = (f"/{canary}", str(tcp.getsockname()[1]), name, str(_victim()))
        limits = _LIMITS if _counts_processes(bench) else replace(_LIMITS, processes=64)  # more than it begins
        ending, output = await _run(bench, "selftest.py", arguments, limits)
        owner: int | None
        try:
            owner = os.stat("workspace/fill", dir_fd=ending.tree_fd, follow_symlinks=False).st_uid
        except OSError:
            owner = 0
        finally:
            os.close(ending.tree_fd)
        owner = owner if bench.leaves_own_files else None
        reached = [_has_visitor(tcp), _has_visitor(abstract)]
        after = canary.stat()
        is_same = (before.st_mode, before.st_ctime_ns) == (after.st_mode, after.st_ctime_ns)
        return _judge(bench, output, secret, is_same and canary.read_text() == secret, reached, owner)


async def _try_memory(bench: Bench) -> Proof:
    ending, _ = await _run(bench, "selftest_memory.py", (), _MEMORY_LIMITS)
    os.close(ending.tree_fd)
    held = ending.reason == "memory" or ending.oom
    seen = (
        f"ended by {ending.reason or 'the kernel' if held else ending.reason} at {ending.peak_memory >> 20} MiB of 64"
    )
    return Proof("memory of many processes together is limited", held, seen)


async def _run(bench: Bench, name: str, arguments: tuple[str, ...], limits: Limits) -> tuple[CellEnding, _FirstOutput]:
    launched = bench.place(bench.launch(name, arguments))
    plan = Plan(
        id=os.urandom(8).hex(),
        wall=bench.wall,
        language="python",
        entries=(*bench.system_entries, *launched.entries),
        argv=launched.argv,
        env={"PATH": "/usr/bin:/bin", **launched.env},
        cwd=WORKSPACE,
        program_name=name,
        code=(_GUEST / name).read_bytes(),
        workspace=Workspace("private"),
        files={},
        stdin=b"",
        limits=limits,
        deadline=_DEADLINE,
    )
    output = _FirstOutput()
    return await bench.start(plan, output).wait(), output


def _is_root(owner: int) -> bool:
    """Whether a user id as seen here is the machine's root: inside a user namespace 0 may be anybody."""
    inside, outside, _ = map(int, Path("/proc/self/uid_map").read_text().splitlines()[0].split())
    return owner == 0 and not (inside == 0 and outside != 0)


def _victim() -> int:
    """A process of the host with a number that cannot be one of the cell's own few."""
    return max((int(name) for name in os.listdir("/proc") if name.isdigit()), default=_NO_VICTIM)


def _has_visitor(server: socket.socket) -> bool:
    server.setblocking(False)
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def _judge(
    bench: Bench, output: _FirstOutput, secret: str, untouched: bool, reached: list[bool], owner: int | None
) -> tuple[Proof, ...]:
    try:
        attempts: dict[str, Any] = json.loads(output.stdout)
    except ValueError:
        words = (bytes(output.stderr) or bytes(output.stdout)).decode("utf-8", "replace")[-300:]
        return (Proof("the self-test runs", False, words.strip() or "it printed nothing"),)
    state = attempts["status"]
    owner = int(state["Uid"].split()[0]) if owner is None else owner
    # Without a user namespace an ordinary user cannot empty the bounding set; nothing can be gained of it either.
    sets = ("CapEff", "CapPrm", "CapBnd") if bench.facts["mode"] != "plain user" else ("CapEff", "CapPrm")
    processes = attempts["processes_seen"]
    rules: list[tuple[str, bool, object]] = [
        (
            "a file of the host's is not readable",
            secret.encode() not in output.stdout + output.stderr,
            attempts["read"],
        ),
        ("nothing outside is writable", untouched and "written" not in attempts["write"], attempts["write"]),
        ("no mode or time outside can be changed", "changed" not in attempts["change"], attempts["change"]),
        ("the host's loopback is not reachable", not reached[0], attempts["loopback"]),
        ("the host's abstract sockets are not reachable", not reached[1], attempts["abstract"]),
        (
            "processes of the host are not listed",
            processes.startswith("refused") or int(processes) <= 3,
            processes,
        ),
        ("processes of the host cannot be signalled", attempts["signal"].startswith("refused"), attempts["signal"]),
        ("no namespace can be made", attempts["nesting"].startswith("refused"), attempts["nesting"]),
        ("system settings cannot be written", attempts["sysctl"].startswith("refused"), attempts["sysctl"]),
        ("the cell's init cannot be traced", attempts["trace_init"].startswith("refused"), attempts["trace_init"]),
        ("there are no capabilities", {state[name] for name in sets} == {"0" * 16}, state["CapEff"]),
        ("no new privileges can be gained", state["NoNewPrivs"] == "1", state["NoNewPrivs"]),
        ("system calls are filtered", state.get("Seccomp") == "2", state.get("Seccomp", "")),
        ("the cell is not root on the host", not _is_root(owner), owner),
        ("the number of open files is limited", attempts["open_files"] < _LIMITS.open_files, attempts["open_files"]),
        ("the disk is limited", 0 < attempts["filled"] <= _LIMITS.disk + _SLACK, attempts["filled"]),
    ]
    if _counts_processes(bench):
        rules.append(("the number of processes is limited", attempts["forks"] < _LIMITS.processes, attempts["forks"]))
    return tuple(Proof(case, held, str(detail)[:200]) for case, held, detail in rules)


def _counts_processes(bench: Bench) -> bool:
    """Whether the kernel does, so that a cell is not ended for having too many."""
    return bool(bench.facts["mode"] != "plain user")


# -- the cache


def _key(bench: Bench) -> dict[str, Any]:
    here = Path(__file__).parents[2]
    trees = (tree for folder in ("supervisor", "guest") for tree in os.walk(here / folder))
    code = (os.path.join(folder, name) for folder, _, names in trees for name in names if name.endswith(".py"))
    newest = max(os.stat(path).st_mtime_ns for path in code)
    boot = Path("/proc/sys/kernel/random/boot_id")
    return {
        "boot": boot.read_text().strip() if boot.exists() else "",
        "kernel": os.uname().release,
        "version": __version__,
        "wall": bench.wall,
        "code": [str(here), newest],
        "user": os.geteuid(),
        "facts": {name: value for name, value in bench.facts.items() if name != "op"},
    }


def _cache_path(wall: str) -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME") or (Path(os.environ["HOME"], ".cache") if os.environ.get("HOME") else None)
    installation = hashlib.sha256(str(Path(__file__).parent).encode()).hexdigest()[:12]
    return None if base is None else Path(base) / "casemate" / f"selftest-{wall}-{os.geteuid()}-{installation}.json"


def _read_cache(key: dict[str, Any]) -> tuple[tuple[Proof, ...], float] | None:
    path = _cache_path(key["wall"])
    if path is None:
        return None
    try:
        with path.open() as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return None
            kept = json.load(file)
        if kept["key"] != key:
            return None
        return tuple(Proof(**proof) for proof in kept["proofs"]), float(kept["at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_cache(key: dict[str, Any], proofs: tuple[Proof, ...], at: float) -> None:
    path = _cache_path(key["wall"])
    if path is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        import tempfile

        descriptor, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"key": key, "proofs": [asdict(proof) for proof in proofs], "at": at}, file)
        os.replace(name, path)
    except OSError:
        return  # without a cache the test is run again; that is slower and just as safe
