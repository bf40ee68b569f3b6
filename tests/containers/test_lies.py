"""A supervisor in a container that lies ends its own cell, and neither another one nor anything of the application."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from casemate import Limits, sync
from casemate.walls.docker import containers

pytestmark = pytest.mark.usefixtures("docker")
# The supervisor, which says besides what a file of the program's tells it to.
LIAR = """
from casemate.supervisor import carriage, wire
from casemate.supervisor.contained import host, main
from casemate.supervisor.trees import records

honest = host.StreamHost.send

def send(self, message, fds=None):
    def say(**fields):
        honest(self, {"id": message["id"], **fields})

    def write(*each):
        def write_changes(new_file):
            out = new_file()
            for one in each:
                records._write_record(out, one)
            return out
        self.scratch.tree.write_changes = write_changes

    try:
        lie = open("/workspace/lie").read()
    except OSError:
        lie = ""
    exec(lie, {"say": say, "write": write, "message": message, "self": self, "carriage": carriage, "wire": wire})
    honest(self, message, fds)

host.StreamHost.send = send
main.main()
"""
USAGE = """dict(cpu_seconds=0, peak_memory=0, tasks=0, memory_left=0, tasks_left=0, interrupted=False, space_left=0,
    inodes_left=0)"""
LIES = {
    "files that a session has already": "say(op='session files')",
    "an error that no system has": "say(op='shown', number=1, errno=1 << 40)",
    "an end by no signal": "message['op'] == 'step over' and message.update(op='ended')",
    "steps that nobody took": f"for step in range(9, 900): say(op='step over', step=step, usage={USAGE})",
    "sockets that nobody wants": "for _ in range(900): say(op='listening', number=7, errno=0, count=0)",
    "text of no length": "self._write(carriage.frame(b'd', self._outputs[message['id']][-1].number))",
    "room that nobody made": "self._write(carriage.frame(b'c', 0, b'room')); self._write(carriage.frame(b'c', "
    "self._orders[message['id']].number, b'room'))",
    "two pipes of one number": "self._write(carriage.frame(b'm', 0, wire.encode([{'op': 'pipes', 'id': message['id'], "
    "'step': 9}, [['read', 5002], ['read', 5002]]])))",
    "a time that no clock has": "write({'kind': 'file', 'path': b'x', 'mtime': 1 << 80})",
    "a size that no disk has": "write({'kind': 'file', 'path': b'x', 'size': 1 << 49})",
    "a path that leads out": "write({'kind': 'file', 'path': b'../key'})",
    "a file in a link": "write({'kind': 'link', 'path': b'd', 'target': PRIVATE}, {'kind': 'file', 'path': b'd/key'})",
    "a pipe in a link": "write({'kind': 'link', 'path': b'd', 'target': PRIVATE}, {'kind': 'pipe', 'path': b'd/n'})",
    "more names than there may be": "write(*({'kind': 'folder', 'path': b'f%d' % n} for n in range(3000)))",
    "the same name again and again": "write(*({'kind': 'gone', 'path': b'f'} for n in range(9000)))",
}


@pytest.fixture
def private(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "key").write_text("a key")
    return folder


@pytest.fixture
def liars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[sync.Sandbox]:
    """A sandbox whose supervisors lie when a program has them do so."""
    monkeypatch.setattr(containers, "_COMMAND", ["python3", "-I", "-c", LIAR])
    (tmp_path / "project").mkdir()
    with sync.Sandbox(isolation="docker", workspace=tmp_path / "project", limits=Limits(inodes=1000)) as sandbox:
        yield sandbox


@pytest.mark.full
def test_no_lie_concerns_another_cell(liars: sync.Sandbox, private: Path, tmp_path: Path) -> None:
    with liars.session() as other:
        other.run("x = 41")
        for name, lie in LIES.items():
            with liars.session() as session:
                said = lie.replace("PRIVATE", repr(os.fsencode(private)))
                steps = [session.run(code) for code in (f"open('lie', 'w').write({said!r})", "1")]
                assert (name, steps[1].state) == (name, "lost")
            assert other.run("print(x + 1)").text == "42", name
    assert liars.run("open('made', 'w').write('honest')").ok
    assert liars.run("print(open('made').read())").text == "honest"
    assert {path.name: path.read_text() for path in private.iterdir()} == {"key": "a key"}
    assert {path.name for path in tmp_path.iterdir()} == {"private", "project"}


@pytest.mark.full
def test_a_cell_has_used_no_more_than_it_can_have(liars: sync.Sandbox) -> None:
    lie = "message['op'] == 'step over' and message['usage'].update(cpu_seconds=1e11, peak_memory=1 << 61)"
    with liars.session() as session:
        session.run(f"open('lie', 'w').write({lie!r})")
        usage = session.run("1").usage
    assert usage.cpu_seconds < 3600 * (os.cpu_count() or 1)
    assert usage.peak_memory < 4 << 30
