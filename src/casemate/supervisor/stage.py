"""Where the supervisor puts cells together: a tmpfs of its own, laid over /sys.

Nobody's workspace is in /sys, the supervisor needs nothing from it (cgroups are opened
before), and it exists wherever Linux runs.
"""

from __future__ import annotations

import os

from casemate.supervisor import kernel

STAGE = "/sys"
CELL = f"{STAGE}/cell"  # where a cell assembles its root, in its own copy of the mounts
PROC = f"{STAGE}/proc"  # where a cell prepares its own /proc
SCRATCH = f"{STAGE}/scratch"  # where the broker prepares one scratch after the other
LOWER = f"{STAGE}/lower"  # where a mapped copy of a caller's folder waits to be an overlay's lower layer
ROOTS = f"{STAGE}/roots"
EMPTY = f"{STAGE}/empty"  # laid over what a cell must not see
COVERED = f"{STAGE}/covered"  # where one folder after the other gets what is laid over parts of it
COVERED_FILE = f"{STAGE}/covered-file"
BLANK, LOCKED = f"{STAGE}/blank", f"{STAGE}/locked"  # a file and a folder that nobody may read


_NOTHING_WRITABLE = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV | kernel.ATTR_NOEXEC


def prepare() -> None:
    """Mount the stage. The mount namespace must already be our own."""
    kernel.mount("stage", STAGE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=16m,nr_inodes=20000,mode=0755")
    for folder in (CELL, PROC, SCRATCH, LOWER, ROOTS, EMPTY, COVERED):
        os.mkdir(folder, 0o755)
    os.mkdir(LOCKED, 0o000)
    for file in (BLANK, COVERED_FILE):
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o000))
    _mount_empty(EMPTY)


def mount_in(folder: str) -> None:
    """At ``folder``, of a root to be, mount what a zygote's cells need of a stage, read-only."""
    tmpfs = kernel.new_mount("tmpfs", {"size": "4k", "mode": "0755"}, kernel.ATTR_NOSUID | kernel.ATTR_NODEV)
    kernel.move_mount(tmpfs, folder)
    for place in (CELL, PROC, EMPTY):
        os.mkdir(folder + place.removeprefix(STAGE), 0o755)
    _mount_empty(folder + EMPTY.removeprefix(STAGE))
    kernel.set_attributes(tmpfs, kernel.ATTR_RDONLY, recursive=False)
    os.close(tmpfs)


def _mount_empty(place: str) -> None:
    empty = kernel.new_mount("tmpfs", {"size": "4k", "mode": "0555"}, _NOTHING_WRITABLE)
    kernel.move_mount(empty, place)  # a bind of it is read-only as well
    os.close(empty)
