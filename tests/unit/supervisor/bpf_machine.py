"""What the kernel does with a classic BPF program, in Python: to read an answer without a kernel."""

from __future__ import annotations

import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOWED = "allowed"
NOTIFIED = "notified"  # the supervisor answers


def run(program: bytes, data: bytes) -> tuple[int, int]:
    """The value that the program returns for the data, and how many instructions that took."""
    accumulator, at, steps = 0, 0, 0
    while True:
        code, yes, no, operand = struct.unpack_from("=HBBI", program, at * 8)
        at, steps = at + 1, steps + 1
        if code == 0x20:  # load a word
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif code == 0x54:  # and
            accumulator &= operand
        elif code == 0x06:  # return
            return operand, steps
        elif code == 0x05:  # jump
            at += operand
        elif code == 0x15:  # equal?
            at += yes if accumulator == operand else no
        elif code == 0x35:  # at least?
            at += yes if accumulator >= operand else no
        elif code == 0x45:  # any bit?
            at += yes if accumulator & operand else no
        else:
            raise AssertionError(f"seccomp does not take the instruction {code:#x}")


def seccomp_data(architecture: int, number: int, *arguments: int) -> bytes:
    """A `struct seccomp_data`. Arguments are 64-bit registers."""
    registers = [argument & 0xFFFF_FFFF_FFFF_FFFF for argument in (*arguments, 0, 0, 0, 0, 0, 0)][:6]
    return struct.pack("=IIQ6Q", number & 0xFFFF_FFFF, architecture, 0x7F00_0000_1234, *registers)


def answer(program: bytes, data: bytes) -> int | str:
    """ALLOWED, NOTIFIED, or the errno with which the call is refused."""
    value, _ = run(program, data)
    if value == 0x7FFF0000:
        return ALLOWED
    if value == 0x7FC00000:
        return NOTIFIED
    assert value >> 16 == 0x0005, f"neither allowed nor an errno: {value:#x}"
    return value & 0xFFFF
