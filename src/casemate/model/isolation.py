"""The walls that can hold cells, and what held one, as measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from casemate.model.shown import Shown

if TYPE_CHECKING:
    from casemate.model.kinds import Strength
    from casemate.model.showing import Summary

STRENGTHS: tuple[Strength, ...] = ("shared-kernel-without-namespaces", "shared-kernel", "own-kernel")
LAYERS = ("namespaces", "mounts", "capabilities", "landlock", "seccomp", "rlimits", "init")


class WallTraits(NamedTuple):
    """What is known of a wall before it is loaded. What its cells lack has no default, so that no wall leaves it out.

    ``strength``: while its cells share the host's kernel; ``layers``: what holds a cell, as its plan names it;
    ``differences``: rows that a printed plan has about what is not as at the native wall. ``is_automatic``: whether
    "auto" may choose it; ``takes_image``: whether its cells are containers, whose image and runtime can be named.
    """

    strength: Strength
    layers: tuple[str, ...]
    differences: tuple[tuple[str, str], ...]
    is_automatic: bool = False
    takes_image: bool = False

    @property
    def has_namespaces(self) -> bool:
        """Whether its cells have files, a loopback and shared memory of their own."""
        return self.strength != "shared-kernel-without-namespaces"


# Strongest first, the order in which "auto" tries them.
WALLS = {
    "native": WallTraits("shared-kernel", LAYERS, (), is_automatic=True),
    "landlock": WallTraits(
        "shared-kernel-without-namespaces",
        ("landlock", "seccomp", "rlimits", "init"),
        (
            ("folders", "/workspace, /tmp and HOME have other paths on this machine; /dev/shm is closed"),
            ("/etc", "passwd, group and a few more are the machine's own"),
            ("network", "no loopback of its own: other programs can reach what listens there"),
        ),
        is_automatic=True,
    ),
    "docker": WallTraits(  # not automatic: an engine is there for something else
        "shared-kernel",
        ("container", "seccomp", "rlimits"),
        (("/usr, /etc", "those of the image"),),
        takes_image=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Mechanism:
    """How one limit is enforced.

    Attributes:
        hard: Enforced from outside the program, at the limit; otherwise measured now and then, so it can be overshot.
        per: ``"cell"`` when the sum over the cell counts, ``"process"`` when each process counts alone.
    """

    limit: str
    mechanism: str
    hard: bool
    per: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """The outcome of one self-test case, run inside a throwaway cell and judged from the host."""

    case: str
    held: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class IsolationReport(Shown):
    """Which wall held the cell and how that is known.

    Attributes:
        wall: Its name.
        kernel_boundary: ``"shared"``, ``"user-space"`` or ``"vm"``.
        layers: What was active.
        missing: What was not, in plain words.
        proofs: The cases of the self-test.
        proved_at: When that was, in seconds since 1970.
        limits: Each limit's mechanism.
        start: How the cell was made: ``"pool"`` when it was ready before the run came, ``"zygote"`` when it was forked
            for it from a warmed interpreter, ``"exec"`` when the interpreter was started for it.
        start_reason: Why so.
        notes: Anything else a reader must know.
    """

    wall: str
    kernel_boundary: str
    layers: tuple[str, ...]
    missing: tuple[str, ...]
    proofs: tuple[Proof, ...]
    proved_at: float
    limits: tuple[Mechanism, ...]
    start: str = "exec"
    start_reason: str = ""
    notes: tuple[str, ...] = ()

    @property
    def strength(self) -> Strength:
        """What a policy's `isolation.at_least` compares."""
        if self.kernel_boundary != "shared":
            return "own-kernel"
        return WALLS[self.wall].strength if self.wall in WALLS else STRENGTHS[0]

    @property
    def proved(self) -> bool:
        """Whether every case of the self-test held."""
        return bool(self.proofs) and all(proof.held for proof in self.proofs)

    def _line(self) -> str:
        proved = "proved" if self.proved else "not proved"
        missing = f", missing: {', '.join(self.missing)}" if self.missing else ""
        return f"IsolationReport {self.wall}, {proved}, kernel {self.kernel_boundary}, start {self.start}{missing}"

    def _summary(self) -> Summary:
        from casemate.model.showing import Summary

        failed = [f"{one.case}: {one.detail}" for one in self.proofs if not one.held]
        facts = (
            ("kernel", self.kernel_boundary),
            ("strength", self.strength),
            ("self-test", f"{len(self.proofs) - len(failed)} of {len(self.proofs)} cases held"),
            ("did not hold", "; ".join(failed)),
            ("layers", ", ".join(self.layers)),
            ("missing", "; ".join(self.missing)),
            (
                "limits",
                "; ".join(f"{one.limit} by {one.mechanism}{'' if one.hard else ', not hard'}" for one in self.limits),
            ),
            ("start", f"{self.start}: {self.start_reason}" if self.start_reason else self.start),
            ("notes", " ".join(self.notes)),
        )
        return Summary(f"Isolation: {self.wall}", facts, tone="good" if self.proved else "bad")


HIDDEN = "Hidden from programs"  # how the note of a report about hidden files begins
_CLOSED = ("Permission denied", "EACCES", "PermissionError")  # what programs say of a file that they may not open


def hidden_notes(notes: Iterable[str], said: str) -> list[str]:
    """The note about hidden files, where a failed program ``said`` that it may not open one."""
    return [note for note in notes if note.startswith(HIDDEN)] if any(one in said for one in _CLOSED) else []
