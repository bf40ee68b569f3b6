/* The first process of a cell in machine code: what init.py does, without an interpreter, and what asks for many.
 *
 * Python decides. What a cell does to itself comes as lists of system calls (calls.py), and this does one call after
 * the other. A copy of a whole interpreter would touch hundreds of its pages to do the same, and each would be copied.
 *
 * Nothing is linked: what is used of the C library is found in the process that loads this, whichever library that is.
 * What a constant or a layout means is said in init.py and calls.py, where it stands, too.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* init.py */
enum { CONTROL = 3, STATUS, PAYLOAD, ORDER };
enum { FORKS = 1, AWAITS = 2, CONTROLS = 4 };
enum { NOT_BEGUN = 125, HIGH = 64, ALL = 0x7FFFFFFF };
/* calls.py */
enum kind { PHASE, CALL, ATTEMPT, RULE, FILTER };
enum { VALUE, BYTES, REGISTER };
enum { ARGUMENTS = 6, DESCRIPTORS = 64, MOST_CALLS = 1024 };
enum { CLOSE_RANGE = 436 }; /* syscall_numbers.py; older headers do not name it */
enum { MAX_MESSAGE = 160000, MAX_ENDS = 8 }; /* wire.py, zygote.py */

struct record {
    int64_t kind, number, kinds, label, arguments[ARGUMENTS];
};

struct list {
    size_t count;
    const struct record *records;
    const char *data;
    size_t size; /* bytes of data */
};

struct text {
    const char *bytes;
    size_t size;
};

struct cell {
    struct text filter; /* the seccomp program */
    int descriptors[DESCRIPTORS];
    size_t descriptor_count;
    long results[MOST_CALLS];
    int status;        /* where it tells the supervisor */
    const char *phase; /* what it is at */
};

const uint32_t casemate_source = SOURCE; /* a checksum of this file: build_init.py, native_init.py */

static char message[MAX_MESSAGE] __attribute__((aligned(8)));
static struct cell cell;

/* Tell the supervisor why there will be no program, in the words of an OSError, and end. */
static _Noreturn void fail(int number, const char *detail) {
    char words[700], told[1024];
    snprintf(words, sizeof words, "[Errno %d] %.100s: '%.500s'", number, strerror(number), detail);
    int size = snprintf(told, sizeof told, "ms6:faileds%zu:%ss5:errnoi%d;s6:details%zu:%se", strlen(cell.phase), cell.phase,
                        number, strlen(words), words);
    if (size > 0 && (size_t)size < sizeof told && write(cell.status, told, (size_t)size) < 0) {
        /* the supervisor is gone */
    }
    _exit(NOT_BEGUN);
}

/* ------------------------------------------------------------------------------------------------ lists of calls */

static struct list read_list(struct text text) {
    struct list list = {0};
    int64_t count = 0;
    if (text.size >= sizeof count) {
        memcpy(&count, text.bytes, sizeof count);
    }
    size_t head = sizeof count + (size_t)count * sizeof(struct record);
    if (text.size < sizeof count || count < 0 || count > MOST_CALLS || head > text.size) {
        fail(EINVAL, "a list of calls that is not whole");
    }
    list.count = (size_t)count;
    list.records = (const struct record *)(text.bytes + sizeof count);
    list.data = text.bytes + head;
    list.size = text.size - head;
    return list;
}

static const char *bytes_at(const struct list *list, int64_t place) {
    if (place < 0 || (size_t)place >= list->size) {
        fail(EINVAL, "a list of calls that points elsewhere");
    }
    return list->data + place;
}

static long argument_of(const struct list *list, const struct record *record, size_t position) {
    int64_t word = record->arguments[position];
    switch (record->kinds >> (2 * position) & 3) {
    case BYTES:
        return (long)bytes_at(list, word);
    case REGISTER:
        if (word < 0 || word >= DESCRIPTORS + (record - list->records) ||
            (word < DESCRIPTORS && (size_t)word >= cell.descriptor_count)) {
            fail(EINVAL, "a list of calls that names what has not come");
        }
        return word < DESCRIPTORS ? cell.descriptors[word] : cell.results[word - DESCRIPTORS];
    default:
        return (long)word;
    }
}

