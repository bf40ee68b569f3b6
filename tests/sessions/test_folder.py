"""What a step leaves: artifacts of what it made or changed, and the caller's folder brought up to date after each."""

from __future__ import annotations

import asyncio
import os
import signal
import tarfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from unittest import mock

import pytest
from tests.journeys import folders
from tests.sessions.driver import Open, cell_of, done, said, starting, until_there
from tests.support.languages import every_language
from tests.support.waiting import MAX_WAIT

from casemate import Execution, Output, Sandbox
from casemate.artifacts.collect import CollectedFiles
from casemate.execution.gather import FileCollector
from casemate.sessions import cells as session_cells
from casemate.sessions.session import Session
from casemate.supervisor import watch
from casemate.walls.native.running_session import RunningSession

Inside = Callable[..., AbstractAsyncContextManager[Session]]


def names(execution: Execution) -> dict[str, bytes]:
    return {artifact.name: artifact.read_bytes() for artifact in execution.artifacts}


@every_language
async def test_the_artifacts_of_a_step_are_what_it_made_or_changed(opened: Open, language: str) -> None:
    make = {
        "python": "import os; os.makedirs('d'); _ = open('d/a', 'w').write('1'); _ = open('b', 'w').write('2')",
        "node": "fs.mkdirSync('d', {recursive: true}); fs.writeFileSync('d/a', '1'); fs.writeFileSync('b', '2')",
        "shell": "mkdir -p d; printf 1 > d/a; printf 2 > b",
    }
    change = {
        "python": "_ = open('b', 'a').write('3')",
        "node": "fs.appendFileSync('b', '3')",
        "shell": "printf 3 >> b",
    }
    session = opened(language, files={"given": "g"})
    assert names(await session.run(make[language])) == {"d/a": b"1", "b": b"2"}
    assert names(await session.run("1" if language != "shell" else ":")) == {}
    changed = await session.run(change[language])
    assert names(changed) == {"b": b"23"}
    assert (
        names(await session.run({"python": "os.remove('b')", "node": "fs.unlinkSync('b')", "shell": "rm b"}[language]))
        == {}
    )
    assert names(await session.run(change[language])) == {"b": b"3"}
    assert names(changed) == {"b": b"23"}  # what was handed out stays


@pytest.mark.parametrize("how", ["write", "upload", "unpack"])
@pytest.mark.parametrize("when", ["before the first step", "between two", "while one runs"])
async def test_a_file_that_came_from_outside_is_an_artifact_only_once_a_step_has_changed_it(
    session: Session, tmp_path: Path, how: str, when: str
) -> None:
    async def bring() -> None:
        (tmp_path / "stock.csv").write_text("one\n")
        if how == "write":
            await session.files.write("in/stock.csv", "one\n")
        elif how == "upload":
            await session.files.upload(tmp_path / "stock.csv", "in/stock.csv")
        else:
            with tarfile.open(tmp_path / "stock.tar", "w") as tar:
                tar.add(tmp_path / "stock.csv", "stock.csv")
            await session.files.unpack(tmp_path / "stock.tar", "in")

    if when == "while one runs":
        wait = "import os, time\nwhile not os.path.exists('in/stock.csv'): time.sleep(0.005)"
        step = asyncio.create_task(session.run(f"_ = open('mine', 'w').write('0')\n{wait}"))
        try:
            await until_there(session, "mine")
            await bring()
        finally:
            assert names(await step) == {"mine": b"0"}
    else:
        if when == "between two":
            await said(session, "print(1)")
        await bring()
    assert names(await session.run("print(open('in/stock.csv').read()); _ = open('own', 'w').write('1')")) == {
        "own": b"1"
    }
    assert names(await session.run("_ = open('in/stock.csv', 'a').write('two\\n')")) == {"in/stock.csv": b"one\ntwo\n"}
    assert names(await session.run("print(2)")) == {}
    await session.files.write("own", "other")
    assert names(await session.run("_ = open('own', 'w').write('1')")) == {"own": b"1"}


