"""The isolation report of the docker wall: what the engine, the image and the self-test say. Pure."""

from __future__ import annotations

from typing import Any

from casemate.model.isolation import IsolationReport, Mechanism, Proof

_LAYERS = (
    "a container of its own: mount, pid, network, ipc and uts namespaces",
    "a read-only root, which is the image's",
    "no network, no capabilities, no new privileges",
    "the engine's seccomp filter, and a list of permitted system calls",
    "a user of its own, that owns nothing else on the engine's machine",
)
_SHARED = (
    "Landlock: for files there is the container alone.",
    "A user namespace, unless the engine has one: who breaks out is a user of the engine's machine, who owns nothing.",
    "An init out of reach: the supervisor in the container is the program's user, and what it says is not believed.",
)
# Cases of the self-test that gVisor does not hold, with what its report says of them.
GVISOR_WITHOUT = frozenset(
    (
        "the number of processes is limited",
        "memory of many processes together is limited",
    )
)
_GVISOR_MISSING = (
    "A limit of processes: gVisor's own tasks would count. A limit of inodes.",
    "A look at memory: the engine ends the container, at limits.memory + limits.disk + 64 MiB.",
    "Pauses: the clock of a run goes on while somebody is asked.",
)
_NOTES = ("Whoever may talk to the engine is root on its machine.",)
_LOOK = "the look of the supervisor in the container every 20 to 100 ms"


def make(facts: dict[str, Any], proofs: tuple[Proof, ...], proved_at: float) -> IsolationReport:
    """The report for an engine with ``facts``."""
    is_gvisor = str(facts["runtime"]).startswith("runsc")
    engine = f"{facts['address']}, version {facts['engine']}, runtime {facts['runtime'] or 'its usual one'}"
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
            "hard at limits.memory + limits.disk + 64 MiB, for files in the container are memory too; at limits.memory "
            "by the look",
        ),
        Mechanism("cpus", "the container's cpu quota", True, "cell"),
        Mechanism("cpu_time", f"RLIMIT_CPU, and {_LOOK}", False, "cell"),
        processes,
        Mechanism("wall", "the clock in the container, and this machine's five seconds later", True, "cell"),
        Mechanism("output", "the host's pump", True, "cell"),
        Mechanism("full_output", "the host's pump", True, "cell"),
        Mechanism("disk", "the size of each tmpfs of the container: workspace, /tmp, /dev/shm, home", False, "cell"),
        inodes,
        Mechanism("open_files", "RLIMIT_NOFILE", True, "process"),
    )  # fmt: skip
