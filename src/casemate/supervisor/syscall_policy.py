"""Which system calls the code in a cell may make: data, with the reason for each group.

A call that is not named here gets ENOSYS, so that libc and runtimes fall back to an older call (clone3 to clone,
openat2 to openat, io_uring to epoll: their arguments are in memory, which a filter cannot read). Calls whose refusal
programs should see are forbidden and get EPERM.

Sources: the manual page of each call; asm-generic/ioctls.h, linux/sockios.h, linux/prctl.h,
linux/sched.h. The numbers below are the same on x86_64 and aarch64.
"""

from __future__ import annotations

import errno

# The filter's outcomes: 0 allows the call, -1 notifies the supervisor, any other number is the errno.
ALLOW, NOTIFY = 0, -1

ALLOWED = (
    (
        "files that are open",
        """
        read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close
        close_range dup dup2 dup3 flock fsync fdatasync sync_file_range fadvise64 readahead
        fallocate truncate ftruncate sendfile copy_file_range splice tee getdents getdents64
        fstat fstatfs
        """,
    ),
    (
        "files by name",
        """
        stat lstat newfstatat statx statfs access faccessat faccessat2 readlink readlinkat
        getcwd chdir fchdir rename renameat link linkat symlink symlinkat unlink unlinkat
        rmdir mkdir mkdirat umask utime utimes futimesat utimensat chown fchown lchown fchownat
        """,
    ),
    (
        "extended attributes; those that the kernel trusts need a capability",
        """
        setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr
        flistxattr removexattr lremovexattr fremovexattr setxattrat getxattrat listxattrat
        removexattrat
        """,
    ),
    (
        "waiting for something; the number of inotify watches is limited elsewhere, what they tell below",
        """
        poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait
        epoll_pwait2 eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime
        timerfd_gettime inotify_init inotify_init1 inotify_rm_watch pipe pipe2
        """,
    ),
    (
        "a process's own memory; V8 guards its code with protection keys",
        """
        brk mmap munmap mprotect mremap madvise mincore msync mlock mlock2 munlock mlockall
        munlockall membarrier pkey_alloc pkey_free pkey_mprotect map_shadow_stack mseal
        get_mempolicy set_mempolicy
        """,
    ),
    (
        "processes and threads; clone is checked below",
        """
        fork vfork execve execveat exit exit_group wait4 waitid getpid getppid gettid getpgid
        setpgid getpgrp getsid setsid set_tid_address set_robust_list rseq arch_prctl futex
        futex_waitv futex_wake futex_wait futex_requeue pidfd_open
        """,
    ),
    (
        "who one is; changing it can only fail, there being no capability and no other id",
        """
        getuid geteuid getgid getegid getgroups getresuid getresgid setuid setgid setreuid
        setregid setresuid setresgid setfsuid setfsgid setgroups capget capset
        """,
    ),
    (
        "signals, among the cell's own processes",
        """
        rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend
        rt_sigqueueinfo rt_tgsigqueueinfo sigaltstack kill tkill tgkill pidfd_send_signal
        pause restart_syscall
        """,
    ),
    (
        "time, read and waited for",
        """
        time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep alarm getitimer
        setitimer timer_create timer_settime timer_gettime timer_getoverrun timer_delete
        times
        """,
    ),
    (
        "scheduling and limits; more than was given needs a capability",
        """
        sched_yield sched_setparam sched_getparam sched_setscheduler sched_getscheduler
        sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_setattr
        sched_getattr sched_setaffinity sched_getaffinity getpriority setpriority ioprio_get
        ioprio_set getrlimit setrlimit prlimit64 getrusage getcpu
        """,
    ),
    ("what the machine is", "uname sysinfo getrandom"),
    (
        "sockets, once made; which may be made is checked below",
        """
        bind listen accept accept4 connect getsockname getpeername sendto sendmsg sendmmsg
        recvfrom recvmsg recvmmsg shutdown getsockopt
        """,
    ),
)

# Memory that belongs to no process and outlives it, so that only a cgroup counts it. That includes System V semaphores:
# an ipc namespace allows 32,000 sets of 32,000, 64 GB.
ALLOWED_WHEN_COUNTED = (
    ("files without a name", "memfd_create"),
    ("System V", "shmget shmat shmctl shmdt msgget msgsnd msgrcv msgctl"),
    ("System V semaphores; those of POSIX are files", "semget semop semtimedop semctl"),
    (
        "queues of POSIX",
        "mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr",
    ),
)

