"""The filter as a program, for both machines: what each call is answered."""

from __future__ import annotations

import errno
import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.supervisor.bpf_machine import ALLOWED, ARCHITECTURES, answer, run, seccomp_data

from casemate.supervisor import seccomp
from casemate.supervisor import syscall_policy as policy
from casemate.supervisor.syscall_numbers import MACHINES, numbers

EPERM, ENOSYS, EINVAL, ENOTTY = errno.EPERM, errno.ENOSYS, errno.EINVAL, errno.ENOTTY
GARBAGE = 0xFFFF_FFFF_FFFF_FFFF
HIGH = 1 << 32  # a bit that the kernel ignores in an int

SETUID, SETGID = 0o4755, 0o2755
O_CREAT, O_WRONLY, O_TMPFILE = 0o100, 0o1, 0o20000000
S_IFREG, S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK = 0o100000, 0o010000, 0o140000, 0o020000, 0o060000
UNIX, INET, INET6, NETLINK, PACKET, ALG, VSOCK = 1, 2, 10, 16, 17, 38, 40
STREAM, DGRAM, RAW, SEQPACKET = 1, 2, 3, 5
NONBLOCK, CLOEXEC = 0o4000, 0o2000000

Case = tuple[str, tuple[int, ...], int | str]


def judged(machine: str, name: str, *arguments: int, memory_is_counted: bool = False) -> int | str:
    program = seccomp.program(machine, memory_is_counted=memory_is_counted)
    return answer(program, seccomp_data(ARCHITECTURES[machine], numbers(machine)[name], *arguments))


def check(case: Case) -> None:
    """The same outcome on every machine that has the call; at least one has it."""
    name, arguments, outcome = case
    outcomes = {machine: judged(machine, name, *arguments) for machine in MACHINES if name in numbers(machine)}
    assert outcomes == dict.fromkeys(outcomes, outcome), case
    assert outcomes, case


def names_in(groups: tuple[tuple[str, str], ...]) -> list[str]:
    return [name for _, names in groups for name in names.split()]


EVERY_NAME = [
    *names_in(policy.ALLOWED),
    *names_in(policy.ALLOWED_WHEN_COUNTED),
    *names_in(policy.FORBIDDEN),
    *(name for _, names, _ in policy.CHECKED for name in names.split()),
]

# -------------------------------------------------------------------------- numbers and names


def header_numbers(path: str) -> dict[str, int]:
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", Path(path).read_text(encoding="ascii"), re.MULTILINE)
    return {name: int(number) for name, number in found}


