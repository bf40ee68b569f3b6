"""The self-test: a wall is offered only after throwaway cells have tried to escape from it and failed.

The result is cached for this boot, kernel, user and version. Cells cannot see the cache file.
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
from casemate.model.isolation import Proof
from casemate.model.limits import Limits
from casemate.model.plan import WORKSPACE, Launch, Plan, Workspace
from casemate.walls.native.launch import Silent
from casemate.walls.wall import Stream

if TYPE_CHECKING:
    from casemate.walls.wall import CellEnding, Wall

_GUEST = Path(__file__).parents[2] / "guest"
_DEADLINE = 20.0  # seconds; the test takes about 0.1, more on a busy machine
_MAX_OUTPUT = 1 << 16
_MIB = 1 << 20
_LIMITS = Limits(memory=256 * _MIB, processes=20, disk=4 * _MIB, open_files=100, wall=_DEADLINE)
_MEMORY_LIMITS = Limits(memory=64 * _MIB, processes=20, disk=4 * _MIB, wall=_DEADLINE)
_NO_VICTIM = 1 << 22  # beyond the kernel's largest process id
_SLACK = 1 * _MIB  # over the disk limit, for folders and the program itself

LaunchProgram = Callable[[str, tuple[str, ...]], Launch]


class _FirstOutput(Silent):
    """A sink that keeps the first output of a throwaway cell."""

    def __init__(self) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()

    def output(self, stream: Stream, data: bytes) -> None:
        kept = self.stdout if stream == "stdout" else self.stderr
        kept += data[: _MAX_OUTPUT - len(kept)]


class Bench(NamedTuple):
    """The input of a self-test."""

    wall: Wall
    facts: dict[str, Any]  # about the machine, from the wall's supervisor
    launch: LaunchProgram  # for Python programs
    leaves_own_files: bool  # whether the files that a cell leaves belong to its own user
    without: frozenset[str]  # cases that this wall fails; its report says so


async def prove(bench: Bench) -> tuple[tuple[Proof, ...], float]:
    """Return the passed cases and their time, from the cache or from a new test. Raises ``WallUnavailable``."""
    key = _key(bench)
    cached = _read_cache(key)
    if cached is not None:
        return cached
    proofs, at = (*await _try_escapes(bench), await _try_memory(bench)), time.time()
    proofs = tuple(proof for proof in proofs if proof.case not in bench.without)
    failed = [f"{proof.case} ({proof.detail})" for proof in proofs if not proof.held]
    if failed:
        raise WallUnavailable(
            f"The {bench.wall.name} wall is not safe on this machine; its self-test failed at: {'; '.join(failed)}",
            reason="self_test",
            remediation="casemate runs nothing behind it. Please report this with the output of casemate doctor.",
        )
    _write_cache(key, proofs, at)
    return proofs, at


async def _try_escapes(bench: Bench) -> tuple[Proof, ...]:
    from casemate.files.temporary import TemporaryFolder

    with ExitStack() as stack:
        try:
            folder = TemporaryFolder("selftest")
        except OSError as error:
            raise WallUnavailable(
                f"The self-test cannot make a folder for its files: {error.strerror}",
                reason="no_temporary_folder",
                remediation="Free space in the temporary folder, or choose another with TMPDIR. In a read-only "
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
        # Two slashes keep a wall that maps the cell's paths from mapping this one.
        arguments = (f"/{canary}", str(tcp.getsockname()[1]), name, str(_victim()))
        limits = _LIMITS if _counts_processes(bench) else replace(_LIMITS, processes=64)  # more than it starts
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
    launched = bench.wall.place(bench.launch(name, arguments))
    plan = Plan(
        id=os.urandom(8).hex(),
        wall=bench.wall.name,
        language="python",
        entries=(*bench.wall.system_entries(), *launched.entries),
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
    return await bench.wall.start(plan, output).wait(), output


def _is_root(owner: int) -> bool:
    """Whether ``owner``, as seen here, is the machine's root. In a user namespace, 0 may be another user."""
    inside, outside, _ = map(int, Path("/proc/self/uid_map").read_text().splitlines()[0].split())
    return owner == 0 and not (inside == 0 and outside != 0)


def _victim() -> int:
    """Return the id of a host process that is too high to be the id of a process in the cell."""
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
    # Without a user namespace an ordinary user cannot empty the bounding set, but gains nothing from it either.
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
    """Whether the kernel limits processes. Otherwise a cell is ended for having too many."""
    return bool(bench.facts["mode"] != "plain user")


# -- the cache


def _key(bench: Bench) -> dict[str, Any]:
    here = Path(__file__).parents[2]
    trees = (tree for folder in ("supervisor", "guest", "walls") for tree in os.walk(here / folder))
    code = (os.path.join(folder, name) for folder, _, names in trees for name in names if name.endswith(".py"))
    newest = max(os.stat(path).st_mtime_ns for path in code)
    boot = Path("/proc/sys/kernel/random/boot_id")
    return {
        "boot": boot.read_text().strip() if boot.exists() else "",
        "kernel": os.uname().release,
        "version": __version__,
        "wall": bench.wall.name,
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
        return  # without a cache the test runs again, which is slower but just as safe
