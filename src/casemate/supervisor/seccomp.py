"""The seccomp filter: compiles the system call policy to a BPF program.

Calls of another architecture (i386, arm) or of x32 get ENOSYS, as do calls that the policy does not name.

The kernel (5.11 or newer) runs the program once for each number when it is installed and caches the numbers that are
always allowed, so only calls whose arguments are checked cost time.

Sources: seccomp(2), Documentation/userspace-api/seccomp_filter.rst, linux/audit.h.
linux/filter.h, linux/bpf_common.h; Documentation/networking/filter.rst.
"""

from __future__ import annotations

import errno
import struct

from casemate.supervisor import syscall_policy
from casemate.supervisor.syscall_numbers import numbers

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*

# struct seccomp_data: int nr, u32 arch, u64 instruction_pointer, u64 args[6]. Both machines are little-endian, so the
# low half of an argument comes first.
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENTS = 16
_ARGUMENT_BYTES = 8

_RETURN_ALLOW = 0x7FFF0000  # SECCOMP_RET_ALLOW
_RETURN_ERRNO = 0x00050000  # SECCOMP_RET_ERRNO
_RETURN_NOTIFY = 0x7FC00000  # SECCOMP_RET_USER_NOTIF
_LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_JUMP = 0x05  # BPF_JMP | BPF_JA

EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K

INSTRUCTION_BYTES = 8
_LARGEST = 0xFFFFFFFF  # the accumulator has 32 bits
_REACH = 255  # the offsets of a conditional jump are single bytes


def program(machine: str, *, memory_is_counted: bool, policy: Any = syscall_policy) -> bytes:
    """The filter for a machine (a name from `os.uname().machine`), as an array of `struct sock_filter`.

    `policy` is `syscall_policy` or has the same names. `memory_is_counted`: a memory cgroup limits the cell. Without
    one, calls that make memory outside any process (memfd, System V, POSIX queues) are left out. Raises ValueError for
    a machine without tables."""
    table = numbers(machine)
    assembler = Assembler()
    assembler.load(_ARCHITECTURE)
    assembler.jump(EQUAL, _ARCHITECTURES[machine], None, _answer(errno.ENOSYS))
    assembler.load(_NUMBER)
    # x32 numbers start at 0x40000000, beyond every case.
    assembler.search(dict(_cases(table, policy, memory_is_counted=memory_is_counted)), _answer(errno.ENOSYS))
    outcomes = {syscall_policy.ALLOW, errno.EPERM, errno.ENOSYS}
    for _, names, conditions in policy.CHECKED:
        if any(name in table for name in names.split()):
            _check(assembler, _check_label(names), conditions)
            outcomes.update(condition.outcome for condition in conditions)
    for outcome in sorted(outcomes):
        assembler.label(_answer(outcome))
        assembler.answer(_RETURNS.get(outcome, _RETURN_ERRNO | outcome))
    return assembler.assemble()


def netlink_program(machine: str, *, refused: bool = False) -> bytes:
    """A filter that notifies or refuses each rtnetlink socket and allows every other call."""
    assembler = Assembler()
    for word, value in (
        (_ARCHITECTURE, _ARCHITECTURES[machine]),
        (_NUMBER, numbers(machine)["socket"]),
        (_ARGUMENTS, syscall_policy.NETLINK),
        (_ARGUMENTS + 2 * _ARGUMENT_BYTES, syscall_policy.NETLINK_ROUTE),
    ):
        assembler.load(word)
        assembler.jump(EQUAL, value, None, "allow")
    assembler.answer(_RETURN_ERRNO | errno.EAFNOSUPPORT if refused else _RETURN_NOTIFY)
    assembler.label("allow")
    assembler.answer(_RETURN_ALLOW)
    return assembler.assemble()


_RETURNS = {
    syscall_policy.ALLOW: _RETURN_ALLOW,
    syscall_policy.NOTIFY: _RETURN_NOTIFY,
}


def _cases(table: dict[str, int], policy: Any, *, memory_is_counted: bool) -> Iterator[tuple[int, str]]:
    """The number of each known call that the policy names, and the label it leads to."""
    allowed = policy.ALLOWED + (policy.ALLOWED_WHEN_COUNTED if memory_is_counted else ())
    places = [(names, _answer(syscall_policy.ALLOW)) for _, names in allowed]
    places += [(names, _answer(errno.EPERM)) for _, names in policy.FORBIDDEN]
    places += [(names, _check_label(names)) for _, names, _ in policy.CHECKED]
    for names, label in places:
        for name in names.split():
            if name in table:
                yield table[name], label


def _check(assembler: Assembler, label: str, conditions: tuple[syscall_policy.Condition, ...]) -> None:
    assembler.label(label)
    for nth, condition in enumerate(conditions):
        following = f"{label}, after condition {nth}"
        decided = f"{label}, in condition {nth}" if condition.then else _answer(condition.outcome)
        assembler.load(_ARGUMENTS + _ARGUMENT_BYTES * condition.argument)
        if condition.keep is not None:
            assembler.keep_bits(condition.keep)
        if condition.kind == syscall_policy.ANY_BIT:
            assembler.jump(ANY_BIT, condition.values[0], decided, following)
        elif condition.kind == syscall_policy.NO_BIT:
            assembler.jump(ANY_BIT, condition.values[0], following, decided)
        elif condition.kind == syscall_policy.AMONG:
            assembler.search(dict.fromkeys(condition.values, decided), following)
        else:
            assembler.search(dict.fromkeys(condition.values, following), decided)
        assembler.label(following)
    assembler.go(_answer(syscall_policy.ALLOW))
    for nth, condition in enumerate(conditions):
        if condition.then:
            _check(assembler, f"{label}, in condition {nth}", condition.then)