async def test_a_file_that_is_written_anew_with_what_it_held_is_no_artifact_or_the_same(session: Session) -> None:
    assert names(await session.run("_ = open('a', 'w').write('same')")) == {"a": b"same"}
    again = names(await session.run("_ = open('a', 'w').write('same')"))
    assert again in ({}, {"a": b"same"})
    assert names(await session.run("_ = open('a', 'w').write('othe')")) == {"a": b"othe"}


async def test_a_file_of_the_same_size_and_time_that_holds_something_else_is_an_artifact(session: Session) -> None:
    await said(session, "import os\n_ = open('a', 'w').write('one'); os.utime('a', (5, 5))")
    assert names(await session.run("_ = open('a', 'w').write('two'); os.utime('a', (5, 5))")) == {"a": b"two"}
    assert names(await session.run("_ = open('b', 'w').write('six'); os.utime('b', (5, 5)); os.rename('b', 'a')")) == {
        "a": b"six"
    }


async def test_links_and_fifos_are_no_artifacts_and_are_told(session: Session) -> None:
    execution = await session.run(
        "import os; os.symlink('/etc/passwd', 'l'); os.mkfifo('p'); _ = open('f', 'w').write('x')"
    )
    assert names(execution) == {"f": b"x"}
    assert {file.name for file in execution.skipped} >= {"l", "p"}


async def test_what_a_step_left_running_writes_is_a_later_steps(session: Session) -> None:
    code = """
import os, threading, time
def work():
    while not os.path.exists("/workspace/go"): time.sleep(0.005)
    open("/workspace/made", "w").write("late")
    open("/workspace/gone", "w").close()
threading.Thread(target=work).start()
"""
    assert names(await session.run(code)) == {}
    later = await session.run("open('go', 'w').close()\nwhile not os.path.exists('gone'): time.sleep(0.005)")
    assert names(later)["made"] == b"late"


async def test_a_step_that_fails_and_one_that_is_interrupted_leave_their_artifacts_too(session: Session) -> None:
    assert names(await session.run("_ = open('a', 'w').write('1'); 1 / 0")) == {"a": b"1"}
    code = "_ = open('b', 'w').write('2')\nimport time; time.sleep(1000)"
    assert names(await session.run(code, timeout=1)) == {"b": b"2"}
    assert names(await session.run("_ = open('c', 'w').write('3'); import os; os._exit(1)")) == {"c": b"3"}


@pytest.fixture
def inside(audit: Path, folder: Path) -> Inside:
    """Opens a session whose workspace is the folder."""

    @asynccontextmanager
    async def open_one(language: str = "python", **arguments: object) -> AsyncIterator[Session]:
        with starting("warm"):
            async with (
                Sandbox(audit=audit, workspace=folder, **arguments) as sandbox,  # type: ignore[arg-type]
                sandbox.session(language) as session,
            ):
                yield session

    return open_one


async def test_the_folder_is_brought_up_to_date_after_each_step(inside: Inside, folder: Path) -> None:
    before = folders.tree(folder)
    async with inside() as session:
        execution = await session.run(folders.CHANGES)
        assert execution.status == "ok", execution
        assert folders.tree(folder) == folders.changed(before)
        assert names(execution) == {"output/chart.svg": b"<svg/>"}
        await said(session, "open('second', 'w').write('step'); os.remove('new/folder/file')")
        after = folders.tree(folder)
        assert after["second"] == "step"
        assert "new/folder/file" not in after
        await session.reset()
        assert await said(session, "print(open('second').read(), open('change.txt').read())") == "step after\n"
    assert folders.tree(folder) == after