/* Landlock: rights at a path and beneath it; nothing where there is no such path. */
static long add_rule(const struct record *record, const long *arguments) {
    struct __attribute__((packed)) {
        uint64_t rights;
        int32_t place;
    } rule; /* struct landlock_path_beneath_attr */
    struct stat status;
    int place = open((const char *)arguments[1], O_PATH | O_CLOEXEC);
    if (place < 0) {
        return errno == ENOENT ? 0 : -1;
    }
    if (syscall(SYS_fstat, place, &status) < 0) {
        close(place);
        return -1;
    }
    rule.rights = (uint64_t)(S_ISDIR(status.st_mode) ? arguments[2] : arguments[3]);
    rule.place = place;
    long result = syscall(record->number, arguments[0], 1 /* LANDLOCK_RULE_PATH_BENEATH */, &rule, 0);
    close(place);
    return result;
}

/* The filter of system calls, for all threads, as in kernel.install_filter. */
static long install_filter(const struct record *record) {
    struct sock_fprog program = {
        .len = (unsigned short)(cell.filter.size / sizeof(struct sock_filter)),
        .filter = (struct sock_filter *)cell.filter.bytes,
    };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) {
        return -1;
    }
    long thread = syscall(record->number, 1 /* SECCOMP_SET_MODE_FILTER */, 1 /* TSYNC */, &program);
    if (thread > 0) {
        errno = EBUSY;
        return -1;
    }
    return thread;
}

static void perform(struct text text) {
    struct list list = read_list(text);
    for (size_t at = 0; at < list.count; at++) {
        const struct record *record = &list.records[at];
        const char *label = bytes_at(&list, record->label);
        long arguments[ARGUMENTS];
        for (size_t position = 0; position < ARGUMENTS; position++) {
            arguments[position] = argument_of(&list, record, position);
        }
        long result = 0;
        switch ((enum kind)record->kind) {
        case PHASE:
            cell.phase = label;
            break;
        case CALL:
        case ATTEMPT:
            result = syscall(record->number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                             arguments[5]);
            break;
        case RULE:
            result = add_rule(record, arguments);
            break;
        case FILTER:
            result = install_filter(record);
            break;
        default:
            errno = EINVAL;
            result = -1;
        }
        if (result < 0 && record->kind != ATTEMPT) {
            fail(errno, label);
        }
        cell.results[at] = result;
    }
}

/* -------------------------------------------------------------------------------------------- messages and their fds */

/* A message and the descriptors that come with it; its size, 0 where nobody is there any more, -1 for an error,
 * as when not all has come. */
static ssize_t receive(int socket, char *into, size_t most, int *fds, size_t most_fds, size_t *count) {
    char rights[CMSG_SPACE(DESCRIPTORS * sizeof(int))] __attribute__((aligned(8)));
    struct iovec part = {.iov_base = into, .iov_len = most};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = rights, .msg_controllen = CMSG_SPACE(most_fds * sizeof(int))};
    ssize_t size;
    do {
        size = recvmsg(socket, &header, 0);
    } while (size < 0 && errno == EINTR);
    const struct cmsghdr *one = size > 0 ? CMSG_FIRSTHDR(&header) : NULL; /* the only one */
    *count = one ? (one->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
    if (one) {
        memcpy(fds, CMSG_DATA(one), *count * sizeof(int));
    }
    if (size > 0 && header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        errno = EMFILE;
        return -1;
    }
    return size;
}

