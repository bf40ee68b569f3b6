"""Landlock in a real kernel: a child that is restricted, and the traces that it leaves or does not."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from tests.unit.supervisor.child import FILTER, NO_FILTER, SOURCE, told_by

from casemate.supervisor import landlock

pytestmark = pytest.mark.skipif(landlock.abi() < 6, reason="needs Linux 6.12 or newer, with Landlock switched on")

BASE = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", sys.prefix, sys.base_prefix, str(SOURCE)]
DEVICES = ["/dev/null", "/dev/urandom", "/dev/ptmx", "/dev/pts"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("work", "other", "readable", "secret"):
        (tmp_path / name).mkdir()
    (tmp_path / "secret" / "canary").write_text("alive")
    (tmp_path / "readable" / "text").write_text("text")
    (tmp_path / "readable" / "sibling").write_text("sibling")
    return tmp_path


def restricted(
    folder: Path, readable: list[str] | None = None, devices: list[str] | None = None, listable: tuple[str, ...] = ()
) -> str:
    """A wall: the child reads the base and `readable`, writes `work` and `other`. It has no capabilities."""
    names = [str(folder / "readable")] if readable is None else readable
    writable = [str(folder / "work"), str(folder / "other")]
    return f"""
from casemate.supervisor import kernel
import socket, subprocess, threading
kernel.drop_capabilities()
USED = landlock.restrict({BASE + names!r}, {writable!r}, {DEVICES if devices is None else devices!r}, {listable!r})
"""


def told(folder: Path, program: str, wall: str | None = None) -> object:
    return told_by(program, wall=restricted(folder) if wall is None else wall, cwd=folder / "work")


def read_canary_by(way: str) -> str:
    return f"""
def read():
    {way}
tell(attempt(read))
"""


WAYS = {
    "its name": "open('../secret/canary').read()",
    "a link": "os.symlink('../secret/canary', 'link'); open('link').read()",
    "proc's root": "open('/proc/self/root' + os.path.abspath('../secret/canary')).read()",
    "proc's working directory": "open('/proc/self/cwd/../secret/canary').read()",
    "a directory's descriptor": "os.open('canary', os.O_RDONLY, dir_fd=os.open('../secret', os.O_PATH))",
    "a child process": "subprocess.check_call(['sh', '-c', '! cat ../secret/canary']); raise PermissionError(13, '')",
    "truncating it": "os.truncate('../secret/canary', 0)",
    "listing": "os.listdir('../secret')",
    "removing it": "os.unlink('../secret/canary')",
    "moving it": "os.rename('../secret/canary', 'canary')",
    "a file beside it": "open('../secret/new', 'w')",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_canary_outside_cannot_be_reached_by(way: str, folder: Path) -> None:
    assert told(folder, read_canary_by(WAYS[way])) == "EACCES"
    assert [path.name for path in (folder / "secret").iterdir()] == ["canary"]
    assert (folder / "secret" / "canary").read_text() == "alive"


@pytest.mark.parametrize("way", [way for way in WAYS if way != "a child process"])
def test_without_landlock_each_of_these_ways_leads_there(way: str, folder: Path) -> None:
    unrestricted = "from casemate.supervisor import kernel; kernel.drop_capabilities(); import subprocess\n"
    assert told(folder, read_canary_by(WAYS[way]), wall=unrestricted) is None


def test_a_hard_link_to_a_canary_gives_nothing_away(folder: Path) -> None:
    assert told(folder, "tell(attempt(os.link, '../secret/canary', 'hard'))") in ("EACCES", "EXDEV")
    assert list((folder / "work").iterdir()) == []


def test_everything_but_devices_can_be_made_in_a_writable_directory(folder: Path) -> None:
    program = """
os.mkdir('d'); os.symlink('d', 'l'); os.mkfifo('f'); socket.socket(socket.AF_UNIX).bind('s')
open('a', 'w').write('abcdef'); os.truncate('a', 3); os.link('a', 'd/b'); os.rename('a', 'd/c')
open('gone', 'w').close(); os.unlink('gone'); os.mkdir('e'); os.rmdir('e')
tell([open('d/b').read(), sorted(os.listdir('.'))])
"""
    assert told(folder, program) == ["abc", ["d", "f", "l", "s"]]


def test_a_program_in_a_writable_directory_can_be_executed(folder: Path) -> None:
    program = """
with open('p', 'w') as file:
    file.write('#!/bin/sh\\necho ran')
os.chmod('p', 0o755)
tell(subprocess.check_output(['./p'], text=True))
"""
    assert told(folder, program) == "ran\n"


def test_no_device_can_be_made_not_even_a_whiteout(folder: Path) -> None:
    program = "tell(attempt(os.mknod, 'w', 0o020600, 0))"

    assert told(folder, program) == "EACCES"
    assert told(folder, program, wall=NO_FILTER) is None


def test_files_and_directories_move_between_two_writable_directories(folder: Path) -> None:
    program = """
open('a', 'w').write('moved'); os.rename('a', '../other/a')
os.mkdir('d'); os.rename('d', '../other/d')
tell('moved')
"""
    told(folder, program)
    assert (folder / "other" / "a").read_text() == "moved"
    assert (folder / "other" / "d").is_dir()


def test_what_is_readable_can_be_read_and_not_changed(folder: Path) -> None:
    program = """