FORBIDDEN = (
    ("namespaces and mounts", "unshare setns mount umount2 pivot_root chroot"),
    (
        "looking into other processes",
        "ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp perf_event_open",
    ),
    (
        "parts of the kernel that many of its holes were in, without use in a cell",
        "bpf userfaultfd keyctl add_key request_key",
    ),
    (
        "a handle opens a file whatever directory hides it (Docker's escape of 2014)",
        "open_by_handle_at",
    ),
    (
        "the machine's own state",
        """
        quotactl quotactl_fd reboot swapon swapoff kexec_load kexec_file_load init_module
        finit_module delete_module clock_settime clock_adjtime settimeofday adjtimex
        sethostname setdomainname syslog acct vhangup iopl ioperm
        """,
    ),
)


ANY_BIT = "any bit"
NO_BIT = "no bit"
AMONG = "among"
NOT_AMONG = "not among"


class Condition:
    """A test of one argument. The first that applies decides the call, or its conditions ``then`` do; if none applies,
    the call is allowed. Only the low 32 bits are compared: the kernel takes these arguments as int, and a 64-bit
    comparison can be bypassed by setting an ignored bit (CVE-2019-10063)."""

    __slots__ = ("argument", "keep", "kind", "outcome", "then", "values")

    def __init__(
        self, kind: str, argument: int, values: tuple[int, ...], outcome: int, keep: int | None,
        then: tuple[Condition, ...] = (),
    ) -> None:  # fmt: skip
        self.kind = kind
        self.argument = argument
        self.values = values
        self.outcome = outcome
        self.keep = keep
        self.then = then


def any_bit(argument: int, bits: int, outcome: int) -> Condition:
    """Apply if the argument has one of these bits."""
    return Condition(ANY_BIT, argument, (bits,), outcome, None)


def no_bit(argument: int, bits: int, outcome: int) -> Condition:
    """Apply if the argument has none of these bits."""
    return Condition(NO_BIT, argument, (bits,), outcome, None)


def among(argument: int, values: tuple[int, ...], outcome: int, keep: int | None = None) -> Condition:
    """Apply if the argument, masked with ``keep``, is one of these values."""
    return Condition(AMONG, argument, values, outcome, keep)


def not_among(argument: int, values: tuple[int, ...], outcome: int, keep: int | None = None) -> Condition:
    """Apply if the argument, masked with ``keep``, is none of these values."""
    return Condition(NOT_AMONG, argument, values, outcome, keep)


# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET; NEWTIME is for clone3.
_NEW_NAMESPACES = 0x7E020000

_SET_ID = 0o6000  # S_ISUID | S_ISGID
_MAY_CREATE = 0o100 | 0o20000000  # O_CREAT | __O_TMPFILE; without them the call has no mode
_KIND_OF_FILE = 0o170000  # S_IFMT
_PLAIN_KINDS = (0, 0o100000, 0o010000, 0o140000)  # 0 and S_IFREG, S_IFIFO, S_IFSOCK
_WHITEOUT = 4  # RENAME_WHITEOUT leaves a character device

_UNIX, _INET, _INET6, NETLINK, NETLINK_ROUTE = 1, 2, 10, 16, 0
_STREAM, _DGRAM, _SEQPACKET = 1, 2, 5
_KIND_OF_SOCKET = 0xFFFFFFFF & ~(0o4000 | 0o2000000)  # less SOCK_NONBLOCK, SOCK_CLOEXEC
_DEFAULT_TCP_UDP = (0, 6, 17)
_SOL_SOCKET, _TCP = 1, 6
# SO_ATTACH_FILTER, TCP_ULP, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF and .._EBPF: no two share a number.
_SOCKET_PROGRAMS = (26, 31, 50, 51, 52)

_TIOCSTI, _TIOCLINUX, _TIOCCONS = 0x5412, 0x541C, 0x541D

