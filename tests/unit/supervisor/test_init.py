"""Init in both its forms, machine code and an interpreter's copy: what each does with a list of calls and tells."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from casemate.supervisor import calls, init, kernel, native_init, wire
from casemate.walls.native import launch

FORMS: dict[str, Callable[[list[int], bytes], None]] = {
    "interpreted": lambda ends, prepared: init.run(ends[0], ends[1], ends[2:], b"", prepared),
}
if (NATIVE := native_init.load()) is not None:
    FORMS["native"] = partial(lambda native, ends, prepared: native.run(ends, b"", prepared), NATIVE)


PACKAGES = init.__file__.rsplit("/", 3)[0]
_ONE = struct.Struct("=11q")  # a list of one call, without the bytes that it points to
BROKEN = {
    "nothing": b"",
    "less than a count": b"short",
    "a count below 0": struct.pack("=q", -1),
    "more calls than there are": struct.pack("=q", 2000) + bytes(80),
    "a label that lies elsewhere": _ONE.pack(1, 1, 39, 0, 1 << 40, *[0] * 6),
    "a descriptor that did not come": _ONE.pack(1, 1, 39, 2, 0, 63, *[0] * 5) + b"x\0",
    "a result that is not there yet": _ONE.pack(1, 1, 39, 2, 0, 64, *[0] * 5) + b"x\0",
    "a kind that there is not": _ONE.pack(1, 9, 39, 0, 0, *[0] * 6) + b"x\0",
}


@dataclass
class Started:
    """An init: our end of its channel, and of its status pipe."""

    pid: int
    channel: socket.socket
    status: int

    def told(self) -> bytes:
        """All that it has told when it has ended."""
        parts = iter(lambda: os.read(self.status, 4096), b"")
        return b"".join(parts)

    def failure(self) -> Any:
        """Why there is no program."""
        return wire.decode(self.told())

    def request(self, walls: calls.CallList, *fds: int) -> None:
        """Ask for a program that is executed, the first of ``fds``."""
        encoded = walls.encode()
        with_control = 4
        kernel.send_fds(self.channel, struct.pack("=qq", with_control, len(encoded)) + encoded, fds)


@pytest.fixture(params=FORMS)
def begin(request: pytest.FixtureRequest) -> Iterator[Callable[[calls.CallList], Started]]:
    """Starts one without any namespace, whose ids count as mapped."""
    all_of_them: list[Started] = []

    def begin(prepared: calls.CallList) -> Started:
        encoded = prepared.encode()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        status, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            FORMS[request.param]([theirs.fileno(), told], encoded)
            os._exit(99)
        theirs.close()
        os.close(told)
        ours.send(init.MAPPED)
        all_of_them.append(Started(pid, ours, status))
        return all_of_them[-1]

    yield begin
    for one in all_of_them:
        one.channel.close()
        os.close(one.status)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(one.pid, 0)


def a_list(*more: tuple[str, Any]) -> calls.CallList:
    made = calls.CallList()
    made.phase("masks")
    for name, arguments in more:
        made.call(name, *arguments)
    return made


def command(*argv: str) -> int:
    return launch.payload(argv, {"GREETING": "hello"}, "/")


def test_the_phase_and_the_call_that_failed_are_told(begin: Callable[[calls.CallList], Started]) -> None:
    told = begin(a_list(("umask", (0o022,)), ("chdir", ("/nowhere/at/all",)))).failure()
    assert (told["failed"], told["errno"]) == ("masks", 2)
    assert told["detail"] == "[Errno 2] No such file or directory: 'chdir /nowhere/at/all'"


def test_a_failure_is_told_where_its_path_is_long(begin: Callable[[calls.CallList], Started]) -> None:
    told = begin(a_list(("chdir", ("/nowhere" * 200,)))).failure()
    assert told["errno"] == 2
    assert "chdir /nowhere/nowhere" in told["detail"]


def test_no_program_begins_where_not_all_descriptors_came(begin: Callable[[calls.CallList], Started]) -> None:
    walls = calls.CallList()
    init.add_descriptors(walls, {"payload": calls.Reference(0), "status": init.STATUS})
    one = begin(a_list())
    kernel.receive_fds(one.channel, 1, 2)
    one.request(walls, *[command("/bin/true")] * (wire.MAX_DESCRIPTORS + 1))
    told = one.failure()
    assert (told["failed"], told["errno"]) == ("request", 24)  # EMFILE


def test_an_attempt_may_fail_and_a_result_is_found_by_what_follows(begin: Callable[[calls.CallList], Started]) -> None:
    made = a_list()
    made.attempt("chdir", "/nowhere/at/all")
    file = made.call("openat", kernel.AT_FDCWD, "/proc/self/comm", os.O_RDONLY, 0)
    made.call("close", file)
    made.call("close", file)
    assert begin(made).failure()["errno"] == 9  # EBADF: the second time


def test_a_command_gets_its_variables_and_its_end_is_reported(begin: Callable[[calls.CallList], Started]) -> None:
    walls = calls.CallList()
    init.add_descriptors(walls, {"payload": calls.Reference(0), "status": init.STATUS})
    one = begin(a_list())
    assert kernel.receive_fds(one.channel, 1, 2)[0] == init.PREPARED
    one.request(walls, command("/bin/sh", "-c", 'test "$GREETING" = hello && exit 7'))
    mark, code, peak, _, _ = init.REPORT.unpack(one.told())
    assert (mark, os.waitstatus_to_exitcode(code)) == (b"x", 7)
    assert peak > 0


@pytest.mark.parametrize("argv", [("/nowhere/at/all",), ("/etc/passwd",)])
def test_a_command_that_cannot_be_executed_is_told(
    begin: Callable[[calls.CallList], Started], argv: tuple[str]
) -> None:
    walls = calls.CallList()
    init.add_descriptors(walls, {"payload": calls.Reference(0), "status": init.STATUS})
    one = begin(a_list())
    kernel.receive_fds(one.channel, 1, 2)
    one.request(walls, command(*argv))
    assert one.failure()["failed"] == "exec"


def test_rights_at_a_path_that_is_missing_are_passed_over(begin: Callable[[calls.CallList], Started]) -> None:
    from casemate.supervisor import landlock

    if not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    made = a_list()
    landlock.add_restriction(made, ["/usr", "/nowhere/at/all"], [], ["/dev/null"])
    made.call("openat", kernel.AT_FDCWD, "/etc/passwd", os.O_RDONLY, 0)
    assert begin(made).failure()["errno"] == 13


@pytest.mark.skipif(NATIVE is None, reason="init.c was not compiled")
@pytest.mark.parametrize("broken", BROKEN)
def test_a_list_that_makes_no_sense_is_refused(broken: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    status, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        FORMS["native"]([theirs.fileno(), told], BROKEN[broken])
        os._exit(99)
    theirs.close()
    os.close(told)
    ours.send(init.MAPPED)
    with open(status, "rb") as pipe, ours:
        assert wire.decode(pipe.read())["errno"] == 22
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 125


@pytest.mark.skipif(NATIVE is None, reason="init.c was not compiled")
def test_a_library_of_another_init_c_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("libinit.so", "init.c"):
        shutil.copy(f"{PACKAGES}/casemate/supervisor/{name}", tmp_path)
    monkeypatch.setattr(native_init, "_FOLDER", str(tmp_path))
    assert native_init.load() is not None
    (tmp_path / "init.c").write_text("/* changed */")
    assert native_init.load() is None


def test_a_list_may_follow_another() -> None:
    made = a_list(("chdir", ("/odd",)))
    assert len(made.encode()) % 8 == 0  # a record's words are aligned


def test_lists_are_made_where_casemate_is_hidden_from_a_program() -> None:
    hide = "[sys.modules.pop(name) for name in [*sys.modules] if name.startswith('casemate')]"
    code = f"""
import sys
sys.path.append({PACKAGES!r})
from casemate.supervisor import init
sys.path.pop(); {hide}
init.do(init.add_rlimits, {{"CORE": 0}})
"""
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_a_command_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(wire.WireError, match="zero byte"):
        wire.encode_command(("/bin/echo", "a\0b"), {}, "/")
