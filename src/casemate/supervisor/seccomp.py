"""The filter of system calls: the policy as a program, and the program in force.

A call of another architecture (i386, arm) or of x32 does not exist for the code in a cell,
like every call that the policy does not name.

The kernel (5.11 or newer) tries the program once for each number when it is installed, and
remembers those that are always allowed: only calls whose arguments are looked at cost time.

Sources: seccomp(2), Documentation/userspace-api/seccomp_filter.rst, linux/audit.h.
"""

from __future__ import annotations

import errno

from .bpf import ANY_BIT, EQUAL, Assembler
from .syscalls import policy
from .syscalls.numbers import numbers

TYPE_CHECKING = False  # importing typing would cost more than the whole of this module
if TYPE_CHECKING:
    from collections.abc import Iterator

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*

# struct seccomp_data: int nr, u32 arch, u64 instruction_pointer, u64 args[6]. Both machines
# are little-endian, so that the first half of an argument is its low half.
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENTS = 16
_ARGUMENT_BYTES = 8

_RETURN_ALLOW = 0x7FFF0000  # SECCOMP_RET_ALLOW
_RETURN_ERRNO = 0x00050000  # SECCOMP_RET_ERRNO


def program(machine: str, *, memory_is_counted: bool) -> bytes:
    """The filter for a machine (as `os.uname().machine` names it), ready to install.

    `memory_is_counted` says that a memory cgroup limits the cell. Without one, what lives on
    in no process's memory (memfd, System V, queues of POSIX) is left out.

    Returns an array of `struct sock_filter`. Raises ValueError for a machine without tables.
    """
    table = numbers(machine)
    assembler = Assembler()
    assembler.load(_ARCHITECTURE)
    assembler.jump(EQUAL, _ARCHITECTURES[machine], None, _answer(errno.ENOSYS))
    assembler.load(_NUMBER)
    # The numbers of x32 begin at 0x40000000 and so lie beyond every case.
    assembler.search(dict(_cases(table, memory_is_counted=memory_is_counted)), _answer(errno.ENOSYS))
    outcomes = {policy.ALLOW, errno.EPERM, errno.ENOSYS}
    for _, names, steps in policy.CHECKED:
        if any(name in table for name in names.split()):
            _check(assembler, names, steps)
            outcomes.update(step.outcome for step in steps)
    for outcome in sorted(outcomes):
        assembler.label(_answer(outcome))
        assembler.answer(_RETURN_ERRNO | outcome if outcome else _RETURN_ALLOW)
    return assembler.assemble()


def _cases(table: dict[str, int], *, memory_is_counted: bool) -> Iterator[tuple[int, str]]:
    """The number of each call that the policy and the machine have, and where it leads."""
    allowed = policy.ALLOWED + (policy.ALLOWED_WHEN_COUNTED if memory_is_counted else ())
    places = [(names, _answer(policy.ALLOW)) for _, names in allowed]
    places += [(names, _answer(errno.EPERM)) for _, names in policy.FORBIDDEN]
    places += [(names, _check_label(names)) for _, names, _ in policy.CHECKED]
    for names, label in places:
        for name in names.split():
            if name in table:
                yield table[name], label


def _check(assembler: Assembler, names: str, steps: tuple[policy.Step, ...]) -> None:
    """Write the steps as instructions, one after the other."""
    assembler.label(_check_label(names))
    for nth, step in enumerate(steps):
        following = f"{_check_label(names)}, after step {nth}"
        decided = _answer(step.outcome)
        assembler.load(_ARGUMENTS + _ARGUMENT_BYTES * step.argument)
        if step.keep is not None:
            assembler.keep_bits(step.keep)
        if step.kind == policy.ANY_BIT:
            assembler.jump(ANY_BIT, step.values[0], decided, following)
        elif step.kind == policy.NO_BIT:
            assembler.jump(ANY_BIT, step.values[0], following, decided)
        elif step.kind == policy.AMONG:
            assembler.search(dict.fromkeys(step.values, decided), following)
        else:
            assembler.search(dict.fromkeys(step.values, following), decided)
        assembler.label(following)
    assembler.go(_answer(policy.ALLOW))


def _check_label(names: str) -> str:
    return f"check {names}"


def _answer(outcome: int) -> str:
    return f"errno {outcome}" if outcome else "allow"
