"""The kernel gives a cell no namespace, mount, key, device or descriptor that could be a way out."""

from __future__ import annotations

import ctypes
import os
import pty
import re
import secrets
import select
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract import witness
from tests.escapes import host
from tests.escapes.cells import ROOT, Attack, attack, bare, held, held_bare, told, without

from casemate import sync

FORBIDDEN_FILES = ("io_uring", "userfaultfd", "perf_event", "bpf", "fanotify", "secretmem", "fscontext")
EVERYTHING = ("seccomp", "namespaces", "landlock", "capabilities", "mounts")
# What any user's process may have where no layer is: the control shows at least these.
_USUAL = {"user namespace", "userfaultfd", "personality", "sockets"}


def _gained(pid: int, mark: str) -> set[str]:
    """What the process ``pid`` has that a cell must not have, as the host's /proc shows it."""
    first, *more = sorted(witness.children(pid))
    before = host.namespaces(first)
    gained = {f"{kind} namespace" for kind, link in host.namespaces(pid).items() if link != before[kind]}
    files = host.open_files(pid)
    gained |= {kind for kind in FORBIDDEN_FILES if any(kind in link for link in files)}
    if any(link.startswith("socket:") for link in files):
        gained.add("sockets")
    if mark in Path(f"/proc/{pid}/mountinfo").read_text():
        gained.add("mount")
    if os.readlink(f"/proc/{pid}/root") != "/":
        gained.add("root")
    if int(Path(f"/proc/{pid}/personality").read_text(), 16):
        gained.add("personality")
    if more:
        gained.add("user namespace by clone3")
    if int(host.status_of(pid)["CapEff"], 16):
        gained.add("capabilities")
    return gained


def test_the_kernel_gives_nothing_that_is_forbidden(sandbox: sync.Sandbox) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    with held(sandbox, Attack("kernel"), {"MARK": mark, "PRIVILEGED": "1"}) as one:
        assert _gained(one.pid, mark) == set()
        answers = dict(re.findall(r"tried ([^:]+): (\S+)", one.text))
        assert len(answers) > 50
        # What leaves nothing to see is judged by the kernel's answer alone.
        unseen = (
            "key",
            "keyring",
            "clock_settime",
            "init_module",
            "finit_module",
            "kexec",
            "reboot",
            "swapon",
            "syslog",
        )
        assert {name: answers[name] for name in unseen if answers[name] == "done"} == {}
        assert not [name for name, outcome in answers.items() if outcome == "done"]


def test_control_without_its_layers_the_same_cell_is_given_them(sandbox: sync.Sandbox) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    with without(*EVERYTHING), held(sandbox, Attack("kernel"), {"MARK": mark}) as one:
        assert _gained(one.pid, mark) >= _USUAL


@pytest.mark.root_only
def test_control_bare_root_is_given_what_needs_a_capability(tmp_path: Path) -> None:
    with held_bare(Attack("kernel"), {"MARK": f"mark-{secrets.token_hex(8)}"}, tmp_path) as one:
        files = " ".join(host.open_files(one.pid))
        assert any(kind in files for kind in ("bpf", "perf_event", "fscontext"))


@pytest.mark.parametrize("missing", [("seccomp",), ("namespaces",), ("landlock", "capabilities")])
def test_each_of_seccomp_and_the_sysctl_alone_forbids_namespaces(
    sandbox: sync.Sandbox, missing: tuple[str, ...]
) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    with without(*missing), held(sandbox, Attack("kernel"), {"MARK": mark}) as one:
        wrong = {"user namespace", "mnt namespace", "net namespace", "pid namespace", "mount", "root", "capabilities"}
        wrong |= {"user namespace by clone3"}
        assert _gained(one.pid, mark) & wrong == set()


@pytest.mark.parametrize("language", ["shell", pytest.param("node", marks=pytest.mark.needs("node"))])
def test_the_systems_own_programs_make_no_namespace_either(sandbox: sync.Sandbox, language: str) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    execution = attack(sandbox, Attack("kernel", language), {"MARK": mark})
    assert "user:[" not in execution.stdout
    assert ": done" not in execution.stdout
    with without(*EVERYTHING):
        control = attack(sandbox, Attack("kernel", language), {"MARK": mark})
    assert "user:[" in control.stdout


NETLINK = """
import os, socket, struct
from tests.escapes.payloads.attempts import attempt, checked, finish, libc
def ask(kind, head, *attributes):
    body = head + b"".join(struct.pack("=HH4s", 8, number, value) for number, value in attributes)
    with socket.socket(16, socket.SOCK_RAW, 0) as one:
        one.send(struct.pack("=IHHII", 16 + len(body), kind, 0x605, 1, 0) + body)  # REQUEST, ACK, CREATE, EXCL
        if number := -struct.unpack_from("=i", one.recv(1 << 16), 16)[0]:
            raise OSError(number, os.strerror(number))
def change():  # RTM_NEWADDR, RTM_NEWROUTE
    attempt("address", lambda: ask(20, struct.pack("=BBBBI", 2, 8, 0, 254, 1), (2, bytes((203, 0, 113, 9)))))
    attempt("route", lambda: ask(24, bytes((2, 32, 0, 0, 255, 3, 254, 2)) + bytes(4), (1, bytes((203, 0, 113, 77))),
                                 (4, (1).to_bytes(4, "little"))))
if "OWN" in os.environ:
    checked(libc.unshare(0x40000000))
change()
attempt("within", lambda: checked(libc.unshare(0x50000000)))  # CLONE_NEWUSER, CLONE_NEWNET
change()
finish()
"""


