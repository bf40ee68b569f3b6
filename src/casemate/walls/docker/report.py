"""The isolation report of the docker wall, from the engine, the image and the self-test."""

from __future__ import annotations

from typing import Any

from casemate.model.isolation import IsolationReport, Mechanism, Proof
from casemate.model.limits import OUTPUT_LIMITS

_LAYERS = (
    "a container of its own: mount, pid, network, ipc and uts namespaces",
    "the image as a read-only root",
    "no network, no capabilities, no new privileges",
    "the engine's seccomp filter, and a list of permitted system calls",
    "a user of its own, which owns nothing else on the engine's machine",
)
_SHARED = (
    "Landlock: only the container protects files.",
    "A user namespace, unless the engine has one: an escaped program is a user there who owns nothing.",
    "A protected init: the supervisor in the container runs as the program's user, so the host does not trust it.",
)
# Cases of the self-test that gVisor fails; the report says so.
GVISOR_WITHOUT = frozenset(
    (
        "the number of processes is limited",
        "memory of many processes together is limited",
    )
)
_GVISOR_MISSING = (
    "A limit on processes: gVisor's own tasks would count. A limit on inodes.",
    "Memory checks: the engine ends the container at limits.memory + limits.disk + 64 MiB.",
    "Pauses: a run's clock continues while it waits for an approval.",
)
_NOTES = ("A user who may talk to the engine has root's rights on its machine.",)
_LOOK = "checks by the supervisor in the container every 20 to 100 ms"


def make(facts: dict[str, Any], proofs: tuple[Proof, ...], proved_at: float) -> IsolationReport:
    """Make the report for ``facts`` of the engine and the image."""
    is_gvisor = str(facts["runtime"]).startswith("runsc")
    engine = f"{facts['address']}, version {facts['engine']}, runtime {facts['runtime'] or 'the default'}"
    kernel = (
        f"The cell has a kernel of its own, gVisor's ({facts['kernel']}), in a process of the engine's machine."
        if is_gvisor
        else "The cell shares the kernel with the engine's machine: a kernel bug can be an escape."
    )
    return IsolationReport(
        wall="docker",
        kernel_boundary="user-space" if is_gvisor else "shared",
        layers=(*_LAYERS, *(("gVisor",) if is_gvisor else ()), f"engine {engine}", f"image {facts['image']}"),
        missing=(*_GVISOR_MISSING, _SHARED[0], _SHARED[-1]) if is_gvisor else _SHARED,
        proofs=proofs,
        proved_at=proved_at,
        limits=_mechanisms(is_gvisor=is_gvisor),
        notes=(kernel, *_NOTES),
    )


def _mechanisms(*, is_gvisor: bool) -> tuple[Mechanism, ...]:
    processes, inodes = (
        (
            Mechanism("processes", "none: gVisor's own tasks would count", False, "cell"),
            Mechanism("inodes", "none: gVisor does not count them", False, "cell"),
        )
        if is_gvisor
        else (
            Mechanism("processes", "the container's pids limit", True, "cell"),
            Mechanism("inodes", "inodes of each tmpfs of the container", False, "cell"),
        )
    )
    return (
        Mechanism(
            "memory", f"the container's memory limit, and {_LOOK}", True, "cell",
            "hard at limits.memory + limits.disk + 64 MiB, because files in the container use memory; at limits.memory "
            "by the checks",
        ),
        Mechanism("cpus", "the container's cpu quota", True, "cell"),
        Mechanism("cpu_time", f"RLIMIT_CPU, and {_LOOK}", False, "cell"),
        processes,
        Mechanism("wall", "the clock in the container, and the host's five seconds later", True, "cell"),
        *(Mechanism(name, "the host's pump", True, "cell") for name in OUTPUT_LIMITS),
        Mechanism("disk", "the size of each tmpfs of the container: workspace, /tmp, /dev/shm, home", False, "cell"),
        inodes,
        Mechanism("open_files", "RLIMIT_NOFILE", True, "process"),
    )  # fmt: skip
