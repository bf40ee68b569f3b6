"""Where the service lies, and who can reach it there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import threading
from pathlib import Path

import pytest
from tests.service.daemon import Daemon, serving
from tests.support.waiting import until

from casemate.errors import Unavailable
from casemate.remote.address import Address, connect
from casemate.remote.places import open_private, places_of
from casemate.surfaces.http.daemon import ServiceLock


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.full
def test_the_socket_and_its_folder_are_the_users_alone_whatever_the_umask(env: dict[str, str]) -> None:
    with serving(env) as daemon:
        assert mode(daemon.socket) == 0o600
        assert mode(daemon.socket.parent) == 0o700
        kept = [one for one in daemon.places.state.rglob("*") if not one.is_symlink()]
        assert kept
        assert [one for one in kept if mode(one) & 0o077] == []


@pytest.mark.parametrize("runtime", ["", "not/absolute", "/nonexistent/folder"])
def test_without_a_runtime_folder_the_socket_lies_with_the_state(env: dict[str, str], runtime: str) -> None:
    places = places_of({**env, "XDG_RUNTIME_DIR": runtime})
    assert places.sockets == places.state


def test_a_runtime_folder_that_others_may_write_to_is_not_used(env: dict[str, str]) -> None:
    Path(env["XDG_RUNTIME_DIR"]).chmod(0o777)
    places = places_of(env)
    assert places.sockets == places.state


@pytest.mark.full
def test_a_client_with_other_variables_finds_the_service_that_runs(env: dict[str, str]) -> None:
    with serving(env) as daemon:
        other = Daemon({**env, "XDG_RUNTIME_DIR": ""})
        assert "ok" in other.command("service", "status").stdout
        ran = Daemon({**env, "XDG_RUNTIME_DIR": ""}).command("service", check=False)
        assert ran.returncode == 69
        assert f"already running: process {daemon.process.pid}" in ran.stderr if daemon.process else False


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_a_folder_that_is_not_ours_alone_is_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "sockets"
    if kind == "open":
        folder.mkdir()
        folder.chmod(0o755)
    elif kind == "link":
        (tmp_path / "other").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "other")
    else:
        folder.write_text("")
    with pytest.raises(Unavailable, match="cannot be used for the service"):
        open_private(folder)
    with pytest.raises(Unavailable):
        connect(Address(folder=folder), 1)


@pytest.mark.root_only
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(Unavailable, match="another user"):
        open_private(folder)


@pytest.mark.root_only
def test_nothing_is_said_to_a_socket_that_another_user_holds(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir(mode=0o700)
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            one = socket.socket(socket.AF_UNIX)
            one.bind(str(folder / "service.sock"))
            os.setuid(12345)
            one.listen()
            os.write(ready_write, b"x")
            signal.pause()
        finally:
            os._exit(0)
    try:
        assert os.read(ready_read, 1) == b"x"
        with pytest.raises(Unavailable, match="another user"):
            connect(Address(folder=folder), 5)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready_read)
        os.close(ready_write)


@pytest.mark.root_only
def test_another_user_is_not_answered_even_where_modes_let_them_in(env: dict[str, str]) -> None:
    with serving(env) as daemon:
        path = daemon.socket
        for place in (path.parent, path.parent.parent, path.parent.parent.parent):  # to the test's own folder
            place.chmod(0o755)
        path.chmod(0o777)
        received, said = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setuid(12345)
                one = socket.socket(socket.AF_UNIX)
                one.connect(str(path))
                answer = b""
                with contextlib.suppress(ConnectionError):  # it may be closed already
                    one.sendall(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    answer = one.recv(100)
                os.write(said, b"got " + answer)
            except OSError as error:
                os.write(said, f"failed {error}".encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(received, 200) == b"got "
        os.close(received)
        os.close(said)


@pytest.mark.full
def test_a_socket_that_a_dead_service_left_is_replaced(env: dict[str, str]) -> None:
    with serving(env) as daemon:
        daemon.kill()
        assert daemon.socket.exists()
        again = Daemon(env).start()
        try:
            assert "ok" in again.command("service", "status").stdout
        finally:
            again.stop()
        assert not daemon.socket.exists()


@pytest.mark.full
def test_a_path_that_is_longer_than_a_socket_address_can_be_used(env: dict[str, str]) -> None:
    state = Path(env["XDG_STATE_HOME"]) / ("deep" * 30)
    state.mkdir(mode=0o700)
    with serving({**env, "XDG_RUNTIME_DIR": "", "XDG_STATE_HOME": str(state)}) as daemon:
        assert len(str(daemon.socket)) > 108
        assert "ok" in daemon.command("service", "status").stdout


def test_only_one_service_holds_a_state_folder(env: dict[str, str]) -> None:
    places = places_of(env)
    first = ServiceLock(places)
    with pytest.raises(Unavailable, match="already running"):
        ServiceLock(places)
    first.close()
    ServiceLock(places).close()


async def test_a_service_with_another_state_folder_leaves_the_first_its_socket(env: dict[str, str]) -> None:
    other = {**env, "XDG_STATE_HOME": env["HOME"]}
    with serving(env) as daemon:
        first = await daemon.connect()
        session = await first("sessions.open")
        await first.close()
        second = Daemon(other).command("service", "--idle-stop", "1", check=False)
        assert (second.returncode, str(daemon.places.state) in second.stderr) == (69, True), second.stderr
        again = await daemon.connect()
        assert [one["session"] for one in await again("sessions.list")] == [session["session"]]
        await again.close()
        assert daemon.stop() == 0
    with serving(other) as later:
        assert "ok" in later.command("service", "status").stdout


def test_a_service_that_is_replaced_while_it_ends_does_not_take_the_others_socket(env: dict[str, str]) -> None:
    places = places_of(env)
    first = ServiceLock(places)
    listening = first.bind_socket()
    os.unlink(places.sockets / "service.sock")
    (places.sockets / "service.sock").write_text("another's")
    first.close()
    listening.close()
    assert (places.sockets / "service.sock").read_text() == "another's"


def test_whoever_connects_while_it_is_replaced_finds_one_or_the_other(env: dict[str, str]) -> None:
    places, failures, stopped = places_of(env), [], threading.Event()
    held = ServiceLock(places)
    listening = [held.bind_socket()]

    def connecting() -> None:
        while not stopped.is_set():
            try:
                connect(Address(folder=places.sockets), 5).close()
            except OSError as error:
                failures.append(error)

    thread = threading.Thread(target=connecting)
    thread.start()
    listening += [held.bind_socket() for _ in range(50)]
    stopped.set()
    thread.join()
    for one in listening:
        one.close()
    held.close()
    assert failures == []
    assert until(lambda: not (places.sockets / "service.sock").exists())