# fmt: off
_IOCTLS = (
    0x5401, 0x5402, 0x5403, 0x5404,  # TCGETS, TCSETS, TCSETSW, TCSETSF
    0x5405, 0x5406, 0x5407, 0x5408,  # TCGETA, TCSETA, TCSETAW, TCSETAF
    0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D,  # TCGETS2 and so on: glibc 2.42
    0x5409, 0x5425, 0x540A, 0x540B,  # TCSBRK, TCSBRKP, TCXONC, TCFLSH
    0x540C, 0x540D, 0x80045440,  # TIOCEXCL, TIOCNXCL, TIOCGEXCL
    0x540E, 0x5422,  # TIOCSCTTY, TIOCNOTTY
    0x540F, 0x5410, 0x5429,  # TIOCGPGRP, TIOCSPGRP, TIOCGSID
    0x5413, 0x5414,  # TIOCGWINSZ, TIOCSWINSZ
    0x5424,  # TIOCGETD; TIOCSETD would load line disciplines (CVE-2017-2636)
    0x5411, 0x541B,  # TIOCOUTQ (SIOCOUTQ), FIONREAD (SIOCINQ)
    0x5420, 0x80045438,  # TIOCPKT, TIOCGPKT
    0x80045430, 0x40045431, 0x80045439,  # TIOCGPTN, TIOCSPTLCK, TIOCGPTLCK
    0x5441, 0x40045436,  # TIOCGPTPEER, TIOCSIG
    0x5421, 0x5452, 0x5450, 0x5451, 0x5460,  # FIONBIO, FIOASYNC, FIONCLEX, FIOCLEX, FIOQSIZE
    0x8901, 0x8902, 0x8903, 0x8904,  # FIOSETOWN, SIOCSPGRP, FIOGETOWN, SIOCGPGRP
    0x8905, 0x8906, 0x8907,  # SIOCATMARK, SIOCGSTAMP, SIOCGSTAMPNS
    0x8910, 0x8912, 0x8913, 0x8915,  # SIOCGIFNAME, SIOCGIFCONF, SIOCGIFFLAGS, SIOCGIFADDR
    0x8917, 0x8919, 0x891B, 0x891D,  # SIOCGIFDSTADDR, ..BRDADDR, ..NETMASK, ..METRIC
    0x8921, 0x8927, 0x8933, 0x8942,  # SIOCGIFMTU, SIOCGIFHWADDR, SIOCGIFINDEX, SIOCGIFTXQLEN
)

# PR_SET_DUMPABLE only to dumpable: the supervisor cannot measure other processes. Not PR_SET_MM (a process could fake
# its command line), PR_SET_SECCOMP, PR_SET_SPECULATION_CTRL.
_SET_DUMPABLE, _DUMPABLE = 4, 1
_PRCTLS = (
    1, 2, 3,  # PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, PR_GET_DUMPABLE
    7, 8,  # PR_GET_KEEPCAPS, PR_SET_KEEPCAPS
    15, 16,  # PR_SET_NAME, PR_GET_NAME
    21, 38, 39,  # PR_GET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS
    23, 24, 27, 47,  # PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_GET_SECUREBITS, PR_CAP_AMBIENT
    25, 29, 30,  # PR_GET_TSC, PR_SET_TIMERSLACK, PR_GET_TIMERSLACK
    34,  # PR_MCE_KILL_GET
    36, 37,  # PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER
    40,  # PR_GET_TID_ADDRESS
    41, 42,  # PR_SET_THP_DISABLE, PR_GET_THP_DISABLE
    50, 51, 54, 55, 56,  # arm: PR_SVE_SET_VL, .._GET_VL, PR_PAC_RESET_KEYS, .._TAGGED_ADDR_CTRL
    52,  # PR_GET_SPECULATION_CTRL
    63, 64,  # arm: PR_SME_SET_VL, PR_SME_GET_VL
    65, 66,  # PR_SET_MDWE, PR_GET_MDWE
    0x53564D41,  # PR_SET_VMA, which gives memory a name: glibc, V8, Go
    0x41555856,  # PR_GET_AUXV
)
# fmt: on

_PERSONALITY_IS_READ = 0xFFFFFFFF
_PERSONALITY_OF_LINUX = 0  # others turn off address randomization or allow mapping page 0