@pytest.mark.parametrize(
    ("machine", "path"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_every_number_is_that_of_the_kernels_headers(machine: str, path: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"needs the kernel's headers: {path}")
    header = header_numbers(path)
    header.update(newfstatat=header.get("newfstatat", header.get("fstatat", -1)))
    table = numbers(machine)

    assert {name: number for name, number in table.items() if header.get(name, number) != number} == {}
    oldest_that_may_be_missing = 451  # the headers may be those of any kernel from 6.1 on
    assert {
        name for name, number in table.items() if name not in header and number < oldest_that_may_be_missing
    } == set()


@pytest.mark.parametrize(
    ("name", "x86_64", "aarch64"),
    [
        ("read", 0, 63),
        ("openat", 257, 56),
        ("clone", 56, 220),
        ("execve", 59, 221),
        ("ioctl", 16, 29),
        ("seccomp", 317, 277),
        ("rseq", 334, 293),
        ("statx", 332, 291),
        ("clone3", 435, 435),
        ("futex_waitv", 449, 449),
        ("fchmodat2", 452, 452),
        ("mseal", 462, 462),
        ("removexattrat", 466, 466),
    ],
)
def test_well_known_numbers_are_right(name: str, x86_64: int, aarch64: int) -> None:
    assert (numbers("x86_64")[name], numbers("aarch64")[name]) == (x86_64, aarch64)


def test_no_two_names_share_a_number() -> None:
    for machine in MACHINES:
        assert [n for n, count in Counter(numbers(machine).values()).items() if count > 1] == []


def test_every_name_in_the_policy_is_a_system_call_and_named_once() -> None:
    assert [name for name in EVERY_NAME if not any(name in numbers(machine) for machine in MACHINES)] == []
    assert [name for name, count in Counter(EVERY_NAME).items() if count > 1] == []


def test_a_machine_without_tables_is_refused() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.program("riscv64", memory_is_counted=True)


# ----------------------------------------------------------------------- by the number alone

DO_NOT_EXIST = """
clone3 openat2 io_uring_setup io_uring_enter io_uring_register io_setup io_submit seccomp
landlock_create_ruleset landlock_add_rule landlock_restrict_self name_to_handle_at fanotify_init
fanotify_mark modify_ldt lookup_dcookie memfd_secret process_madvise process_mrelease move_mount
open_tree open_tree_attr fsopen fsconfig fsmount fspick mount_setattr remap_file_pages statmount
listmount move_pages migrate_pages uselib create_module _sysctl file_setattr get_robust_list vmsplice sync syncfs
mbind set_mempolicy_home_node
"""

FORBIDDEN = """
unshare setns mount umount2 pivot_root chroot ptrace process_vm_readv process_vm_writev pidfd_getfd
kcmp bpf perf_event_open keyctl add_key request_key userfaultfd open_by_handle_at quotactl quotactl_fd
reboot swapon swapoff kexec_load kexec_file_load init_module finit_module delete_module clock_settime
clock_adjtime settimeofday adjtimex sethostname setdomainname syslog acct vhangup iopl ioperm
"""

NEEDED = """
read write close fork vfork execve execveat wait4 futex futex_waitv futex_wake rseq set_robust_list
restart_syscall rt_sigreturn pidfd_open pidfd_send_signal rt_tgsigqueueinfo signalfd4 epoll_pwait2 eventfd2
timerfd_create statx newfstatat pkey_alloc pkey_mprotect membarrier madvise mlock2 mremap splice tee
sendfile copy_file_range fallocate flock setxattr fgetxattr inotify_init1 sched_setaffinity sched_setattr
setpriority prlimit64 getrandom close_range faccessat2 setitimer times getcpu setuid setgroups
capset arch_prctl accept4 sendmmsg renameat getdents64 fcntl mseal map_shadow_stack setxattrat
"""

COUNTED = """
memfd_create shmget shmat shmctl shmdt msgget msgsnd msgrcv msgctl semget semop semtimedop semctl
mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
"""


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("counted", [False, True])
def test_what_is_not_named_does_not_exist(machine: str, counted: bool) -> None:
    program = seccomp.program(machine, memory_is_counted=counted)
    named = {numbers(machine)[name] for name in EVERY_NAME if name in numbers(machine)}
    unnamed = [number for number in (*range(1024), 0x3FFF_FFFF, 0xFFFF_FFFF) if number not in named]

    outcomes = {number: answer(program, seccomp_data(ARCHITECTURES[machine], number)) for number in unnamed}
    assert outcomes == dict.fromkeys(unnamed, ENOSYS)


@pytest.mark.parametrize(("names", "arguments", "outcome"), [
    pytest.param(DO_NOT_EXIST, (0, 0, 0), ENOSYS, id="what a filter cannot look into, or nobody needs, does not exist"),
    pytest.param(FORBIDDEN, (0, 0, 0), EPERM, id="what programs had better learn is forbidden is EPERM"),
    pytest.param(NEEDED, (GARBAGE, GARBAGE, GARBAGE), ALLOWED, id="what honest programs need is allowed"),
])  # fmt: skip
def test_a_call_is_answered_by_its_name(names: str, arguments: tuple[int, ...], outcome: int | str) -> None:
    for name in names.split():
        check((name, arguments, outcome))


@pytest.mark.parametrize("machine", MACHINES)
def test_memory_that_outlives_its_process_needs_somebody_who_counts_it(machine: str) -> None:
    for name in COUNTED.split():
        assert judged(machine, name, memory_is_counted=False) == ENOSYS, name
        assert judged(machine, name, memory_is_counted=True) == ALLOWED, name


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("architecture", [0x40000003, 0x40000028, 0xC000003E, 0xC00000B7, 0x80000016, 0])
def test_the_calls_of_another_architecture_do_not_exist(machine: str, architecture: int) -> None:
    if architecture == ARCHITECTURES[machine]:
        return
    program = seccomp.program(machine, memory_is_counted=True)

    outcomes = {answer(program, seccomp_data(architecture, number)) for number in range(600)}
    assert outcomes == {ENOSYS}


def test_the_calls_of_x32_do_not_exist() -> None:
    program = seccomp.program("x86_64", memory_is_counted=True)

    for number in (*range(0x40000000, 0x40000000 + 600), 0x7FFF_FFFF, 0xC0000000, 0xFFFF_FFFF):
        assert answer(program, seccomp_data(ARCHITECTURES["x86_64"], number)) == ENOSYS, hex(number)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_program_is_short_and_quick(machine: str) -> None:
    program = seccomp.program(machine, memory_is_counted=False)
    lengths = [run(program, seccomp_data(ARCHITECTURES[machine], number, 1, 1))[1] for number in range(600)]

    assert len(program) % 8 == 0
    assert len(program) // 8 < 400
    assert max(lengths) < 40


# --------------------------------------------------------------------------- by the arguments

SETTERS_OF_BITS: list[tuple[str, tuple[int, ...]]] = [
    ("chmod", (0,)),
    ("fchmod", (3,)),
    ("fchmodat", (0, 0)),
    ("fchmodat2", (0, 0)),
    ("creat", (0,)),
    ("mknod", (0,)),
    ("mknodat", (0, 0)),
    ("open", (0, O_CREAT | O_WRONLY)),
    ("open", (0, O_TMPFILE | O_WRONLY)),
    ("openat", (0, 0, O_CREAT | O_WRONLY)),
    ("openat", (0, 0, O_TMPFILE | O_WRONLY)),
]


SOCKETS: list[tuple[int, int, int, int | str]] = [
    *((UNIX, kind, 0, ALLOWED) for kind in (STREAM, DGRAM, SEQPACKET)),
    *((family, kind, 0, ALLOWED) for family in (INET, INET6) for kind in (STREAM, DGRAM)),
    (INET, STREAM | NONBLOCK | CLOEXEC, 6, ALLOWED),
    (INET6, DGRAM | CLOEXEC, 17, ALLOWED),
    *((family, DGRAM, 0, errno.EAFNOSUPPORT) for family in (0, 3, 9, PACKET, 29, ALG, VSOCK, 44)),
    *((NETLINK, kind, HIGH, ALLOWED) for kind in (RAW, DGRAM, RAW | CLOEXEC)),  # of which a supervisor is asked
    *((HIGH | NETLINK, RAW, other, errno.EAFNOSUPPORT) for other in (1, 4, 9, 12, 15, 16, HIGH | 6)),
    *((family, RAW, 0, EPERM) for family in (UNIX, INET, INET6)),
    (INET, RAW | CLOEXEC, 1, EPERM),
    (INET, SEQPACKET, 132, EPERM),
    (INET, 6, 33, EPERM),  # DCCP
    (INET, STREAM | 0x40, 0, EPERM),
    *((INET, STREAM, protocol, errno.EPROTONOSUPPORT) for protocol in (262, 132)),  # MPTCP, SCTP
    *((INET, DGRAM, protocol, errno.EPROTONOSUPPORT) for protocol in (1, 136)),  # ICMP, UDP-Lite
    (INET6, DGRAM, 58, errno.EPROTONOSUPPORT),
]
IOCTLS: dict[int | str, tuple[int, ...]] = {
    EPERM: (0x5412, 0x541C, 0x541D, HIGH | 0x5412),  # TIOCSTI, TIOCLINUX, TIOCCONS
    ALLOWED: (
        *range(0x5401, 0x540C),  # the terminal's settings
        *(0x540E, 0x540F, 0x5410, 0x5413, 0x5414, 0x541B, 0x5411, 0x5421),
        *(0x5450, 0x5451, 0x80045430, 0x40045431, 0x5441, 0x802C542A),
        *(0x8910, 0x8912, 0x8913, 0x8915, 0x8927, 0x8933),
        HIGH | 0x5401,  # the kernel does not look there either
    ),
    # TIOCSETD, SIOCSIFFLAGS, SIOCSIFADDR, SIOCGSKNS (the namespace of a socket), NS_GET_USERNS, FS_IOC_SETFLAGS,
    # FS_IOC_FIEMAP, FICLONE (which falls back to copy_file_range), VT_OPENQRY, KVM_GET_API_VERSION
    ENOTTY: (0x5423, 0x8914, 0x8916, 0x894C, 0xB701, 0x40086602, 0xC020660B, 0x40049409, 0x5600, 0xAE00, 0),
}
CLONES: dict[int | str, tuple[int, ...]] = {
    ALLOWED: (17, 0x3D0F00, 0x4111, 0x1200011),  # SIGCHLD: fork; a thread of glibc; vfork; fork of glibc
    # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
    EPERM: (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, HIGH | 0x10000011),
}
PRCTLS: dict[int | str, tuple[int, ...]] = {
    ALLOWED: (1, 2, 3, 15, 16, 21, 23, 36, 38, 39, 41, 47, 0x53564D41),
    EINVAL: (4, 22, 28, 33, 35, 53, 59, 62, 0x59616D61, 0, 9999, HIGH | 4),
}
PERSONAS: dict[int | str, tuple[int, ...]] = {
    ALLOWED: (0xFFFF_FFFF, GARBAGE, 0),
    EPERM: (0x0040000, 0x0100000, 8),
}
KINDS: dict[int | str, tuple[int, ...]] = {ALLOWED: (0, S_IFREG, S_IFIFO, S_IFSOCK), EPERM: (S_IFCHR, S_IFBLK)}
SETUID_MODES = (0o4000, 0o2000, 0o6000, 0o4755, 0o2775, 0o7777, HIGH | 0o4755)
PLAIN_MODES = (0, 0o644, 0o755, 0o777, 0o1777)


def each(values: dict[int | str, tuple[int, ...]]) -> Iterator[tuple[int, int | str]]:
    return ((value, outcome) for outcome, group in values.items() for value in group)


BY_ARGUMENTS: dict[str, list[Case]] = {
    "a setuid bit is refused by every call that could set one": [
        (name, (*before, mode), EPERM) for name, before in SETTERS_OF_BITS for mode in SETUID_MODES
    ],
    "a folder is made, of whose mode the kernel drops these bits": [
        (name, (*before, 0o2755), ALLOWED) for name, before in (("mkdir", (0,)), ("mkdirat", (0, 0)))
    ],
    "any other mode is allowed": [
        (name, (*before, mode), ALLOWED) for name, before in SETTERS_OF_BITS for mode in PLAIN_MODES
    ],
    "an open that creates nothing has no mode to look at": [
        ("open", (0, 0, GARBAGE), ALLOWED),
        ("openat", (0, 0, 0o2, GARBAGE), ALLOWED),
    ],
    "only files, fifos and sockets can be made": [
        *(("mknod", (0, kind | 0o600, 0), outcome) for kind, outcome in each(KINDS)),
        *(("mknodat", (0, 0, kind | 0o600, 0), outcome) for kind, outcome in each(KINDS)),
    ],
    "a rename leaves no whiteout": [
        ("renameat2", (0, 0, 0, 0, flags), outcome) for flags, outcome in each({ALLOWED: (0, 1, 2), EINVAL: (4, 5)})
    ],
    "threads and processes get no new namespaces": [
        ("clone", (flags, 0, 0, 0, 0), outcome) for flags, outcome in each(CLONES)
    ],
    "sockets are unix, TCP or UDP": [
        (name, (family, kind, protocol), outcome)
        for name in ("socket", "socketpair")
        for family, kind, protocol, outcome in SOCKETS
    ],
    "no socket gets a program for the kernel, and TCP no protocol above it": [
        *(("setsockopt", (3, level, name), EPERM) for level, name in ((1, 26), (1, 50), (1, 51), (1, 52), (6, 31))),
        ("setsockopt", (3, HIGH | 1, HIGH | 26), EPERM),
        *(("setsockopt", (3, level, name), ALLOWED) for level, name in ((1, 2), (1, 15), (6, 1), (6, 9), (41, 26))),
    ],
    "ioctl is for terminals, descriptors and reading interfaces": [
        ("ioctl", (0, request, 0), outcome) for request, outcome in each(IOCTLS)
    ],
    "prctl sets nothing that hides a process or loosens it": [
        ("prctl", (option, 0, 0, 0, 0), outcome) for option, outcome in each(PRCTLS)
    ],
    "personality is read or left as it is": [
        ("personality", (persona,), outcome) for persona, outcome in each(PERSONAS)
    ],
}


@pytest.mark.parametrize("promise", BY_ARGUMENTS)
def test_a_call_is_answered_by_its_arguments(promise: str) -> None:
    for case in BY_ARGUMENTS[promise]:
        check(case)


def test_the_interpreter_refuses_what_the_kernel_would_refuse() -> None:
    with pytest.raises(AssertionError, match="does not take"):
        run(struct.pack("=HBBI", 0x30, 0, 0, 0), b"")  # load a byte
