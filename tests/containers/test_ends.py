"""A container that ends, or a sandbox that is closed, at any moment leaves nothing behind, and no file is lost."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import MAX_WAIT, until

from casemate import sync
from casemate.errors import CasemateError, RecordUnavailable
from casemate.walls.docker import containers
from casemate.walls.docker.cell import CarriedCell
from casemate.walls.docker.engine import Engine, find

pytestmark = pytest.mark.usefixtures("docker")
# The supervisor, which stops at a large folder.
DEAF = """
import time
from casemate.supervisor import carriage
from casemate.supervisor.contained import main
take = carriage.Channels.take

def take_little(self, kind, number, payload):
    if len(payload) == carriage.MAX_PIECE:
        time.sleep(1000)
    take(self, kind, number, payload)

carriage.Channels.take = take_little
main.main()
"""


def own_containers(engine: Engine) -> list[str]:
    label = f'{{"label":["{containers.LABEL}={containers.owner_mark()}"]}}'
    return [str(one["Id"]) for one in engine.call("GET", "/containers/json", all="1", filters=label)]


def memory_files() -> int:
    """How many this process has open, which hold what programs get."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            found += os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:")
    return found


@pytest.mark.parametrize("has_folder", [True, False])
@pytest.mark.parametrize("code", ["import os; os._exit(1)", "1"])
def test_a_session_goes_on_with_its_files_in_another_container(code: str, has_folder: bool, tmp_path: Path) -> None:
    engine = find(os.environ)
    (tmp_path / "given").write_text("by the caller")
    with (
        sync.Sandbox(isolation="docker", workspace=tmp_path if has_folder else None) as sandbox,
        sandbox.session() as session,
    ):
        session.run("import os; os.mkdir('d'); open('d/made', 'w').write('by a step')")
        session.run(code)
        for container in own_containers(engine):
            containers.remove(engine, container)
        until(lambda: session.run("pass").state == "kept")
        step = session.run("import os; print(sorted(os.listdir()))")
        assert step.text == str(["d", *["given"] * has_folder, "output"])
        assert session.run("open('later', 'w').write(open('d/made').read() + ', later')").ok
        assert session.files.read_bytes("later") == b"by a step, later"
    if has_folder:
        assert (tmp_path / "later").read_text() == "by a step, later"
        assert (tmp_path / "given").read_text() == "by the caller"


def test_a_container_that_reads_nothing_leaves_no_descriptor_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(containers, "_COMMAND", ["python3", "-I", "-c", DEAF])
    told, pass_on = list[str](), CarriedCell._pass_on

    def note(self: CarriedCell, message: dict[str, Any], fds: dict[str, int]) -> None:
        pass_on(self, message, fds)
        told.append("wait" if message.get("awaits_order") else message["op"])

    monkeypatch.setattr(CarriedCell, "_pass_on", note)
    before = memory_files()
    for _ in range(2):
        with ThreadPoolExecutor() as threads, sync.Sandbox(isolation="docker", workspace=tmp_path) as sandbox:
            sandbox.run("1")
            told.clear()
            sandbox.run("1")
            until(lambda: "wait" in told)
            (tmp_path / "much").write_bytes(os.urandom(4 << 20))
            told.clear()
            running = threads.submit(sandbox.run, "1", stdin=b"x")
            until(lambda: "begin" in told)
            sandbox.close()
            assert isinstance(running.exception(), CasemateError)
            (tmp_path / "much").unlink()
    until(lambda: memory_files() == before)


def test_a_cell_that_ends_when_there_are_no_descriptors_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    remove, limits = containers.Container.remove, resource.getrlimit(resource.RLIMIT_NOFILE)
    ended, lock, engine = threading.Event(), threading.Lock(), find(os.environ)

    def exhaust(self: containers.Container) -> None:
        remove(self)
        with lock:  # once: a late call must leave the limit of this process alone
            if not ended.is_set():
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
                ended.set()

    with sync.Sandbox(isolation="docker") as sandbox, sandbox.session() as other:
        other.run("x = 41")
        others = own_containers(engine)
        with sandbox.session() as session:
            session.run("1")
            monkeypatch.setattr(containers.Container, "remove", exhaust)
            for container in {*own_containers(engine)} - {*others}:
                containers.remove(engine, container)
            try:
                assert ended.wait(MAX_WAIT)
                with contextlib.suppress(CasemateError):
                    session.run("1")
            finally:
                with lock:
                    ended.set()
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                monkeypatch.undo()

        def run_once_recorded() -> str:
            with contextlib.suppress(RecordUnavailable):  # the record had no descriptor either, and is mended soon
                return other.run("print(x + 1)").text
            return ""

        assert until(run_once_recorded) == "42"


FORKS = """
import os, signal, sys, threading
from casemate import sync
from casemate.supervisor.trees import remove
begun, go_on, remove_folder = threading.Event(), threading.Event(), remove.remove_folder

def wait(path):
    begun.set()
    go_on.wait()
    remove_folder(path)

remove.remove_folder = wait
with sync.Sandbox(isolation="docker") as sandbox:
    sandbox.run("1")
    begun.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(50)  # it would outlive the test
        remove.remove_folder = remove_folder
        with sync.Sandbox(isolation="docker") as own:
            print(own.run("print('there')").text.strip(), flush=True)
        os._exit(len([one for one in threading.enumerate() if one.name == "casemate-docker"]))
    status = os.waitpid(child, 0)[1]
    go_on.set()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_child_that_is_forked_while_files_are_removed_can_have_a_sandbox_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True, timeout=MAX_WAIT, check=True
    )
    assert done.stdout == "there\n"
