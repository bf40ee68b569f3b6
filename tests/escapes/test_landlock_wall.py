"""The landlock wall, without namespaces: what its cells try outside, what they leave running, where they connect.

docs/explanation/walls.md has what this wall does not contain.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.contract import witness
from tests.support.waiting import until

from casemate import sync

WALLS = ("landlock",)
ATTACK = """
import ctypes, os, resource, signal, socket, sys
canary, port, victim, abstract = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    if libc.syscall(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
def connect(family, address):
    with socket.socket(family) as one:
        one.settimeout(1)
        one.connect(address)
os.symlink(canary, "link")
folder = os.open(".", os.O_RDONLY)
tries = {
    "read": lambda: open(canary).read(), "write": lambda: open(canary, "a").write("x"),
    "read by link": lambda: open("link").read(), "chmod": lambda: os.chmod(canary, 0o777),
    "chmod by link": lambda: os.chmod("link", 0o777), "utime": lambda: os.utime(canary),
    "chmod at": lambda: os.chmod("../../../" + canary, 0o777, dir_fd=folder), "chown": lambda: os.chown(canary, 0, 0),
    "fchmod": lambda: os.fchmod(os.open(sys.executable, os.O_RDONLY), 0o777),
    "xattr": lambda: os.setxattr(canary, "user.x", b"x"), "hard link": lambda: os.link(canary, "hard"),
    "truncate": lambda: os.truncate(canary, 0), "remove": lambda: os.unlink(canary),
    "shared memory": lambda: os.listdir("/dev/shm"), "kill": lambda: os.kill(victim, signal.SIGKILL),
    "kill all": lambda: os.kill(-1, signal.SIGKILL) if len(sys.argv) > 5 else call(62, -victim, 9),
    "kill init": lambda: os.kill(os.getppid(), signal.SIGKILL), "ptrace": lambda: call(101, 16, victim),
    "limits": lambda: resource.prlimit(victim, resource.RLIMIT_NOFILE, (0, 0)),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, victim, 19),
    "affinity": lambda: os.sched_setaffinity(victim, {0}), "memory": lambda: open(f"/proc/{victim}/mem", "rb").read(1),
    "environment": lambda: open(f"/proc/{victim}/environ").read(),
    "argv": lambda: open(f"/proc/{victim}/cmdline").read(),
    "io_uring": lambda: call(425, 1, 0), "namespace": lambda: call(272, 0x10000000), "keys": lambda: call(250, 0, 0),
    "loopback": lambda: connect(socket.AF_INET, ("127.0.0.1", port)),
    "ipv6": lambda: connect(socket.AF_INET6, ("::1", port)),
    "abstract": lambda: connect(socket.AF_UNIX, "\\0" + abstract),
    "unix": lambda: connect(socket.AF_UNIX, canary + ".sock"),
    "unix datagram": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
    "fast open": lambda: socket.socket().sendto(b"x", 0x20000000, ("127.0.0.1", port)),
    "bind abstract": lambda: socket.socket(socket.AF_UNIX).bind("\\0other" + abstract),
    "source route": lambda: socket.socket().setsockopt(0, 4, bytes((131, 7, 4, 192, 0, 2, 1, 0))),
    "device": lambda: socket.socket().setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo"),
    "interface": lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 62, 1),
    "elsewhere": lambda: connect(socket.AF_INET, ("192.0.2.1", 80)),
}
for name, action in tries.items():
    try:
        print(name, "DONE", action())
    except OSError:
        pass
print("end of attack")
"""
FORKS = """
import os, subprocess
print(os.getcwd(), flush=True)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
for hoppers in range(3):
    if os.fork() == 0:
        os.setsid()
        while True:
            if os.fork():
                os._exit(0)
            os.setsid()
"""
HONEST = """
import multiprocessing.connection, os, socket, struct, threading
with socket.create_server(("127.0.0.1", 0)) as server:
    threading.Thread(target=lambda: server.accept()[0].sendall(b"tcp")).start()
    print(socket.create_connection(("localhost", server.getsockname()[1])).recv(9))
place = os.environ["TMPDIR"] + "/socket"
with socket.socket(socket.AF_UNIX) as server:
    server.bind(place)
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect(place)
    server.accept()[0].sendall(b"unix")
    print(client.recv(9))
