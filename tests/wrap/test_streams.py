"""Standard streams, signals and ends of a wrapped command: they are its own, as if nothing were between."""

from __future__ import annotations

import hashlib
import os
import resource
import select
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.wrap.conftest import WITHIN, Wrap, line_of

Starting = Callable[..., "subprocess.Popen[bytes]"]
_BIG = 200 << 20
_PIECE = os.urandom(1 << 20)


@pytest.mark.parametrize("data", [b"", b"text\n", bytes(range(256)) * 999, b"no newline"])
def test_bytes_pass_as_they_are_and_so_does_their_end(wrap: Wrap, data: bytes) -> None:
    done = wrap("--", "cat", stdin=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, data, b"")


def test_a_command_that_writes_more_than_its_policy_lets_it_is_ended_there(wrap: Wrap) -> None:
    (wrap.folder.parent / "policy.yaml").write_text("limits: {full_output: 8KiB}\n")
    options = ("--policy", str(wrap.folder.parent / "policy.yaml"))
    enough = wrap.shell("head -c 5192 /dev/zero; head -c 3000 /dev/zero >&2", *options)
    assert (enough.returncode, len(enough.stdout), len(enough.stderr)) == (0, 5192, 3000)
    more = wrap.shell("cat /dev/zero", *options)
    assert (more.returncode != 0, len(more.stdout), b"limits.full_output" in more.stderr) == (True, 8192, True)


def test_two_hundred_megabytes_go_both_ways_at_once_in_little_memory(started: Starting) -> None:
    process = started("--", "cat")
    assert process.stdin
    assert process.stdout
    sent, received = hashlib.sha256(), hashlib.sha256()

    def feed() -> None:
        assert process.stdin
        for _ in range(_BIG // len(_PIECE)):
            sent.update(_PIECE)
            process.stdin.write(_PIECE)
        process.stdin.close()

    feeder = threading.Thread(target=feed)
    feeder.start()
    most = 0
    while data := os.read(process.stdout.fileno(), 1 << 20):
        received.update(data)
        most = max(most, int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]))
    feeder.join(WITHIN)
    assert received.digest() == sent.digest()
    assert most * resource.getpagesize() < 100 << 20
    assert process.wait(WITHIN) == 0


def test_a_reader_that_does_not_read_makes_the_command_wait_and_not_the_other_stream(started: Starting) -> None:
    process = started("--", "bash", "-c", "head -c 10000000 /dev/zero >&2 & echo here; read line; echo $line; wait")
    assert process.stdin
    assert process.stderr
    assert line_of(process) == b"here\n"
    process.stdin.write(b"answer\n")
    process.stdin.flush()
    assert line_of(process) == b"answer\n"
    assert len(process.stderr.read()) == 10_000_000


def test_what_is_said_comes_at_once(started: Starting) -> None:
    process = started("--", "bash", "-c", "while read line; do echo got $line; done")
    assert process.stdin
    for number in range(3):
        process.stdin.write(b"%d\n" % number)
        process.stdin.flush()
        assert line_of(process) == b"got %d\n" % number


def test_the_end_of_stdout_is_passed_on_while_the_command_runs(started: Starting) -> None:
    process = started("--", "bash", "-c", "echo last; exec >&-; read line; echo $line >&2")
    assert process.stdin
    assert process.stdout
    assert process.stderr
    assert process.stdout.read() == b"last\n"
    assert process.poll() is None
    process.stdin.write(b"more\n")
    process.stdin.close()
    assert process.stderr.read() == b"more\n"


def test_a_command_that_reads_no_more_is_noticed_by_who_writes(started: Starting) -> None:
    process = started("--", "bash", "-c", "exec <&-; echo closed; sleep 60")
    assert process.stdin
    assert line_of(process) == b"closed\n"
    poll = select.poll()
    poll.register(process.stdin, 0)
    assert poll.poll(WITHIN * 1000)  # POLLERR: nobody has the other end
    with pytest.raises(BrokenPipeError):
        process.stdin.write(b"x")
        process.stdin.flush()


def test_a_reader_that_is_gone_ends_a_command_that_writes(started: Starting) -> None:
    process = started("--", "bash", "-c", "trap '' TERM; yes")
    assert process.stdout
    process.stdout.read(1000)
    process.stdout.close()
    assert process.wait(WITHIN) == 0 or process.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize(("text", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)])
def test_the_exit_code_is_the_commands(wrap: Wrap, text: str, code: int) -> None:
    assert wrap.shell(text).returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_the_commands_to_handle(started: Starting, number: signal.Signals) -> None:
    text = f"trap 'echo told; exit 9' {number.value}; echo ready; while :; do read -t 0.1; done"
    process = started("--", "bash", "-c", text)
    assert line_of(process) == b"ready\n"
    process.send_signal(number)
    assert line_of(process) == b"told\n"
    assert process.wait(WITHIN) == 9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_not_handled_ends_it(started: Starting, number: signal.Signals) -> None:
    process = started("--", "bash", "-c", "echo ready; exec sleep 60")
    assert line_of(process) == b"ready\n"
    process.send_signal(number)
    assert process.wait(WITHIN) == 128 + number


def test_with_its_caller_everything_in_the_cell_dies(started: Starting, wrap: Wrap) -> None:
    text = "sleep 1000 & exec 9<>pipe; echo ready; sleep 1000"
    os.mkfifo(wrap.folder / "pipe")
    process = started("--", "bash", "-c", text)
    assert line_of(process) == b"ready\n"
    ours = os.open(wrap.folder / "pipe", os.O_WRONLY | os.O_NONBLOCK)  # the cell has it open to read
    process.kill()
    process.wait(WITHIN)
    poll = select.poll()
    poll.register(ours, 0)
    try:
        assert poll.poll(WITHIN * 1000) == [(ours, select.POLLERR)]  # nobody in the cell has it any more
    finally:
        os.close(ours)


def test_a_command_that_has_ended_takes_what_it_left_running_with_it(wrap: Wrap) -> None:
    assert wrap.shell("sleep 1000 & echo done").stdout == b"done\n"


def test_there_is_no_terminal_inside(wrap: Wrap) -> None:
    text = "for fd in 0 1 2; do readlink /proc/self/fd/$fd; done; (: < /dev/tty) 2>/dev/null || echo none; ls /dev/pts"
    lines = wrap.shell(text).stdout.decode().split()
    assert [line.partition(":")[0] for line in lines[:3]] == ["pipe", "pipe", "pipe"]
    assert lines[3:] == ["none", "ptmx"]


def test_a_command_without_end_has_no_deadline_and_one_with_a_timeout_has(wrap: Wrap) -> None:
    done = wrap.shell("echo begun; sleep 100", "--timeout", "4")
    assert (done.returncode, done.stdout) == (124, b"begun\n")
    assert b"casemate: timeout" in done.stderr
