"""System call numbers of the supported machines.

Sources: `asm/unistd_64.h` (x86_64) and `asm-generic/unistd.h` (aarch64) of Linux 6.1;
later calls are given by their numbers, which are the same on both machines.

A line holds the number of its first name; each further name counts one up. The tables are text, because text loads and
parses faster than two dict literals of 300 entries.
"""

from __future__ import annotations

_X86_64 = """
0 read write open close stat fstat lstat poll lseek mmap
10 mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn ioctl pread64 pwrite64
19 readv
20 writev access pipe select sched_yield mremap msync mincore madvise shmget
30 shmat shmctl dup dup2 pause nanosleep getitimer alarm setitimer getpid
40 sendfile socket connect accept sendto recvfrom sendmsg recvmsg shutdown bind
50 listen getsockname getpeername socketpair setsockopt getsockopt clone fork vfork
59 execve
60 exit wait4 kill uname semget semop semctl shmdt msgget msgsnd
70 msgrcv msgctl fcntl flock fsync fdatasync truncate ftruncate getdents getcwd
80 chdir fchdir rename mkdir rmdir creat link unlink symlink readlink
90 chmod fchmod chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo
100 times ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid
110 getppid getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid
119 setresgid
120 getresgid getpgid setfsuid setfsgid getsid capget capset rt_sigpending
128 rt_sigtimedwait rt_sigqueueinfo
130 rt_sigsuspend sigaltstack utime mknod uselib personality ustat statfs fstatfs sysfs
140 getpriority setpriority sched_setparam sched_getparam sched_setscheduler
145 sched_getscheduler sched_get_priority_max sched_get_priority_min
148 sched_rr_get_interval mlock
150 munlock mlockall munlockall vhangup modify_ldt pivot_root _sysctl prctl arch_prctl
159 adjtimex
160 setrlimit chroot sync acct settimeofday mount umount2 swapon swapoff reboot
170 sethostname setdomainname iopl ioperm create_module init_module delete_module
177 get_kernel_syms query_module quotactl
180 nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid readahead setxattr
189 lsetxattr
190 fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr
198 lremovexattr fremovexattr
200 tkill time futex sched_setaffinity sched_getaffinity set_thread_area io_setup
207 io_destroy io_getevents io_submit
210 io_cancel get_thread_area lookup_dcookie epoll_create epoll_ctl_old epoll_wait_old
216 remap_file_pages getdents64 set_tid_address restart_syscall
220 semtimedop fadvise64 timer_create timer_settime timer_gettime timer_getoverrun
226 timer_delete clock_settime clock_gettime clock_getres
230 clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes vserver mbind
238 set_mempolicy get_mempolicy
240 mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load
247 waitid add_key request_key
250 keyctl ioprio_set ioprio_get inotify_init inotify_add_watch inotify_rm_watch
256 migrate_pages openat mkdirat mknodat
260 fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat
269 faccessat
270 pselect6 ppoll unshare set_robust_list get_robust_list splice tee sync_file_range
278 vmsplice move_pages
280 utimensat epoll_pwait signalfd timerfd_create eventfd fallocate timerfd_settime
287 timerfd_gettime accept4 signalfd4
290 eventfd2 epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo
298 perf_event_open recvmmsg
300 fanotify_init fanotify_mark prlimit64 name_to_handle_at open_by_handle_at
305 clock_adjtime syncfs sendmmsg setns getcpu
310 process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr
316 renameat2 seccomp getrandom memfd_create
320 kexec_file_load bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2
328 pwritev2 pkey_mprotect
330 pkey_alloc pkey_free statx io_pgetevents rseq
"""

