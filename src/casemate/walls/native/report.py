"""The isolation report of the native wall, from the supervisor's facts and the self-test."""

from __future__ import annotations

from typing import Any

from casemate.model.isolation import IsolationReport, Mechanism, Proof
from casemate.model.limits import OUTPUT_LIMITS

_LAYERS = (
    "user, mount, pid, network, ipc, uts and cgroup namespaces",
    "a read-only root of an explicit list of binds",
    "no capabilities, no new privileges",
    "seccomp allow-list",
    "an init that cannot be traced",
)
_NOTES = ("The cell shares the kernel with the host: a kernel bug can be an escape.",)
_INTERPRETED = (
    "Cells take a few milliseconds more of processor time, because their first process is a copied interpreter: no C "
    "compiler was present when casemate was installed, or its library has another version or cannot be loaded."
)
_COUNTED = (
    "hard at limits.memory + limits.disk, because files in a cell use memory; at limits.memory by the checks, which "
    "also count TCP buffers"
)
_UNCOUNTED = (
    "memfd, System V shared memory and POSIX queues are refused; socket buffers are counted above 64 sockets; not "
    "counted are shared memory that no living process has touched, queued datagrams after the first whose senders "
    "have exited, and kernel objects"
)


def make(facts: dict[str, Any], proofs: tuple[Proof, ...], proved_at: float) -> IsolationReport:
    """Make the report for ``facts`` (the supervisor's greeting)."""
    landlock = facts["landlock"]
    return IsolationReport(
        wall="native",
        kernel_boundary="shared",
        layers=(*_LAYERS, f"Landlock (ABI {landlock})") if landlock else _LAYERS,
        missing=tuple(_missing_layers(facts)),
        proofs=proofs,
        proved_at=proved_at,
        limits=mechanisms(facts),
        notes=_NOTES if facts.get("native_init", True) else (*_NOTES, _INTERPRETED),
    )


LOOKS = "the supervisor's checks every 20 to 100 ms (every 5 s while a session's interpreter is alone and idle)"


def mechanisms(facts: dict[str, Any]) -> tuple[Mechanism, ...]:
    """The mechanism of each limit on this machine."""
    return (
        _memory(facts["memory"]),
        _cpus(facts["cpu"]),
        Mechanism("cpu_time", f"RLIMIT_CPU, and {LOOKS}", False, "cell"),
        Mechanism("processes", "RLIMIT_NPROC in the cell's own user namespace; threads count", True, "cell"),
        Mechanism("wall", "the supervisor's clock", True, "cell"),
        *(Mechanism(name, "the host's pump", True, "cell") for name in OUTPUT_LIMITS),
        Mechanism("disk", "size of the cell's tmpfs", True, "cell"),
        Mechanism("inodes", "inodes of the cell's tmpfs", True, "cell"),
        Mechanism("open_files", "RLIMIT_NOFILE", True, "process"),
    )


def _memory(mechanism: str | None) -> Mechanism:
    if mechanism:
        name = f"{mechanism}, and the supervisor's checks every 20 ms"
        return Mechanism("memory", name, True, "cell", _COUNTED)
    name = f"RLIMIT_DATA for each process, and {LOOKS}"
    return Mechanism("memory", name, False, "cell", _UNCOUNTED)


def _cpus(mechanism: str | None) -> Mechanism:
    if mechanism:
        return Mechanism("cpus", mechanism, True, "cell")
    return Mechanism("cpus", "cpu affinity, which a cell can undo", False, "cell")


def _missing_layers(facts: dict[str, Any]) -> list[str]:
    missing = []
    if not facts["landlock"]:
        missing.append("Landlock: this kernel lacks it (it needs 5.13 and CONFIG_SECURITY_LANDLOCK).")
    if not facts["memory"]:
        missing.append(
            "A memory cgroup: the memory of a whole cell is best effort. Root outside containers has one, and so has a "
            "systemd user service: systemd-run --user --scope casemate doctor. In a container the engine's --memory "
            "bounds all cells together."
        )
    return missing
