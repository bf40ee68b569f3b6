"""A network of the tests' own: a host and, one cable away, an internet with servers. Nothing leaves it.

Run as a program: ``python -m tests.network.world FOLDER COMMAND...`` runs the command as the host, in namespaces that
end with it. The internet is another network namespace that only the cable leads to; its addresses are public ones, so
that what the egress proxy refuses is refused for what it is. Names are looked up in the host's own hosts file alone.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
PR_SET_PDEATHSIG = 1
HOST, INTERNET = "93.184.215.1", "93.184.215.2"  # the two ends of the cable
PUBLIC = "93.184.216"  # /24, all of them the internet's
PRIVATE = ("10.77.0.1", "169.254.169.254", "192.168.77.1")  # its, too: one hop away, as a company's network is
# What the host's resolver says.
NAMES = {
    "good.test": [f"{PUBLIC}.34"],
    "api.good.test": [f"{PUBLIC}.35"],
    "other.test": [f"{PUBLIC}.36"],
    "evil.test": [f"{PUBLIC}.66"],
    "evilgood.test": [f"{PUBLIC}.66"],
    "good.test.evil.test": [f"{PUBLIC}.66"],
    "two.test": [f"{PUBLIC}.98", f"{PUBLIC}.34"],  # there is no way to the first
    "private.test": ["10.77.0.1"],
    "metadata.test": ["169.254.169.254"],
    "loopback.test": ["127.0.0.1"],
    "own.test": [HOST],
    "mixed.test": ["10.77.0.1", f"{PUBLIC}.34"],
    "six.test": ["fd00::1", "2606:2800:220::1"],
    "html.duckduckgo.com": [f"{PUBLIC}.36"],  # so that a search engine can be asked whose name is fixed
    "silent.test": [f"{PUBLIC}.99"],
}
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Make the world, start its servers, and become the command."""
    folder, command = Path(sys.argv[1]), sys.argv[2:]
    uid, gid = os.geteuid(), os.getegid()
    if uid:
        _be(0, 0)
    _checked(_libc.unshare(CLONE_NEWNET | CLONE_NEWNS), "namespaces")
    _checked(_libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "a mount namespace")
    _checked(_libc.mount(b"tmpfs", b"/mnt", b"tmpfs", 0, None), "a folder that ends with the world")
    _name_everything(folder)
    internet = _start_internet(folder)
    _ip("link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(internet))
    for arguments in (
        ("link", "set", "lo", "up"),
        ("addr", "add", f"{HOST}/30", "dev", "cable"),
        ("link", "set", "cable", "up"),
        ("route", "add", "default", "via", INTERNET),
        ("route", "add", "unreachable", f"{PUBLIC}.98"),
    ):
        _ip(*arguments)
    (folder / "cable").touch()
    _child([sys.executable, "-m", "tests.network.servers", str(folder), "resolver"])
    _wait_for(folder / "up")
    _wait_for(folder / "resolver")
    be_ordinary(uid, gid)
    os.execvpe(command[0], command, {**os.environ, "CASEMATE_TESTS_WORLD": str(folder)})


def be_ordinary(uid: int, gid: int) -> None:
    """Be that user again, with no rights over the network."""
    if uid:
        _be(uid, gid)


def _be(uid: int, gid: int) -> None:
    """Be known by these numbers, in a user namespace of its own."""
    before, group = os.geteuid(), os.getegid()
    _checked(_libc.unshare(CLONE_NEWUSER), "a user namespace")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {before} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {group} 1")


def _name_everything(folder: Path) -> None:
    lines = [f"{address} {name}" for name, addresses in NAMES.items() for address in addresses]
    for place, content in (
        ("/etc/hosts", "127.0.0.1 localhost\n" + "\n".join(lines) + "\n"),
        ("/etc/resolv.conf", "nameserver 127.0.0.54\noptions timeout:1 attempts:1\n"),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
    ):
        file = folder / Path(place).name
        file.write_text(content)
        real = os.path.realpath(place)
        _checked(_libc.mount(os.fsencode(file), os.fsencode(real), None, MS_BIND, None), f"a mount on {real}")


def _start_internet(folder: Path) -> int:
    """The process that is the internet: its pid. It ends with this one."""
    ready, tell = os.pipe()
    pid = _fork()
    if not pid:
        _be_the_internet(folder, tell)
    os.close(tell)
    if os.read(ready, 1) != b"n":
        raise SystemExit("there is no internet")
    os.close(ready)
    return pid


def _be_the_internet(folder: Path, tell: int) -> NoReturn:
    _checked(_libc.unshare(CLONE_NEWNET), "a network")
    os.write(tell, b"n")
    _wait_for(folder / "cable")
    for arguments in (
        ("link", "set", "lo", "up"),
        ("addr", "add", f"{INTERNET}/30", "dev", "cable"),
        ("link", "set", "cable", "up"),
        *(("addr", "add", f"{PUBLIC}.{n}/32", "dev", "lo") for n in (34, 35, 36, 66)),
        *(("addr", "add", f"{address}/32", "dev", "lo") for address in PRIVATE),
        ("route", "add", "blackhole", f"{PUBLIC}.99"),  # nothing comes back from here, not even a refusal
    ):
        _ip(*arguments)
    os.execv(sys.executable, [sys.executable, "-m", "tests.network.servers", str(folder), "internet"])


def _child(command: list[str]) -> None:
    if not _fork():
        os.execv(command[0], command)


def _fork() -> int:
    """Fork a process that ends with this one."""
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        end_with_parent()
        if os.getppid() != parent:
            os._exit(1)
    return pid


def end_with_parent() -> None:
    """Have the kernel end this process when the thread that forked it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)


def is_root() -> bool:
    """Whether this is the machine's own root, and not that of a user namespace."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


def _ip(*arguments: str) -> None:
    program = next((path for path in ("/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip") if os.path.exists(path)), "ip")
    subprocess.run([program, *arguments], check=True)


def _wait_for(file: Path) -> None:
    for _ in range(36_000):
        if file.exists():
            return
        _libc.usleep(5000)
    raise SystemExit(f"{file} did not come about")


def _checked(result: int, what: str) -> None:
    if result != 0:
        raise SystemExit(f"no {what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