/* Tell the supervisor that this cell is prepared. What the message carries, while it waits there, outlives us. */
static void report_prepared(int channel) {
    char rights[CMSG_SPACE(2 * sizeof(int))] __attribute__((aligned(8)));
    int namespaces[2] = {open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC), open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)};
    struct iovec part = {.iov_base = "p", .iov_len = 1};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = rights, .msg_controllen = sizeof rights};
    struct cmsghdr *one = CMSG_FIRSTHDR(&header);
    if (namespaces[0] < 0 || namespaces[1] < 0) {
        fail(errno, "namespaces of its own");
    }
    one->cmsg_level = SOL_SOCKET;
    one->cmsg_type = SCM_RIGHTS;
    one->cmsg_len = CMSG_LEN(sizeof namespaces);
    memcpy(CMSG_DATA(one), namespaces, sizeof namespaces);
    if (sendmsg(channel, &header, MSG_NOSIGNAL) < 0) {
        _exit(NOT_BEGUN);
    }
    close(namespaces[0]);
    close(namespaces[1]);
}

/* --------------------------------------------------------------------------------------------------- the program */

/* Not strtoul(3), which new headers call by a name that older libraries do not have. */
static uint64_t read_number(const char *text) {
    uint64_t number = 0;
    for (; *text >= '0' && *text <= '9'; text++) {
        number = number * 10 + (uint64_t)(*text - '0');
    }
    return number;
}

/* The texts of a command, each ended by a zero byte: its folder, how many arguments it has, these, its variables. */
static pid_t start_program(int has_control) {
    struct stat status;
    if (syscall(SYS_fstat, PAYLOAD, &status) < 0) {
        fail(errno, "the command");
    }
    size_t size = (size_t)status.st_size, texts = 0;
    char *data = mmap(NULL, size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE, PAYLOAD, 0);
    if (data == MAP_FAILED || size == 0 || data[size - 1] != 0) {
        fail(EINVAL, "a command that is not whole");
    }
    for (size_t at = 0; at < size; at++) {
        texts += data[at] == 0;
    }
    char **all = mmap(NULL, (texts + 2) * sizeof *all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || texts < 3) {
        fail(EINVAL, "a command without a program");
    }
    const char *cwd = data;
    const char *number = cwd + strlen(cwd) + 1;
    size_t count = read_number(number);
    if (count < 1 || count > texts - 2) {
        fail(EINVAL, "a command without its arguments");
    }
    char *text = data + (number - data) + strlen(number) + 1;
    char **argv = all, **env = all + count + 1; /* a null pointer ends each */
    for (size_t at = 0; at < texts - 2; at++, text += strlen(text) + 1) {
        (at < count ? argv : env - count)[at] = text;
    }
    if (!has_control) {
        fcntl(CONTROL, F_SETFD, FD_CLOEXEC);
    }
    if (chdir(cwd) < 0) {
        fail(errno, cwd);
    }
    volatile int number_of_error = 0;
    pid_t pid = vfork();
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL); /* a program expects the default, which Python has changed */
        signal(SIGXFSZ, SIG_DFL);
        setsid();
        execve(argv[0], argv, env);
        number_of_error = errno;
        _exit(127);
    }
    if (pid < 0 || number_of_error) {
        fail(pid < 0 ? errno : number_of_error, argv[0]);
    }
    return pid;
}

/* ----------------------------------------------------------------------------------------------------- its end */

/* From `keep_own_memory` on there is no C library, and no variable of a thread: system calls are made here, and what
 * they fill lies in this library. */
#if defined __x86_64__
static long call(long number, long first, long second, long third, long fourth) {
    register long last __asm__("r10") = fourth;
    __asm__ volatile("syscall" : "+a"(number) : "D"(first), "S"(second), "d"(third), "r"(last) : "rcx", "r11", "memory");
    return number;
}
#elif defined __aarch64__
static long call(long number, long first, long second, long third, long fourth) {
    register long where __asm__("x8") = number, result __asm__("x0") = first, x1 __asm__("x1") = second;
    register long x2 __asm__("x2") = third, last __asm__("x3") = fourth;
    __asm__ volatile("svc 0" : "+r"(result) : "r"(where), "r"(x1), "r"(x2), "r"(last) : "memory");
    return result;
}
#else
#error "no system calls for this machine"
#endif

