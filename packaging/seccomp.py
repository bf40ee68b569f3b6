"""Writes seccomp.json, with which an engine lets the native wall stand: `python packaging/seccomp.py`.

It permits what Docker's default profile permits a container without capabilities, on x86-64 and aarch64, and for each
reason in `_ADDED` what the native wall needs besides. All of it is for casemate's own processes: a cell's own filter
takes these calls away again before its program begins.

The form is that of the OCI runtime specification, without what only Docker and Podman read (architectures, capabilities
and kernels that a rule is for): containerd, and so Kubernetes, would apply such a rule without its condition.

Facts: Docker's default profile, as its documentation and github.com/moby/profiles have it in 2026.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from casemate.supervisor.kernel import CLONE_NEWNET, CLONE_NEWNS
from casemate.supervisor.syscall_numbers import MACHINES, numbers

FILE = Path(__file__).with_name("seccomp.json")

# What the engine refuses a container without capabilities. Calls that casemate has no number for are refused, too.
_REFUSED = """
    _sysctl acct add_key afs_syscall bpf chroot clock_settime create_module delete_module fanotify_init file_getattr
    file_setattr finit_module fsconfig fsmount fsopen fspick get_kernel_syms get_mempolicy getpmsg init_module
    io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie
    lsm_get_self_attr lsm_list_modules lsm_set_self_attr mbind migrate_pages mount mount_setattr move_mount move_pages
    nfsservctl open_by_handle_at open_tree open_tree_attr perf_event_open pidfd_getfd pivot_root process_madvise
    putpmsg query_module quotactl quotactl_fd reboot request_key security set_mempolicy set_mempolicy_home_node
    setdomainname sethostname setns settimeofday swapoff swapon sysfs syslog tuxcall umount2 unshare uselib userfaultfd
    ustat vhangup vserver
"""
_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET; not NEWTIME
_ALL_BITS = (1 << 64) - 1


def _first_is(value: int) -> dict[str, Any]:
    return {"index": 0, "value": value, "op": "SCMP_CMP_EQ"}


# Only their first arguments are looked at; a rule holds where one of these is met.
_CONDITIONAL = {
    "personality": [_first_is(one) for one in (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)],  # usual ones, and asking
    "socket": [_first_is(family) for family in (1, 2, 10, 16)],  # unix, internet of both versions, netlink
}

_ADDED: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "clone": ("a process of a cell starts in a user and a process namespace of its own", []),
    "unshare": (
        "the supervisor and each cell enter namespaces of their own: of any kind but time",
        [{"index": 0, "value": _ALL_BITS ^ _NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
    ),
    "setns": (
        "the supervisor opens listeners in a cell's network, and shows files to a cell that waits",
        [{"index": 1, "value": kind, "op": "SCMP_CMP_EQ"} for kind in (CLONE_NEWNS, CLONE_NEWNET)],
    ),
    "mount": ("a cell has a /proc and a /dev/pts of its own", []),
    "umount2": ("what a cell was made with is taken away again, and the old root", []),
    "pivot_root": ("a cell's root is a small tree of its own", []),
    "open_tree": ("system folders, packages and a workspace are shown to a cell, each as a mount of its own", []),
    "move_mount": ("these mounts are put into their places", []),
    "mount_setattr": ("these mounts are read-only, without devices and set-user-id programs", []),
    "fsopen": ("what a cell writes to is a file system in memory, of a fixed size, made for it", []),
    "fsconfig": ("its size", []),
    "fsmount": ("its mount", []),
    "fspick": ("its size is set anew for the next program", []),
    "sethostname": ("a cell's host name is not the container's", []),
}


def profile() -> dict[str, Any]:
    """The profile, as in the file."""
    known = {name for machine in MACHINES for name in numbers(machine)} | {"uretprobe"}  # x86-64 alone has that
    plain = known - set(_REFUSED.split()) - set(_CONDITIONAL) - set(_ADDED) - {"clone3"}
    rules = [_rule(plain, "what engines permit by default")]
    for name, conditions in _CONDITIONAL.items():
        rules += [_rule({name}, "what engines permit by default", [condition]) for condition in conditions]
    for name, (reason, conditions) in _ADDED.items():
        rules += [_rule({name}, reason, [condition]) for condition in conditions] or [_rule({name}, reason)]
    refusal = {
        "action": "SCMP_ACT_ERRNO",
        "errnoRet": errno.ENOSYS,
    }
    rules.append({"names": ["clone3"], **refusal, "comment": "what engines refuse by default"})
    return {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": errno.EPERM, "syscalls": rules}


def _rule(names: set[str], reason: str, conditions: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    arguments = {"args": list(conditions)} if conditions else {}
    return {"names": sorted(names), "action": "SCMP_ACT_ALLOW", **arguments, "comment": reason}


if __name__ == "__main__":
    FILE.write_text(json.dumps(profile(), indent=1) + "\n")
