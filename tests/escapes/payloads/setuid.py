"""Leave files with setuid and setgid bits, by every call that takes a mode; also by those of 32-bit programs.

The content is harmless: what matters is the bit that the host finds afterwards.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import stat
from collections.abc import Callable

from tests.escapes.payloads.attempts import attempt, checked, finish, libc, syscall

IS_X86 = platform.machine() == "x86_64"
X32 = 0x40000000
FCHMODAT2, OPENAT2 = 452, 437
AT_FDCWD = -100


def plain(name: str) -> str:
    with open(name, "w") as file:
        file.write("harmless")
    return name


def by_fchmod(name: str) -> None:
    fd = os.open(plain(name), os.O_RDWR)
    os.fchmod(fd, 0o4755)
    os.close(fd)


def by_chmod_of_folder(name: str) -> None:
    os.mkdir(name)
    os.chmod(name, 0o2755)


def by_unnamed_file(name: str) -> None:
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o6755)
    checked(libc.linkat(AT_FDCWD, f"/proc/self/fd/{fd}".encode(), AT_FDCWD, name.encode(), 0x400))
    os.close(fd)


def by_openat2(name: str) -> None:
    how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o6755, 0)
    syscall(OPENAT2, AT_FDCWD, name.encode(), ctypes.addressof(how), 24)


def as_32_bit(number: int, first: bytes, second: int) -> int:
    """A call by int 0x80, whose numbers are another table's."""
    memory = mmap.mmap(-1, 4096, prot=7, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40)  # MAP_32BIT
    memory[2048 : 2048 + len(first) + 1] = first + b"\0"
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    code = b"\x53\xb8" + number.to_bytes(4, "little") + b"\xbb" + (base + 2048).to_bytes(4, "little")
    code += b"\xb9" + second.to_bytes(4, "little") + b"\xcd\x80\x5b\xc3"  # push rbx .. int 0x80, pop rbx, ret
    memory[: len(code)] = code
    result: int = ctypes.CFUNCTYPE(ctypes.c_int)(base)()
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


WAYS: dict[str, Callable[[str], object]] = {
    "chmod": lambda name: os.chmod(plain(name), 0o4755),
    "chmod-setgid": lambda name: os.chmod(plain(name), 0o2755),
    "fchmod": by_fchmod,
    "open": lambda name: os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o6755)),
    "creat": lambda name: checked(libc.creat(name.encode(), 0o4755)),
    "unnamed": by_unnamed_file,
    "mknod": lambda name: os.mknod(name, stat.S_IFREG | 0o4755),
    "mkdir": lambda name: checked(libc.mkdir(name.encode(), 0o2755)),
    "chmod-folder": by_chmod_of_folder,
    "fchmodat2": lambda name: syscall(FCHMODAT2, AT_FDCWD, plain(name).encode(), 0o4755, 0),
    "openat2": by_openat2,
    "high-bits": lambda name: syscall(90 if IS_X86 else 53, plain(name).encode(), (1 << 32) | 0o4755),
}
if IS_X86:
    WAYS["32-bit"] = lambda name: as_32_bit(15, plain(name).encode(), 0o4755)
    WAYS["x32"] = lambda name: syscall(X32 + 90, plain(name).encode(), 0o4755)
os.umask(0)
for way, action in WAYS.items():
    attempt(way, lambda way=way, action=action: action(f"setuid-{way}"))  # type: ignore[misc]
plain("honest")
finish()
