"""The stage, where the supervisor assembles cells: a tmpfs over /sys.

/sys exists wherever Linux runs and holds no workspace. The supervisor needs nothing from it: it opens cgroups first.
"""

from __future__ import annotations

import os

from casemate.supervisor import kernel

STAGE = "/sys"
CELL = f"{STAGE}/cell"  # where a cell assembles its root, in its own mount namespace
PROC = f"{STAGE}/proc"  # where a cell prepares its own /proc
SCRATCH = f"{STAGE}/scratch"  # where the supervisor prepares one scratch at a time
LOWER = f"{STAGE}/lower"  # an id-mapped caller's folder, while it becomes an overlay's lower layer
ROOTS = f"{STAGE}/roots"
EMPTY = f"{STAGE}/empty"  # mounted over folders that a cell must not see
COVERED = f"{STAGE}/covered"  # where one folder at a time gets its covers
COVERED_FILE = f"{STAGE}/covered-file"
BLANK, LOCKED = f"{STAGE}/blank", f"{STAGE}/locked"  # a file and a folder without any permission


_NOTHING_WRITABLE = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV | kernel.ATTR_NOEXEC


def prepare() -> None:
    """Mount the stage. The supervisor must already have its own mount namespace."""
    kernel.mount("stage", STAGE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=16m,nr_inodes=20000,mode=0755")
    for folder in (CELL, PROC, SCRATCH, LOWER, ROOTS, EMPTY, COVERED):
        os.mkdir(folder, 0o755)
    os.mkdir(LOCKED, 0o000)
    for file in (BLANK, COVERED_FILE):
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o000))
    _mount_empty(EMPTY)


def mount_in(folder: str) -> None:
    """Mount at ``folder``, in a zygote's future root, the read-only parts of a stage that its cells need."""
    tmpfs = kernel.new_mount("tmpfs", {"size": "4k", "mode": "0755"}, kernel.ATTR_NOSUID | kernel.ATTR_NODEV)
    kernel.move_mount(tmpfs, folder)
    for place in (CELL, PROC, EMPTY):
        os.mkdir(folder + place.removeprefix(STAGE), 0o755)
    _mount_empty(folder + EMPTY.removeprefix(STAGE))
    kernel.set_attributes(tmpfs, kernel.ATTR_RDONLY, recursive=False)
    os.close(tmpfs)


def _mount_empty(place: str) -> None:
    empty = kernel.new_mount("tmpfs", {"size": "4k", "mode": "0555"}, _NOTHING_WRITABLE)
    kernel.move_mount(empty, place)  # its bind mounts are read-only as well
    os.close(empty)