# There is no open, fork, chmod or their like: only the *at family and clone.
_AARCH64 = """
0 io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr
8 getxattr lgetxattr
10 fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr
17 getcwd lookup_dcookie eventfd2
20 epoll_create1 epoll_ctl epoll_pwait dup dup3 fcntl inotify_init1 inotify_add_watch
28 inotify_rm_watch ioctl
30 ioprio_set ioprio_get flock mknodat mkdirat unlinkat symlinkat linkat renameat
39 umount2
40 mount pivot_root nfsservctl statfs fstatfs truncate ftruncate fallocate faccessat
49 chdir
50 fchdir chroot fchmod fchmodat fchownat fchown openat close vhangup pipe2
60 quotactl getdents64 lseek read write readv writev pread64 pwrite64 preadv
70 pwritev sendfile pselect6 ppoll signalfd4 vmsplice splice tee readlinkat newfstatat
80 fstat sync fsync fdatasync sync_file_range timerfd_create timerfd_settime
87 timerfd_gettime utimensat acct
90 capget capset personality exit exit_group waitid set_tid_address unshare futex
99 set_robust_list
100 get_robust_list nanosleep getitimer setitimer kexec_load init_module delete_module
107 timer_create timer_gettime timer_getoverrun
110 timer_settime timer_delete clock_settime clock_gettime clock_getres clock_nanosleep
116 syslog ptrace sched_setparam sched_setscheduler
120 sched_getscheduler sched_getparam sched_setaffinity sched_getaffinity sched_yield
125 sched_get_priority_max sched_get_priority_min sched_rr_get_interval restart_syscall
129 kill
130 tkill tgkill sigaltstack rt_sigsuspend rt_sigaction rt_sigprocmask rt_sigpending
137 rt_sigtimedwait rt_sigqueueinfo rt_sigreturn
140 setpriority getpriority reboot setregid setgid setreuid setuid setresuid getresuid
149 setresgid
150 getresgid setfsuid setfsgid times setpgid getpgid getsid setsid getgroups setgroups
160 uname sethostname setdomainname getrlimit setrlimit getrusage umask prctl getcpu
169 gettimeofday
170 settimeofday adjtimex getpid getppid getuid geteuid getgid getegid gettid sysinfo
180 mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget msgctl
188 msgrcv msgsnd
190 semget semctl semtimedop semop shmget shmctl shmat shmdt socket socketpair
200 bind listen accept connect getsockname getpeername sendto recvfrom setsockopt
209 getsockopt
210 shutdown sendmsg recvmsg readahead brk munmap mremap add_key request_key keyctl
220 clone execve mmap fadvise64 swapon swapoff mprotect msync mlock munlock
230 mlockall munlockall mincore madvise remap_file_pages mbind get_mempolicy
237 set_mempolicy migrate_pages move_pages
240 rt_tgsigqueueinfo perf_event_open accept4 recvmmsg
260 wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at
266 clock_adjtime syncfs setns sendmmsg
270 process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr
276 renameat2 seccomp getrandom memfd_create
280 bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2
288 pkey_mprotect pkey_alloc
290 pkey_free statx io_pgetevents rseq kexec_file_load
"""

# Since Linux 5.1 a new call has one number everywhere.
_EVERYWHERE = """
424 pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree
429 move_mount
430 fsopen fsconfig fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd
439 faccessat2
440 process_madvise epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset
445 landlock_add_rule landlock_restrict_self memfd_secret process_mrelease futex_waitv
450 set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait
456 futex_requeue statmount listmount lsm_get_self_attr
460 lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat
466 removexattrat open_tree_attr file_getattr file_setattr
"""

_OWN = {"x86_64": _X86_64, "aarch64": _AARCH64}

MACHINES = tuple(_OWN)
"""What `os.uname().machine` may say for casemate to have a filter."""


def numbers(machine: str) -> dict[str, int]:
    """Name to number, for a machine as `os.uname().machine` names it. Raises ValueError without a table for it."""
    if machine not in _OWN:
        raise ValueError(f"no table of system calls for the machine {machine!r}")
    table: dict[str, int] = {}
    for line in (_OWN[machine] + _EVERYWHERE).split("\n"):
        first, *names = line.split() or ["0"]
        table.update(zip(names, range(int(first), int(first) + len(names)), strict=True))
    return table