tell([open('../readable/text').read(), sorted(os.listdir('../readable'))] + [attempt(*each) for each in (
    (open, '../readable/text', 'a'), (open, '../readable/new', 'w'), (os.truncate, '../readable/text', 0),
    (os.unlink, '../readable/text'), (os.mkdir, '../readable/d'), (os.rename, '../readable/text', 'text'),
)])
"""
    assert told(folder, program) == ["text", ["sibling", "text"], *["EACCES"] * 6]
    assert (folder / "readable" / "text").read_text() == "text"


def test_a_single_file_can_be_readable_without_its_siblings(folder: Path) -> None:
    wall = restricted(folder, readable=[str(folder / "readable" / "text")])
    program = """
tell([open('../readable/text').read(), attempt(open, '../readable/sibling'), attempt(os.listdir, '../readable')])
"""
    assert told(folder, program, wall) == ["text", "EACCES", "EACCES"]


def test_names_below_a_listable_directory_are_read_and_no_more(folder: Path) -> None:
    wall = restricted(folder, listable=(str(folder),))
    program = "tell([os.listdir('../secret'), attempt(open, '../secret/canary'), attempt(open, '../new', 'w')])"

    assert told(folder, program, wall) == [["canary"], "EACCES", "EACCES"]


def test_a_device_that_is_named_works_and_another_does_not(folder: Path) -> None:
    program = """
open('/dev/null', 'w').write('x'); open('/dev/urandom', 'rb').read(8)
tell([subprocess.call('echo x > /dev/null', shell=True), attempt(open, '/dev/zero')])
"""
    assert told(folder, program) == [0, "EACCES"]


def test_terminals_can_be_opened_and_controlled(folder: Path) -> None:
    program = """
import pty, tty
master, terminal = pty.openpty()
again = os.open(os.ttyname(terminal), os.O_RDWR | os.O_NOCTTY)
tty.setraw(again)
tell(os.isatty(again))
"""
    assert told(folder, program) is True


def test_a_terminal_that_is_not_named_cannot_be_opened(folder: Path) -> None:
    assert (
        told(folder, "tell(attempt(os.open, '/dev/ptmx', os.O_RDWR))", restricted(folder, devices=["/dev/null"]))
        == "EACCES"
    )


def test_a_terminal_that_is_only_readable_cannot_be_controlled(folder: Path) -> None:
    program = """
import fcntl, struct, termios
master = os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)
fcntl.ioctl(master, 0x40045431, struct.pack('i', 0))
number, = struct.unpack('i', fcntl.ioctl(master, 0x80045430, bytes(4)))
terminal = os.open(f'/dev/pts/{number}', os.O_RDONLY | os.O_NOCTTY)
tell(attempt(fcntl.ioctl, terminal, termios.TCSBRK, 1))
"""
    assert told(folder, program, restricted(folder, readable=["/dev/pts"], devices=["/dev/ptmx"])) == "EACCES"
    assert told(folder, program) is None


def test_a_path_that_does_not_exist_is_passed_over(folder: Path) -> None:
    wall = restricted(folder, readable=[str(folder / "nothing here"), str(folder / "readable")])

    assert told(folder, "tell(open('../readable/text').read())", wall) == "text"


def test_a_path_that_cannot_be_opened_is_an_error(folder: Path) -> None:
    program = f"tell(attempt(landlock.restrict, [{str(folder / 'readable/text/below')!r}], [], []))"

    assert told(folder, program, wall=NO_FILTER) == "ENOTDIR"


def test_signals_reach_only_what_is_restricted_too(folder: Path) -> None:
    program = f"""
child = subprocess.Popen(['sleep', '100'])
child.terminate()
tell([child.wait(), attempt(os.kill, {os.getpid()}, 0)])
"""
    assert told(folder, program) == [-15, "EPERM"]


def test_abstract_sockets_of_others_cannot_be_connected_to(folder: Path) -> None:
    name = f"\0casemate-test-{os.getpid()}"
    program = f"""
def connect():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect({name!r})
tell(attempt(connect))
"""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        assert told(folder, program) == "EPERM"
        assert told(folder, program, wall="import socket") is None


def test_a_thread_that_is_started_later_is_restricted(folder: Path) -> None:
    program = """
said = []
thread = threading.Thread(target=lambda: said.append(attempt(open, '../secret/canary')))
thread.start(); thread.join()
tell(said)
"""
    assert told(folder, program) == ["EACCES"]


def test_the_version_that_was_made_use_of_is_returned(folder: Path) -> None:
    assert told(folder, "tell(USED)") == min(landlock.abi(), 7)


def test_restricting_brings_no_new_privs_with_it(folder: Path) -> None:
    program = "tell([line for line in open('/proc/self/status') if line.startswith('NoNewPrivs')])"

    assert told(folder, program) == ["NoNewPrivs:\t1\n"]


def test_a_kernel_without_landlock_is_told_apart_and_refuses_to_restrict(folder: Path) -> None:
    # behind casemate's own filter landlock does not exist
    program = "tell([landlock.abi(), attempt(landlock.restrict, ['/usr'], [], [])])"

    assert told(folder, program, wall=FILTER) == [0, "ENOSYS"]
