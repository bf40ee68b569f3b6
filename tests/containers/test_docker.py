"""What the docker wall alone has to do, with a real engine; what every wall does is in tests/contract."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract import witness
from tests.support.engine import skip_without_engine
from tests.support.loopback import answer, serving
from tests.support.waiting import until

from casemate import Done, WallUnavailable, sync
from casemate.walls.docker import containers
from casemate.walls.docker.engine import Engine

pytestmark = pytest.mark.full


@pytest.fixture
def engine() -> Engine:
    return skip_without_engine()


def owners(engine: Engine) -> list[str]:
    found = engine.call("GET", "/containers/json", all="1", filters=f'{{"label":["{containers.LABEL}"]}}')
    return [str(one["Labels"][containers.LABEL]) for one in found]


def test_a_folder_is_brought_up_to_date_without_what_is_hidden(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("secret")
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "old").mkdir()
    (tmp_path / "old/b").write_text("b")
    code = "import os, shutil; print(sorted(os.listdir())); open('a.txt', 'a').write('two'); shutil.rmtree('old')"
    with sync.Sandbox(isolation="docker", workspace=tmp_path) as sandbox:
        assert sandbox.run(code).text == "['a.txt', 'old', 'output']"
    assert (tmp_path / "a.txt").read_text() == "onetwo"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".env", "a.txt"]


def test_a_cell_writes_only_where_the_size_is_limited(engine: Engine) -> None:
    """Not to what the image wants kept on a disk."""
    code = """
for line in open("/proc/self/mountinfo"):
    place, kind = line.split()[4], line.split(" - ")[1].split()[0]
    try:
        open(f"{place}/x", "w").close()
        print(kind, place)
    except OSError:
        pass
"""
    with sync.Sandbox(isolation="docker") as sandbox:
        written = sandbox.run(code).text.splitlines()
    assert "tmpfs /workspace" in written
    assert [line for line in written if not line.startswith("tmpfs ")] == []


@pytest.fixture
def port() -> Iterator[int]:
    with serving(lambda request: answer(request, b"hello")) as one:
        yield one


def test_a_program_reaches_by_name_what_is_allowed_and_nothing_else(engine: Engine, port: int) -> None:
    code = f"""import socket, urllib.request
print(urllib.request.urlopen("http://host.casemate.internal:{port}/").read())
for place in (("example.org", 80), ("192.0.2.1", 80)):
    try:
        socket.create_connection(place, 2)
    except OSError:
        print("refused")
"""
    with sync.Sandbox(isolation="docker", allow_local=[port]) as sandbox:
        assert sandbox.run(code).text.split() == ["b'hello'", "refused", "refused"]


@pytest.fixture
def by_tcp(engine: Engine) -> Iterator[str]:
    """A port of loopback that leads to the engine."""

    class Forwarder(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as there:
                there.connect(engine.address.removeprefix("unix://"))
                back = threading.Thread(target=copy, args=(there, self.request), daemon=True)
                back.start()
                copy(self.request, there)
                back.join()

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forwarder) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"tcp://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_an_engine_is_reached_by_tcp(by_tcp: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", by_tcp)
    (tmp_path / "a.txt").write_text("one")
    with sync.Sandbox(isolation="docker", workspace=tmp_path) as sandbox, sandbox.session() as session:
        assert session.run("open('b.txt', 'w').write(open('a.txt').read() + 'two')").ok
        assert by_tcp in " ".join(sandbox.run("1").isolation.layers)
    assert (tmp_path / "b.txt").read_text() == "onetwo"


def test_a_killed_application_leaves_no_container(engine: Engine) -> None:
    code = (
        "from casemate import sync\n"
        "s = sync.Sandbox(isolation='docker').__enter__()\n"
        "s.run('1')\nprint('there', flush=True)\nwhile True: pass\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ}) as application:
        assert application.stdout is not None
        assert application.stdout.readline() == b"there\n"
        mine = [owner for owner in owners(engine) if f" {application.pid} " in owner]
        assert mine
        application.send_signal(signal.SIGKILL)
    until(lambda: not set(mine) & set(owners(engine)))


@pytest.mark.root_only
def test_the_end_of_a_cell_whose_supervisor_keeps_no_clock_is_told_when_nothing_of_it_lives(engine: Engine) -> None:
    code = "print('here', flush=True); import time; time.sleep(100)"
    with (
        sync.Sandbox(isolation="docker") as sandbox,
        witness.leaving(sandbox.stream(code, timeout=8)) as stream,
    ):
        next(stream)
        with witness.watching(witness.in_cells()) as watched:
            assert watched.living() >= 2, "the control"
            for pid in witness.serving():
                os.kill(pid, signal.SIGSTOP)
            *_, last = stream
            assert isinstance(last, Done)
            assert (last.execution.status, watched.living()) == ("timeout", 0)


def test_gvisor_is_a_kernel_of_its_own() -> None:
    skip_without_engine("runsc")
    with sync.Sandbox(isolation="docker", runtime="runsc", policy={"isolation": {"at_least": "own-kernel"}}) as sandbox:
        execution = sandbox.run("import os; print(os.uname().release)")
    assert execution.isolation.kernel_boundary == "user-space"
    assert execution.text != os.uname().release


def test_a_shared_kernel_is_refused_where_the_policy_wants_another(engine: Engine) -> None:
    policy = {"isolation": {"at_least": "own-kernel"}}
    with sync.Sandbox(isolation="docker", policy=policy) as sandbox, pytest.raises(WallUnavailable) as refused:
        sandbox.run("1")
    assert refused.value.reason == "too_weak"
