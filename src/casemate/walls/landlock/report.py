"""The isolation report of the landlock wall: what the facts and the self-test say. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from casemate.model.isolation import IsolationReport, Mechanism, Proof
from casemate.walls.native import report

_LAYERS = (
    "folders of its own, and a list of what else is readable",
    "no capabilities, no new privileges",
    "seccomp allow-list, with calls that the supervisor answers",
    "init out of the program's reach, which ends all of the cell",
)
_MISSING = (
    "Namespaces: the existence, sizes and owners of this machine's files and processes can be seen, though not what is "
    "in them.",
    "A network of its own: its servers on the loopback can be reached by other programs of this machine.",
    "The usual paths: a program that names /workspace or /tmp finds nothing there, or the machine's own; its working "
    "folder, HOME and TMPDIR are right.",
    "Shared memory: /dev/shm is closed, so that multiprocessing has no locks and pools.",
    "A quota: files are held to limits.disk and limits.inodes by a look now and then, each one by the kernel.",
)
_SAME_USER = "A user of its own: terminals are closed to it, and processes are counted now and then."


def make(facts: dict[str, Any], proofs: tuple[Proof, ...], proved_at: float) -> IsolationReport:
    """The report for a machine with ``facts`` (the supervisor's greeting)."""
    like_native = report.make(facts, proofs, proved_at)
    has_user = facts["mode"] == "plain root"
    user = ("a user of its own",) if has_user else ()
    return replace(
        like_native,
        wall="landlock",
        layers=(f"Landlock (ABI {facts['landlock']})", *_LAYERS, *user),
        missing=(*_MISSING, *(() if has_user else (_SAME_USER,)), *like_native.missing),
        limits=tuple(_mechanism(one, has_user=has_user) for one in like_native.limits),
    )


def _mechanism(one: Mechanism, *, has_user: bool) -> Mechanism:
    match one.limit:
        case "processes":
            counted = "RLIMIT_NPROC of the cell's own user" if has_user else report.LOOKS
            return Mechanism("processes", f"{counted}; threads count", has_user, "cell")
        case "disk":
            return Mechanism("disk", "the supervisor's look at its files, and RLIMIT_FSIZE for each", False, "cell")
        case "inodes":
            return Mechanism("inodes", "the supervisor's look at its files", False, "cell")
    return one