_LEASE_AND_NOTIFY = (1024, 1026)  # F_SETLEASE, F_NOTIFY
_WATCH_READERS = 0x31  # IN_ACCESS, IN_OPEN, IN_CLOSE_NOWRITE

CHECKED = (
    (
        "threads and processes, but no new namespaces",
        "clone",
        (any_bit(0, _NEW_NAMESPACES, errno.EPERM),),
    ),
    (
        "a setuid file that a cell leaves behind would be one on the host; mkdir drops these bits",
        "chmod fchmod creat",
        (any_bit(1, _SET_ID, errno.EPERM),),
    ),
    (
        "the same, where the mode comes third",
        "fchmodat fchmodat2",
        (any_bit(2, _SET_ID, errno.EPERM),),
    ),
    (
        "the same for what opens and may create",
        "open",
        (no_bit(1, _MAY_CREATE, ALLOW), any_bit(2, _SET_ID, errno.EPERM)),
    ),
    (
        "the same, at a directory",
        "openat",
        (no_bit(2, _MAY_CREATE, ALLOW), any_bit(3, _SET_ID, errno.EPERM)),
    ),
    (
        "no devices; a capability is not needed for all of them (0, 0 is a whiteout)",
        "mknod",
        (
            any_bit(1, _SET_ID, errno.EPERM),
            not_among(1, _PLAIN_KINDS, errno.EPERM, keep=_KIND_OF_FILE),
        ),
    ),
    (
        "the same, at a directory",
        "mknodat",
        (
            any_bit(2, _SET_ID, errno.EPERM),
            not_among(2, _PLAIN_KINDS, errno.EPERM, keep=_KIND_OF_FILE),
        ),
    ),
    (
        "the answer of file systems that do not know whiteouts",
        "renameat2",
        (any_bit(4, _WHITEOUT, errno.EINVAL),),
    ),
    (
        "a lease would make the host's own writers wait, a notification takes from the user's own number",
        "fcntl",
        (among(1, _LEASE_AND_NOTIFY, errno.EPERM),),
    ),
    (
        "unix, TCP and UDP, and NETLINK that lists interfaces (a supervisor limits how many: `sockets`); not"
        " PACKET, VSOCK, ALG, nor raw, ICMP, SCTP or MPTCP",
        "socket socketpair",
        (
            Condition(AMONG, 0, (NETLINK,), ALLOW, None, (not_among(2, (NETLINK_ROUTE,), errno.EAFNOSUPPORT),)),
            not_among(0, (_UNIX, _INET, _INET6), errno.EAFNOSUPPORT),
            not_among(1, (_STREAM, _DGRAM, _SEQPACKET), errno.EPERM, keep=_KIND_OF_SOCKET),
            among(0, (_UNIX,), ALLOW),
            not_among(1, (_STREAM, _DGRAM), errno.EPERM, keep=_KIND_OF_SOCKET),
            not_among(2, _DEFAULT_TCP_UDP, errno.EPROTONOSUPPORT),
        ),
    ),
    (
        "changes of a readable file may be watched, but not when the host or another cell opens or reads it",
        "inotify_add_watch",
        (any_bit(2, _WATCH_READERS, errno.EPERM),),
    ),
    (
        "no programs for the kernel to run on a socket, and no other protocol above TCP (CVE-2023-0461)",
        "setsockopt",
        (
            not_among(1, (_SOL_SOCKET, _TCP), ALLOW),
            among(2, _SOCKET_PROGRAMS, errno.EPERM),
        ),
    ),
    (
        "terminals, descriptors, sockets; no typing into the terminal (CVE-2017-5226, CVE-2023-28100)",
        "ioctl",
        (
            among(1, (_TIOCSTI, _TIOCLINUX, _TIOCCONS), errno.EPERM),
            not_among(1, _IOCTLS, errno.ENOTTY),
        ),
    ),
    (
        "what a process may set about itself",
        "prctl",
        (
            among(0, _PRCTLS, ALLOW),
            not_among(0, (_SET_DUMPABLE,), errno.EINVAL),
            not_among(1, (_DUMPABLE,), errno.EINVAL),
        ),
    ),
    (
        "it may be read, and left as it is",
        "personality",
        (not_among(0, (_PERSONALITY_IS_READ, _PERSONALITY_OF_LINUX), errno.EPERM),),
    ),
)
