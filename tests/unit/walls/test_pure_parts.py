"""Frames on the control pipe, resource limits, the report, and what a refusal means."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate import Limits, Proof
from casemate.supervisor.frames import MAX_FRAME, FrameError, FrameReader
from casemate.walls.native import report
from casemate.walls.native.launch import rlimits
from casemate.walls.native.refusal import Facts, explain, facts, too_old_or_foreign

MIB = 2**20
LINUX: dict[str, Any] = {"system": "linux", "kernel": (6, 1), "in_container": False, "seccomp_filtered": False,
                         "max_user_namespaces": 1000, "unprivileged_userns_clone": None,
                         "apparmor_restricts_userns": None}  # fmt: skip
GREETING: dict[str, Any] = {
    "op": "ready",
    "mode": "user",
    "landlock": 5,
    "native_init": True,
    "memory": None,
    "cpu": None,
}


@given(st.lists(st.binary(max_size=50), max_size=10), st.integers(1, 60))
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames: list[bytes], step: int) -> None:
    data = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    reader = FrameReader()
    assert [frame for at in range(0, len(data), step) for frame in reader.feed(data[at : at + step])] == frames


@given(st.binary(max_size=100))
def test_any_bytes_are_frames_or_a_frame_error(data: bytes) -> None:
    try:
        assert all(isinstance(frame, bytes) for frame in FrameReader().feed(data))
    except FrameError:
        assert len(data) >= 4


def test_a_frame_beyond_the_bound_is_refused_before_it_is_read() -> None:
    with pytest.raises(FrameError):
        FrameReader().feed((MAX_FRAME + 1).to_bytes(4, "big"))
    assert FrameReader().feed(MAX_FRAME.to_bytes(4, "big") + bytes(100)) == []


def test_resource_limits_follow_the_limits() -> None:
    made = rlimits(Limits(memory="100MiB", processes=20, open_files=50, cpu_time=1.2), 512 * MIB)
    assert (made["NPROC"], made["NOFILE"], made["CPU"], made["CORE"]) == (21, 50, 3, 0)
    assert 612 * MIB <= (made["DATA"] or 0) <= 712 * MIB
    assert rlimits(Limits(), 0)["CPU"] is None


def test_the_report_says_hard_only_where_a_group_counts() -> None:
    proofs = (Proof("a", True), Proof("b", True))
    best = report.make(GREETING, proofs, 1.0)
    hard = report.make({**GREETING, "memory": "cgroup v2", "cpu": "cgroup v2"}, proofs, 1.0)
    by_name = [{one.limit: one for one in made.limits} for made in (best, hard)]
    assert [(one["memory"].hard, one["cpus"].hard) for one in by_name] == [(False, False), (True, True)]
    assert any("In a container the engine's --memory" in line for line in best.missing)
    assert hard.missing == ()
    assert best.proved
    assert not report.make(GREETING, (Proof("a", False),), 1.0).proved
    assert not report.make(GREETING, (), 1.0).proved


def test_a_kernel_without_landlock_is_said_to_lack_it() -> None:
    made = report.make({**GREETING, "landlock": 0}, (), 1.0)
    assert not any("Landlock" in layer for layer in made.layers)
    assert any("Landlock" in line for line in made.missing)


@pytest.mark.parametrize(("changed", "stage", "number", "reason"), [
    ({}, "proc", errno.EPERM, "masked_proc"),
    ({}, "user namespace", errno.ENOSPC, "userns_limit"),
    ({"max_user_namespaces": 0}, "launch", errno.EPERM, "userns_limit"),
    ({"unprivileged_userns_clone": 0}, "user namespace", errno.EPERM, "userns_disabled"),
    ({"apparmor_restricts_userns": 1}, "id maps", errno.EPERM, "apparmor"),
    ({"apparmor_restricts_userns": 1}, "namespaces", errno.EACCES, "apparmor"),
    ({"seccomp_filtered": True}, "user namespace", errno.EPERM, "seccomp"),
    ({"seccomp_filtered": True, "in_container": True}, "user namespace", errno.EPERM, "container_seccomp"),
    ({"seccomp_filtered": True, "in_container": True, "apparmor_restricts_userns": 1}, "user namespace", errno.EPERM,
     "container_seccomp"),
    ({"in_container": True}, "namespaces", errno.EACCES, "container_seccomp"),
    ({"in_container": True, "apparmor_restricts_userns": 1}, "id maps", errno.EPERM, "apparmor"),
    ({"seccomp_filtered": True}, "stage", errno.ENOSYS, "seccomp"),
    ({"seccomp_filtered": True}, "stage", errno.EIO, "refused"),
    ({}, "stage", errno.EPERM, "refused"),
])  # fmt: skip
def test_a_refusal_is_told_by_the_facts_of_the_machine(
    changed: dict[str, Any], stage: str, number: int, reason: str
) -> None:
    refusal = explain(stage, number, "words of the kernel", Facts(**{**LINUX, **changed}))
    assert refusal.reason == reason
    assert refusal.remediation


@pytest.mark.parametrize(
    ("stage", "number"), [("user namespace", errno.EPERM), ("proc", errno.EPERM), ("launch", errno.EACCES)]
)
def test_in_a_container_the_remedy_names_every_option_that_a_cell_needs(stage: str, number: int) -> None:
    inside = Facts(**{**LINUX, "seccomp_filtered": True, "in_container": True})
    remedy = explain(stage, number, "words of the kernel", inside).remediation
    options = ("seccomp=seccomp.json", "apparmor=unconfined", "systempaths=unconfined")
    assert all(f"--security-opt {option}" in remedy for option in options)


def test_a_profile_for_a_container_is_its_hosts() -> None:
    inside = Facts(**{**LINUX, "in_container": True, "apparmor_restricts_userns": 1})
    assert explain("id maps", errno.EPERM, "words of the kernel", inside).remediation.startswith("As root of the host,")


@pytest.mark.parametrize(("changed", "reason"), [
    ({"system": "win32"}, "windows"), ({"system": "darwin"}, "not_linux"), ({"wsl1": True}, "wsl1"),
    ({"missing_rights": ("SETUID",)}, "root_without_capabilities"), ({"in_cell": True}, "in_a_cell"),
    ({"kernel": (5, 13)}, "old_kernel"), ({"kernel": (4, 18)}, "old_kernel")])  # fmt: skip
def test_a_machine_that_cannot_is_told_without_a_trial(changed: dict[str, Any], reason: str) -> None:
    refusal = too_old_or_foreign(Facts(**{**LINUX, **changed}))
    assert refusal is not None
    assert refusal.reason == reason


def test_this_machine_can_be_asked() -> None:
    known = facts()
    assert known.system == "linux"
    assert known.kernel >= (5, 14)
    assert too_old_or_foreign(known) is None
    assert too_old_or_foreign(Facts(**LINUX)) is None