async def test_nothing_is_applied_of_a_cell_that_cannot_be_stopped_and_its_interpreter_is_ended(
    inside: Inside, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with inside() as session:
        await session.run("1")
        stop, tries = RunningSession.pause_files, session_cells._PAUSE_TRIES
        monkeypatch.setattr(RunningSession, "pause_files", mock.AsyncMock(return_value=False))
        monkeypatch.setattr(session_cells, "_PAUSE_TRIES", 1)
        for number in range(3):
            step = await session.run(f"open('f{number}', 'w').write('x')")
            assert (step.state, [one.name for one in step.skipped]) == ("kept", ["."])
        assert not any((folder / f"f{number}").exists() for number in range(3))
        monkeypatch.setattr(RunningSession, "pause_files", stop)
        monkeypatch.setattr(session_cells, "_PAUSE_TRIES", tries)  # a busy machine needs more than one
        step = await session.run("open('after', 'w').write('x')")
        assert (step.state, "was ended" in step.skipped[0].reason) == ("lost", True)
        assert all((folder / name).exists() for name in ("f0", "f1", "f2", "after"))
        monkeypatch.setattr(RunningSession, "pause_files", mock.AsyncMock(return_value=False))
        await session.run("open('last', 'w').write('x')")
        assert not (folder / "last").exists()
    assert (folder / "last").read_text() == "x"


async def test_the_folder_stays_as_it_is_while_a_step_runs(inside: Inside, folder: Path) -> None:
    before = folders.tree(folder)
    seen = None
    events = []
    async with inside() as session:
        async for event in session.stream("open('new', 'w').write('x'); print('made'); 1 / 0"):
            events.append(event)
            if isinstance(event, Output):
                seen = folders.tree(folder)
        assert done(events).status == "failed"
        assert folders.tree(folder) == {**before, "new": "x"}
    assert seen == before


async def test_what_becomes_of_folders_alone_is_applied_after_each_step(inside: Inside, folder: Path) -> None:
    async with inside() as session:
        await session.run(
            "import os, shutil; os.mkdir('made'); os.mkdir('made/filled'); open('made/filled/x', 'w').close()"
        )
        await session.run("os.mkdir('empty')")
        assert (folder / "empty").is_dir()
        await session.run("os.chmod('empty', 0o700)")
        assert (folder / "empty").stat().st_mode & 0o777 == 0o700
        await session.run("shutil.rmtree('made/filled'); os.mkdir('made/filled')")
        assert os.listdir(folder / "made/filled") == []
    (folder / "owners").mkdir()
    (folder / "owners/x").touch()
    async with inside() as session:
        await session.run("shutil = __import__('shutil'); shutil.rmtree('owners'); __import__('os').mkdir('owners')")
        assert os.listdir(folder / "owners") == []


async def test_a_deletion_is_applied_once(inside: Inside, folder: Path) -> None:
    async with inside() as session:
        await said(session, "import os\nos.remove('remove.txt')")
        assert not (folder / "remove.txt").exists()
        (folder / "remove.txt").write_text("made anew by the caller")
        await said(session, "open('other', 'w').write('x')")
        assert (folder / "remove.txt").read_text() == "made anew by the caller"
        await said(session, "1")
    assert (folder / "remove.txt").read_text() == "made anew by the caller"


async def test_what_the_owner_puts_into_a_folder_that_a_step_made_anew_stays(inside: Inside, folder: Path) -> None:
    (folder / "old").mkdir()
    (folder / "old" / "before").write_text("1")
    async with inside() as session:
        await session.run(
            "import os, shutil; shutil.rmtree('old'); os.mkdir('old'); _ = open('old/made', 'w').write('2')"
        )
        assert os.listdir(folder / "old") == ["made"]
        (folder / "old" / "mine").write_text("3")
        await session.run("_ = open('old/later', 'w').write('4')")
        assert sorted(os.listdir(folder / "old")) == ["later", "made", "mine"]


async def test_a_change_is_applied_once(inside: Inside, folder: Path) -> None:
    async with inside() as session:
        await said(session, "_ = open('change.txt', 'w').write('by the code')")
        (folder / "change.txt").write_text("by the caller, later")
        await said(session, "_ = open('other', 'w').write('x')")
    assert (folder / "change.txt").read_text() == "by the caller, later"


async def test_a_step_that_dies_brings_its_changes_and_the_next_life_sees_them(inside: Inside, folder: Path) -> None:
    async with inside() as session:
        dead = await session.run(
            "_ = open('dying', 'w').write('wish')\nimport os; os.remove('remove.txt'); os._exit(1)"
        )
        assert dead.state == "lost"
        assert (folder / "dying").read_text() == "wish"
        assert not (folder / "remove.txt").exists()
        assert (
            await said(session, "import os\nprint(os.path.exists('dying'), os.path.exists('remove.txt'))")
            == "True False\n"
        )


async def test_files_from_outside_reach_the_folder_with_the_next_step(inside: Inside, folder: Path) -> None:
    async with inside() as session:
        await session.files.write("from/outside", "x")
        await session.files.remove("remove.txt")
        assert await session.files.read_text("read.txt") == "read"
        await said(session, "1")
        assert (folder / "from/outside").read_text() == "x"
        assert not (folder / "remove.txt").exists()


async def test_what_the_caller_changes_between_steps_is_seen(inside: Inside, folder: Path) -> None:
    async with inside() as session:
        assert await said(session, "print(open('read.txt').read())") == "read\n"
        (folder / "added.txt").write_text("added")
        assert await said(session, "print(open('added.txt').read())") == "added\n"


async def test_a_folder_that_is_written_through_has_only_the_steps_own_as_artifacts(
    inside: Inside, folder: Path
) -> None:
    (folder / "output").mkdir()
    (folder / "output/old").write_text("old")
    async with inside(workspace_mode="direct") as session:
        assert names(await session.run("_ = open('output/one', 'w').write('1')")) == {"output/one": b"1"}
        assert names(await session.run("_ = open('output/two', 'w').write('2')")) == {"output/two": b"2"}
    assert sorted(os.listdir(folder / "output")) == ["old", "one", "two"]


async def test_artifacts_are_copied_into_the_output_folder_after_each_step(audit: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    async with Sandbox(audit=audit, output_dir=target) as sandbox, sandbox.session() as session:
        await said(session, "_ = open('output/a', 'w').write('1')")
        first = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
        await said(session, "_ = open('output/b', 'w').write('2')")
        second = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert {Path(name).name for name in first} == {"a"}
    assert {Path(name).name for name in second} == {"a", "b"}


async def test_what_the_caller_has_changed_since_a_step_wrote_it_is_neither_overwritten_nor_removed(
    inside: Inside, folder: Path
) -> None:
    async with inside() as session:
        await said(session, "for name in ('kept', 'removed'): _ = open(name, 'w').write('of the step')")
        for name in ("kept", "removed"):
            (folder / "new").write_text("of the caller")
            os.replace(folder / "new", folder / name)
        changed = await session.run("import os\n_ = open('kept', 'a').write(', again'); os.remove('removed')")
        assert (folder / "kept").read_text() == "of the caller"
        assert (folder / "removed").read_text() == "of the caller"
        assert {one.name for one in changed.skipped if "changed here since" in one.reason} >= {"kept"}
        assert (await session.run("1")).skipped == ()


async def test_a_cell_in_which_something_ran_while_its_files_were_taken_is_told(inside: Inside) -> None:
    """As a timer can have it that sends SIGCONT: here the host sends it, at the very moment."""
    real = FileCollector.collect

    def collect(collector: FileCollector, tree: int, *, dead: bool) -> CollectedFiles:
        before = watch.run_time(pids)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + MAX_WAIT
        while watch.run_time(pids) == before:
            assert time.monotonic() < deadline
        return real(collector, tree, dead=dead)

    async with inside() as session:
        await said(session, "import threading\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()")
        pids = (await cell_of(session))[1:]
        while (await session.run("_ = open('one', 'w').write('1')")).skipped:
            pass  # on a busy machine a thread may need more than a moment to stop
        with mock.patch.object(FileCollector, "collect", collect):
            moved = await session.run("_ = open('two', 'w').write('2')")
    assert [one.name for one in moved.skipped] == ["."]
    assert "a process in the cell" in moved.skipped[0].reason


async def test_files_are_put_into_a_folder_that_is_written_through(inside: Inside, folder: Path) -> None:
    async with inside(workspace_mode="direct") as session:
        await session.files.write("new/file", "one")
        await session.files.write("new/file", "two")
        assert await said(session, "print(open('new/file').read()); _ = open('new/file', 'a').write('!')") == "two\n"
    assert (folder / "new/file").read_text() == "two!"
    assert (folder / "new/file").stat().st_uid == folder.stat().st_uid