def test_netlink_changes_nothing_of_a_network(sandbox: sync.Sandbox, tmp_path: Path) -> None:
    with held(sandbox, Attack("netlink", source=NETLINK)) as one:
        assert "203.0.113." not in Path(f"/proc/{one.pid}/net/fib_trie").read_text()
        assert ": done" not in one.text
    if os.geteuid() == 0:
        with held_bare(Attack("netlink", source=NETLINK), {"OWN": "1"}, tmp_path) as one:
            trie = Path(f"/proc/{one.pid}/net/fib_trie").read_text()
            assert {"203.0.113.9", "203.0.113.77"} <= set(trie.split()), "the control"


# ----------------------------------------------------------------------------------------------------------- handles


def _handle_of(path: Path) -> str:
    """A file handle as open_by_handle_at(2) takes it, in hex; empty where the file system has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer((128).to_bytes(4, "little") + bytes(132), 136)
    mount = ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(path), buffer, ctypes.byref(mount), 0) != 0:
        return ""
    size = int.from_bytes(buffer.raw[:4], "little")
    return buffer.raw[: 8 + size].hex()


def test_a_file_handle_opens_nothing_of_the_host(
    canaries: host.Canaries, sandbox: sync.Sandbox, tmp_path: Path
) -> None:
    """The escape from Docker of 2014: any file of a file system of which one file is in sight."""
    path = canaries.paths["home"]
    handle = _handle_of(path)
    if not handle or path.stat().st_dev != os.stat("/usr").st_dev:
        pytest.skip("the home folder has no file handles, or is on another file system than /usr")
    env = {"HANDLE": handle, "NEAR": "/usr/bin/env", "MARK": "none"}
    for layers in ((), ("seccomp",), ("seccomp", "landlock", "capabilities")):
        with without(*layers):
            assert canaries.secrets["home"] not in told(attack(sandbox, Attack("kernel"), env))
    if os.geteuid() == 0:
        assert canaries.secrets["home"] in bare(Attack("kernel"), env, tmp_path / "bare").text, "the control"


# ---------------------------------------------------------------------------------------------------- the terminal

TERMINAL = """
import fcntl, os, sys
from tests.escapes.payloads.attempts import attempt, finish
mark = os.environ["MARK"]
def type_into(fd):
    for byte in mark.encode():
        fcntl.ioctl(fd, 0x5412, bytes([byte]))  # TIOCSTI
def write_to(path):
    fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
    os.write(fd, mark.encode())
for fd in range(4):
    attempt(f"type into {fd}", lambda: type_into(fd))
for path in ("/dev/tty", "/dev/console", "/dev/tty0", os.environ["TTY"], "/proc/self/fd/0"):
    attempt(f"write to {path}", lambda: write_to(path))
    attempt(f"type into {path}", lambda: type_into(os.open(path, os.O_RDWR)))
os.write(1, ("\\x1b]0;" + mark + "\\x07\\x1b[2J\\x9b31m\\u202e").encode() + b"\\x9b")
finish()
"""
# The host application on a terminal of its own; it prints nothing.
APPLICATION = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.environ["MARK"], os.environ["TTY"] = sys.argv[1], os.ttyname(0)
env = {name: os.environ[name] for name in ("MARK", "TTY")}
if sys.argv[2] == "bare":
    os.execve(sys.executable, [sys.executable, "-c", sys.argv[3]], {**env, "PYTHONPATH": sys.argv[4]})
from casemate import sync
from tests.escapes.cells import Attack, attack
with sync.Sandbox(audit=sys.argv[5], isolation=os.environ["CASEMATE_ISOLATION"]) as sandbox:
    execution = attack(sandbox, Attack("terminal", source=sys.argv[3]), env)
    assert sys.argv[1] in execution.stdout  # output is data
"""


@pytest.mark.parametrize("where", ["cell", "bare"])
def test_the_operators_terminal_is_neither_written_nor_typed_into(scratch: Path, where: str) -> None:
    """Judged at the other end of the terminal; bare, which is the control, the mark arrives there."""
    mark = f"mark-{secrets.token_hex(8)}"
    master, slave = pty.openpty()
    source = TERMINAL.replace("os.write(1", "os.write(os.open(os.devnull, 1)") if where == "bare" else TERMINAL
    path = os.pathsep.join([str(ROOT), str(Path(sync.__file__).parents[1])])
    with subprocess.Popen(
        [sys.executable, "-c", APPLICATION, mark, where, source, path, str(scratch / "audit-terminal.db")],
        stdin=slave, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "PYTHONPATH": path}, cwd=scratch,
    ) as process:  # fmt: skip
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors.decode()
    seen = b""
    while select.select([master], [], [], 0)[0]:
        seen += os.read(master, 1 << 16)
    os.close(slave)
    os.close(master)
    assert (mark.encode() in seen) == (where == "bare")