#pragma GCC visibility push(hidden)
extern const char __ehdr_start[], _end[]; /* of this library: ld(1) */
#pragma GCC visibility pop
static char load[128];
static int wait_status;
static struct rusage used;
static struct __attribute__((packed)) {
    char mark;
    uint32_t code;
    uint64_t peak, cpu, begun;
} report;

static void give_back(uintptr_t begin, uintptr_t end) {
    if (begin < end) {
        call(SYS_munmap, (long)begin, (long)(end - begin), 0, 0);
    }
}

/* Give back all memory but this library's, the stack's, and the thread's own, to which the kernel writes (rseq(2)).
 * This is a copy of an interpreter: to take it apart takes the kernel longer than all else at the end of a cell, and its
 * pages would stay copied while the cell lives. */
static void keep_own_memory(void) {
    const uintptr_t page = 0x10000; /* the largest that there is */
    const uintptr_t begin = (uintptr_t)__ehdr_start & ~(page - 1), end = ((uintptr_t)_end + page - 1) & ~(page - 1);
    const uintptr_t thread = ((uintptr_t)&errno & ~(page - 1)) - page, thread_end = thread + 3 * page;
    const uintptr_t stack = ((uintptr_t)__builtin_frame_address(0) & ~(page - 1)) - page;
    give_back(page, begin < thread ? begin : thread);
    give_back(begin < thread ? end : thread_end, begin < thread ? thread : begin);
    give_back(end < thread_end ? thread_end : end, stack);
}

/* How many processes and threads there have been besides this one: the last pid that the kernel gave here. */
static uint64_t count_begun(void) {
    long file = call(SYS_openat, AT_FDCWD, (long)"/proc/loadavg", O_RDONLY | O_CLOEXEC, 0);
    long size = file < 0 ? -1 : call(SYS_read, file, (long)load, sizeof load - 1, 0);
    call(SYS_close, file, 0, 0, 0);
    while (size > 0 && load[size - 1] != ' ') {
        size--;
    }
    uint64_t pid = size > 0 ? read_number(load + size) : 0;
    return pid ? pid - 1 : 0;
}

static uint64_t microseconds(const struct timeval *time) {
    return (uint64_t)time->tv_sec * 1000000 + (uint64_t)time->tv_usec;
}

static _Noreturn void leave(int code) {
    for (;;) {
        call(SYS_exit_group, code, 0, 0, 0);
    }
}

/* Wait for the end of the program, report it, and end as it did. */
static _Noreturn void wait_for_program(pid_t program, int is_awaited) {
    if (is_awaited && write(STATUS, "w", 1) < 0) {
        _exit(NOT_BEGUN);
    }
    const int of_program[] = {0, 1, 2, CONTROL, PAYLOAD, ORDER};
    for (size_t at = 0; at < sizeof of_program / sizeof *of_program; at++) {
        close(of_program[at]);
    }
    /* What a preloaded module handles must not run in here, nor what the C library does for threads, which it would not
     * let us reset itself. Zeros are the kernel's struct sigaction for SIG_DFL. */
    static const unsigned long by_default[4];
    for (int number = 1; number < 65; number++) {
        call(SYS_rt_sigaction, number, (long)by_default, 0, 8);
    }
    keep_own_memory();
    for (long ended = 0; ended != program;) {
        ended = call(SYS_wait4, -1, (long)&wait_status, 0, 0);
        if (ended < 0 && ended != -EINTR) {
            leave(NOT_BEGUN);
        }
    }
    call(SYS_getrusage, RUSAGE_CHILDREN, (long)&used, 0, 0);
    report.mark = 'x';
    report.code = (uint32_t)wait_status;
    report.peak = (uint64_t)used.ru_maxrss * 1024;
    report.cpu = microseconds(&used.ru_utime) + microseconds(&used.ru_stime);
    report.begun = count_begun();
    if (call(SYS_write, STATUS, (long)&report, sizeof report, 0) < 0) {
        leave(NOT_BEGUN);
    }
    leave(WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status));
}

