"""The isolation report of the landlock wall, from the supervisor's facts and the self-test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from casemate.model.isolation import IsolationReport, Mechanism, Proof
from casemate.walls.native import report

_LAYERS = (
    "private folders, and a list of other readable paths",
    "no capabilities, no new privileges",
    "seccomp allow-list, and some calls answered by the supervisor",
    "an init that the program cannot reach and that ends the whole cell",
)
_MISSING = (
    "Namespaces: a cell can see that this machine's files and processes exist, their sizes and owners, but not their "
    "contents.",
    "A private network: other programs on this machine can reach the cell's servers on the loopback.",
    "The usual paths: /workspace and /tmp are missing or the machine's own; the working folder, HOME and TMPDIR are "
    "right.",
    "Shared memory: /dev/shm is closed, so multiprocessing has no locks or pools.",
    "A quota: limits.disk and limits.inodes are checked at intervals; the kernel limits only the size of each file.",
)
_SAME_USER = "A user of its own: terminals are closed to the cell, and its processes are counted at intervals."


def make(facts: dict[str, Any], proofs: tuple[Proof, ...], proved_at: float) -> IsolationReport:
    """Make the report for ``facts`` (the supervisor's greeting)."""
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
            return Mechanism("disk", "the supervisor's checks of its files, and RLIMIT_FSIZE for each", False, "cell")
        case "inodes":
            return Mechanism("inodes", "the supervisor's checks of its files", False, "cell")
    return one