def _check_label(names: str) -> str:
    return f"check {names}"


def _answer(outcome: int) -> str:
    return f"errno {outcome}" if outcome else "allow"


class _Instruction:
    """An instruction and its jump labels (None: the next instruction)."""

    __slots__ = ("code", "far_no", "far_yes", "no", "operand", "yes")

    def __init__(self, code: int, operand: int, yes: str | None = None, no: str | None = None) -> None:
        self.code = code
        self.operand = operand
        self.yes = yes
        self.no = no
        self.far_yes = False
        self.far_no = False

    @property
    def width(self) -> int:
        return 1 + self.far_yes + self.far_no


class Assembler:
    """Assembles a BPF program. Labels may be used before they are set."""

    def __init__(self) -> None:
        self._instructions: list[_Instruction] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        """Name the next instruction. Raises ValueError if the name is taken."""
        if name in self._labels:
            raise ValueError(f"the label {name!r} is set twice")
        self._labels[name] = len(self._instructions)

    def load(self, offset: int) -> None:
        """Load the 32-bit word at this offset (bytes) of the data into the accumulator."""
        self._instructions.append(_Instruction(_LOAD_WORD, offset))

    def keep_bits(self, bits: int) -> None:
        """Keep only these bits of the accumulator."""
        self._instructions.append(_Instruction(_AND, bits))

    def jump(self, test: int, operand: int, yes: str | None, no: str | None) -> None:
        """Compare the accumulator with the operand, and jump to `yes` or `no` (None: the next instruction). `test` is
        EQUAL, AT_LEAST (unsigned) or ANY_BIT."""
        self._instructions.append(_Instruction(test, operand, yes, no))

    def go(self, to: str) -> None:
        """Jump to the label."""
        self._instructions.append(_Instruction(_JUMP, 0, to))

    def answer(self, value: int) -> None:
        self._instructions.append(_Instruction(_RETURN, value))

    def search(self, cases: Mapping[int, str], otherwise: str) -> None:
        """Jump to the label of the number in the accumulator, by binary search over ranges with the same label."""
        self._halve(_ranges(cases, otherwise))

    def assemble(self) -> bytes:
        """The `struct sock_filter` array, in native order. Raises ValueError for an unset label or a backward jump."""
        positions = self._positions()
        while self._widen(positions):
            positions = self._positions()
        return b"".join(
            _encode(instruction, position, *self._targets(instruction, position, positions))
            for instruction, position in zip(self._instructions, positions, strict=False)
        )

    def _halve(self, ranges: list[tuple[int, str]]) -> None:
        if len(ranges) == 1:
            self.go(ranges[0][1])
            return
        middle = len(ranges) // 2
        low, high = ranges[:middle], ranges[middle:]
        upper = high[0][1] if len(high) == 1 else f"search {len(self._instructions)}"
        lower = low[0][1] if len(low) == 1 else None
        self.jump(AT_LEAST, high[0][0], upper, lower)
        if len(low) > 1:
            self._halve(low)
        if len(high) > 1:
            self.label(upper)
            self._halve(high)

    def _positions(self) -> list[int]:
        positions = [0]
        for instruction in self._instructions:
            positions.append(positions[-1] + instruction.width)
        return positions

    def _targets(self, instruction: _Instruction, position: int, positions: list[int]) -> tuple[int, int]:
        following = position + instruction.width
        return (
            self._place(instruction.yes, following, positions),
            self._place(instruction.no, following, positions),
        )

    def _place(self, label: str | None, following: int, positions: list[int]) -> int:
        if label is None:
            return following
        if label not in self._labels:
            raise ValueError(f"the label {label!r} is not set")
        return positions[self._labels[label]]

    def _widen(self, positions: list[int]) -> bool:
        has_widened = False
        for instruction, position in zip(self._instructions, positions, strict=False):
            if instruction.code == _JUMP:
                continue
            yes, no = self._targets(instruction, position, positions)
            if not instruction.far_yes and yes - position - 1 > _REACH:
                instruction.far_yes = has_widened = True
            if not instruction.far_no and no - position - 1 > _REACH:
                instruction.far_no = has_widened = True
        return has_widened


def _ranges(cases: Mapping[int, str], otherwise: str) -> list[tuple[int, str]]:
    """The first number of each range and its label; the ranges cover all numbers from 0."""
    ranges = [(0, otherwise)]
    for number in sorted(cases):
        if ranges[-1][0] == number:
            ranges.pop()
        if not ranges or ranges[-1][1] != cases[number]:
            ranges.append((number, cases[number]))
        if number < _LARGEST:
            ranges.append((number + 1, otherwise))
    return ranges


def _encode(instruction: _Instruction, position: int, yes: int, no: int) -> bytes:
    code, operand = instruction.code, instruction.operand
    if code == _JUMP:
        return _pack(code, 0, 0, _distance(position, yes))
    if code not in (EQUAL, AT_LEAST, ANY_BIT):
        return _pack(code, 0, 0, operand)
    helpers = []
    if instruction.far_yes:
        helpers.append(yes)
        yes = position + len(helpers)
    if instruction.far_no:
        helpers.append(no)
        no = position + len(helpers)
    encoded = _pack(code, _distance(position, yes), _distance(position, no), operand)
    for nth, target in enumerate(helpers, start=1):
        encoded += _pack(_JUMP, 0, 0, _distance(position + nth, target))
    return encoded


def _distance(position: int, target: int) -> int:
    if target <= position:
        raise ValueError("classic BPF cannot jump backwards")
    return target - position - 1


def _pack(code: int, yes: int, no: int, operand: int) -> bytes:
    return struct.pack("=HBBI", code, yes, no, operand)