/* --------------------------------------------------------------------------------------------------------- init */

static int duplicate_high(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, HIGH); }

/* Keep only our own two descriptors: what we inherited of other cells would stay alive through us. */
static void keep_own_descriptors(int channel, int status) {
    channel = duplicate_high(channel);
    status = duplicate_high(status);
    if (dup3(channel, CONTROL, O_CLOEXEC) < 0 || dup3(status, STATUS, O_CLOEXEC) < 0) {
        fail(errno, "its own descriptors");
    }
    cell.status = STATUS;
    if (syscall(CLOSE_RANGE, PAYLOAD, ALL, 0) < 0) {
        fail(errno, "the descriptors of others");
    }
}

/* The life of a cell's first process: init.run. Returns only in the process of a program that is forked. */
int casemate_run(int channel, int status, const int *cgroups, size_t cgroup_count, struct text filter,
                 struct text prepared) {
    char word = 0;
    size_t count = 0;
    cell.filter = filter;
    cell.status = status;
    cell.phase = "cgroup";
    prctl(PR_SET_NAME, "casemate-init", 0, 0, 0);
    signal(SIGINT, SIG_DFL); /* as pid 1 we then do not get it from inside */
    for (size_t at = 0; at < cgroup_count; at++) {
        if (write(cgroups[at], "0", 1) < 0) {
            fail(errno, "entering its cgroup");
        }
    }
    keep_own_descriptors(channel, status);
    cell.phase = "id maps";
    if (recv(CONTROL, &word, 1, 0) != 1 || word != 'm') {
        _exit(NOT_BEGUN); /* the supervisor is gone */
    }
    perform(prepared);
    report_prepared(CONTROL);
    cell.phase = "request";
    ssize_t size = receive(CONTROL, message, sizeof message, cell.descriptors, DESCRIPTORS, &count);
    cell.descriptor_count = count;
    if (size < 0) {
        fail(errno, "a request with all its descriptors");
    }
    if (size == 0) {
        _exit(NOT_BEGUN); /* the supervisor is gone */
    }
    int64_t told[2] = {0};
    size_t head = sizeof told, whole = (size_t)size;
    if (whole >= head) {
        memcpy(told, message, head);
    }
    if (whole < head || told[1] < 0 || (size_t)told[1] > whole - head) {
        fail(EINVAL, "a request that is not whole");
    }
    perform((struct text){message + head, (size_t)told[1]});
    pid_t program;
    if (told[0] & FORKS) {
        cell.phase = "fork";
        program = fork();
        if (program == 0) {
            perform((struct text){message + head + told[1], whole - head - (size_t)told[1]});
            return 0;
        }
        if (program < 0) {
            fail(errno, "the program's process");
        }
    } else {
        cell.phase = "exec";
        program = start_program((told[0] & CONTROLS) != 0);
    }
    wait_for_program(program, (told[0] & AWAITS) != 0);
}

/* A zygote's life: a cell for each message, which brings its ends. Returns only in a program's process. */
int casemate_make_cells(int socket, unsigned long flags, struct text filter, struct text prepared) {
    int ends[DESCRIPTORS];
    size_t count = 0;
    char word, answer[32];
    while (receive(socket, &word, 1, ends, MAX_ENDS, &count) > 0 && count >= 2) {
        long pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) {
            return casemate_run(ends[0], ends[1], ends + 2, count - 2, filter, prepared);
        }
        if (pid < 0) {
            pid = -errno;
        }
        for (size_t at = 0; at < count; at++) {
            close(ends[at]);
        }
        int size = snprintf(answer, sizeof answer, "ms3:pidi%ld;e", pid);
        if (send(socket, answer, (size_t)size, 0) < 0) {
            break;
        }
    }
    _exit(0);
}