open("own", "w").close()
os.chmod("own", 0o640)
os.utime("own", (1, 2))
print(oct(os.stat("own").st_mode), os.stat("own").st_mtime)
os.chdir(os.environ["TMPDIR"])
for kind, name in ((socket.SOCK_STREAM, "relative"), (socket.SOCK_SEQPACKET, place + "2")):
    with socket.socket(socket.AF_UNIX, kind) as server, socket.socket(socket.AF_UNIX, kind) as client:
        server.bind(name)
        server.listen()
        client.connect(server.getsockname())
        print(client.getpeername() == name)
        client.sendall(b"x")
        accepted = server.accept()[0]
        print(accepted.recv(9))
        peers = [one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12) for one in (client, accepted)]
        print({struct.unpack("3i", peer)[1:] for peer in peers} == {(os.getuid(), os.getgid())})
with multiprocessing.Manager() as manager:
    print(manager.list([1])[0])
"""

_NAME = """
import ctypes, errno, os, resource, socket, subprocess, sys
def name(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok"
"""
BINDING = """
with socket.create_server(("127.0.0.1", 0)) as server:
    for host in ("127.0.0.1", "0.0.0.0"):
        client = socket.create_connection(server.getsockname(), source_address=(host, 0))
        print(server.accept()[1] == client.getsockname(), name(client.listen))
first, second, third = (socket.socket() for _ in range(3))
first.bind(("127.0.0.1", 0))
place = first.getsockname()
print(name(socket.create_connection, place), name(second.bind, place), name(first.bind, place))
print(name(first.listen), name(first.listen), name(socket.create_connection, place))
with socket.socket() as closed:
    closed.bind(("127.0.0.1", 0))
    place = closed.getsockname()
print(name(second.bind, place), name(second.listen), name(socket.create_connection, place))
print(name(third.listen), name(socket.create_connection, third.getsockname()))
own = socket.socket(socket.AF_UNIX)
own.bind("bound")
print(name(socket.socket(socket.AF_UNIX).connect, "bound"), name(own.listen), name(own.listen))
libc = ctypes.CDLL(None, use_errno=True)
print(libc.listen(999, 1), errno.errorcode[ctypes.get_errno()])
print(name(socket.socket(socket.AF_UNIX).listen), name(socket.socket(type=socket.SOCK_DGRAM).listen))
"""
BOUND = """True EINVAL
True EINVAL
ECONNREFUSED EADDRINUSE EINVAL
ok ok ok
ok ok ok
ok ok
ECONNREFUSED ok ok
-1 EBADF
EINVAL ENOTSUP
"""

COPYING = """
set -e
echo x >a; chmod 640 a; mkdir -p d/e; ln -s a l; touch -d @1 a
cp -p a b; cp -a d l c/ 2>/dev/null || cp -a d c; install -m 644 a i; install -d -m 2755 g
mkdir h; chmod g+s h; cp -a h h2; tar cpf t.tar a d h; mkdir out; tar xpf t.tar -C out
stat -c '%a %Y' b i | head -1; stat -c %a g h h2 out/h
git init -q --shared repo 2>/dev/null; cd repo; echo x >f; git add f; echo added; cd ..
chmod g+s a 2>/dev/null || chmod u+s d 2>/dev/null || echo refused
"""

CALLS = """
open("own", "w").close()
os.symlink("own", "link")
own, child = os.getpid(), subprocess.Popen(["sleep", "100"])
other, high = child.pid, os.getppid()
libc = ctypes.CDLL(None, use_errno=True)
by_name = lambda path, mode: libc.fchmodat(-100, path, mode, 0x100) and ctypes.get_errno()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
fd = os.open("own", os.O_RDONLY)
print(name(os.fchmod, 999, 0o600), name(os.fchown, 999, -1, -1), name(os.chmod, f"/proc/self/fd/{fd}", 0o640))
print(by_name(b"own", 0o600), oct(os.stat("own").st_mode), by_name(b"link", 0o600) in (errno.EOPNOTSUPP, errno.ENOTSUP))
print(name(os.chown, "own", -1, -1), name(os.chown, "own", os.getuid(), os.getgid()), name(os.chown, "own", 12345, -1))
print(name(os.chown, "none", -1, -1), name(os.lchown, "link", -1, -1), name(os.setxattr, "own", "user.a", b"1"))
print(*(name(resource.prlimit, pid, resource.RLIMIT_NOFILE, (soft, hard)) for pid in (own, other, high)))
print(*(name(os.sched_setaffinity, pid, os.sched_getaffinity(0)) for pid in (own, other, high)))
print(*(name(os.setpriority, os.PRIO_PROCESS, pid, 5) for pid in (own, other, high)))
print(*(name(os.setpriority, kind, 0, 6) for kind in (os.PRIO_PGRP, os.PRIO_USER)))
for place in ("/dev/shm/s", "/usr/s", "/tmp/../etc/s", "\\0abstract", "/proc/self/fd/0/s"):
    print(name(socket.socket(socket.AF_UNIX).bind, place))
os.symlink("/var/tmp", "out")
print(name(socket.socket(socket.AF_UNIX).bind, "out/s"), name(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM))
child.kill()
"""
CALLED = """EBADF EBADF ok
0 0o100600 True
ok ok EPERM
ENOENT ok ENOTSUP
ok EPERM EPERM
ok EPERM EPERM
ok EPERM EPERM
EPERM EPERM
EACCES
EACCES
EACCES
EACCES
ENOENT
EACCES EPERM
"""

PROC = """
import os, subprocess
own, thread = "/proc/self", f"/proc/self/task/{os.getpid()}"
machine = ("net/tcp", "net/unix", "mounts", "mountinfo", "mountstats", "cgroup")
for path in (*(f"{place}/{name}" for place in (own, thread) for name in machine), "/proc/net/tcp", "/proc/mounts"):
    try:
        print("READ", path, open(path).read())
    except OSError:
        pass
for name in ("auxv", "cmdline", "comm", "environ", "limits", "maps", "smaps_rollup", "stat", "statm", "status"):
    open(f"{own}/{name}", "rb").read()
print(os.listdir(own + "/fd")[:3], os.listdir(own + "/task") == [str(os.getpid())])
"""
BY_CHILDREN = """
echo one | cat /proc/self/fd/0 /dev/stdin
cat <(echo two)
test -n "$(readlink /proc/self/exe)" && echo three
ls /proc/self/fd || cat /proc/self/status || echo closed
"""


def test_nothing_outside_is_read_changed_reached_or_disturbed(sandbox: sync.Sandbox, scratch: Path) -> None:
    canary = scratch / "canary"
    canary.write_text("canary-secret")
    before = canary.stat()
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        name = f"casemate-{os.urandom(6).hex()}"
        abstract.bind(f"\0{name}")
        unix.bind(f"{canary}.sock")
        for listener in (tcp, abstract, unix):
            listener.listen()
            listener.setblocking(False)
        try:
            # With two slashes the path is nothing of the cell's, which the wall would move.
            arguments = [f"/{canary}", str(tcp.getsockname()[1]), str(victim.pid), name]
            execution = sandbox.run(ATTACK, arguments=arguments)
            assert execution.stdout == "end of attack\n", execution.stderr
            assert victim.poll() is None
        finally:
            victim.kill()
            victim.wait()
        for listener in (tcp, abstract, unix):
            with pytest.raises(BlockingIOError):
                listener.accept()
    assert (canary.stat(), canary.read_text()) == (before, "canary-secret")


def test_of_proc_a_program_reads_what_tells_of_itself_and_nothing_of_the_machine(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run(PROC)
    assert (execution.stdout, execution.stderr) == ("['0', '1', '2'] True\n", "")


def test_processes_that_a_program_starts_open_descriptors_by_name_and_read_no_more_of_proc(
    sandbox: sync.Sandbox,
) -> None:
    assert sandbox.run(BY_CHILDREN, language="shell").stdout == "one\ntwo\nthree\nclosed\n"


def test_nothing_lives_after_a_cell_however_it_forks(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run(FORKS)
    cell = execution.stdout.strip().removesuffix("/workspace")
    assert execution.ok
    assert "/casemate-cells-" in cell
    until(lambda: not _living_in(cell), "everything in the cell has ended")


def _living_in(cell: str) -> list[str]:
    """Processes whose working folder is the cell's."""
    living = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/cwd").startswith(cell):
                living.append(pid)
        except OSError:
            continue
    return living


def test_a_process_that_dies_before_it_reads_its_request_ends_no_other_cell(tmp_path: Path) -> None:
    with sync.Sandbox(isolation="landlock", audit=tmp_path / "audit.db") as one, one.session() as session:
        session.run("mine = 1")
        before = {pid for parent in witness.serving() for pid in witness.children(parent)}
        ready = {pid for pid in before if not witness.children(pid) and b"zygote" not in witness.command(pid)}
        for pid in ready:
            os.kill(pid, signal.SIGSTOP)
        with ThreadPoolExecutor() as threads:
            run = threads.submit(one.run, "echo 1", language="shell")
            until(lambda: {pid for parent in witness.serving() for pid in witness.children(parent)} - before)
            for pid in ready:
                os.kill(pid, signal.SIGKILL)
            assert (run.result().status, run.result().stdout) == ("killed", "")
        assert one.run("echo 2", language="shell").stdout == "2\n"
        assert session.run("mine").text == "1"


def test_an_environment_in_a_folder_that_each_cell_has_of_its_own_is_used() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", f"{folder}/venv"], check=True)
        with sync.Sandbox(isolation="landlock", environment=f"{folder}/venv", audit=f"{folder}/audit.db") as one:
            said = one.run(
                "import sys, tempfile; print(sys.prefix); open(f'{tempfile.gettempdir()}/x', 'w').write('x')"
            )
    assert (said.status, said.stdout) == ("ok", f"{folder}/venv\n")


def test_servers_and_files_of_its_own_are_as_everywhere(sandbox: sync.Sandbox) -> None:
    said = sandbox.run(HONEST)
    assert said.stdout == "b'tcp'\nb'unix'\n0o100640 2.0\n" + 2 * "True\nb'x'\nTrue\n" + "1\n", said.stderr


def test_a_socket_is_bound_listens_and_connects_in_the_order_that_a_program_wants(sandbox: sync.Sandbox) -> None:
    assert sandbox.run(_NAME + BINDING).stdout == BOUND


def test_files_and_folders_are_copied_installed_and_unpacked_with_their_modes(sandbox: sync.Sandbox) -> None:
    said = sandbox.run(COPYING, language="shell")
    assert said.stdout == "640 1\n2755\n2755\n2755\n2755\nadded\nrefused\n", said.stderr


def test_calls_about_oneself_are_answered_as_on_a_machine_and_no_others_are_reached(sandbox: sync.Sandbox) -> None:
    said = sandbox.run(_NAME + CALLS)
    assert said.stdout == CALLED, said.stderr


def test_what_becomes_of_a_callers_folder_is_applied_to_it(sandbox: sync.Sandbox, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    for name in ("changed", "removed", "sub/kept", ".env"):
        (folder / name).write_text(name)
    program = (
        "import os; open('changed', 'a').write('!'); os.remove('removed'); open('sub/new', 'w').close(); "
        "print(os.path.exists('.env')); os.makedirs('.git/hooks'); open('.git/hooks/pre-commit', 'w').close()"
    )
    with sync.Sandbox(isolation="landlock", workspace=folder, audit=tmp_path / "audit.db") as one:
        execution = one.run(program)
        assert (execution.status, execution.stdout) == ("ok", "False\n")
        with one.session() as session:
            session.run("open('step', 'w').write('1')")
            assert (folder / "step").read_text() == "1"
            session.run("import os; os.remove('step')")
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [".env", "changed", "kept", "new"]
    assert (folder / "changed").read_text() == "changed!"


def test_what_a_session_has_changed_is_given_up_with_the_copy_that_it_is_in(
    sandbox: sync.Sandbox, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    (folder / "gone").mkdir(parents=True)
    (folder / "changed").write_text("before")
    sandbox.run("")
    options = {"isolation": "landlock", "workspace": folder, "workspace_mode": "review"}
    with sync.Sandbox(audit=tmp_path / "audit.db", **options) as one, one.session() as session:
        session.run("import os; open('changed', 'w').write('after'); os.rmdir('gone'); open('new', 'w').close()")
        assert len(session.diff().changes) == 3
        (folder / "later").touch()
        session.discard()
        step = session.run("import os; print(open('changed').read(), sorted(os.listdir()))")
        assert (step.state, step.stdout) == ("lost", "before ['changed', 'gone', 'later', 'output']\n")
        assert session.diff().changes == ()
