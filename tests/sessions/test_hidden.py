"""Hidden files of a caller's folder while a session lives: those that come later, those that are its own."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from tests.sessions.driver import starting
from tests.support.languages import every_language

from casemate import InvalidArgument, Sandbox
from casemate.sessions.session import Session

Inside = Callable[..., AbstractAsyncContextManager[Session]]
SECRET = "TOKEN=hidden-value"
both_modes = pytest.mark.parametrize("mode", ["overlay", "direct"])
READ = {
    "python": "print(open('late/.env').read())",
    "node": "console.log(fs.readFileSync('late/.env', 'utf8'))",
    "shell": "cat late/.env",
}
SET = {"python": "a = 1", "node": "let a = 1", "shell": "a=1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The caller's."""
    path = tmp_path / "folder"
    (path / "late").mkdir(parents=True)
    (path / ".env").write_text(SECRET)
    return path


@pytest.fixture
def inside(audit: Path, folder: Path) -> Inside:
    """Opens a session whose workspace is the folder."""

    @asynccontextmanager
    async def open_one(language: str, mode: str, **arguments: object) -> AsyncIterator[Session]:
        given = {"audit": audit, "workspace": folder, "workspace_mode": mode, **arguments}
        with starting("warm"):
            async with Sandbox(**given) as sandbox, sandbox.session(language) as session:  # type: ignore[arg-type]
                yield session

    return open_one


@every_language
@both_modes
async def test_a_file_that_comes_between_two_steps_is_not_read_and_what_was_lost_for_it_is_told(
    inside: Inside, folder: Path, language: str, mode: str
) -> None:
    async with inside(language, mode) as session:
        assert (await session.run(SET[language])).state == "kept"
        (folder / "late/.env").write_text(SECRET)
        step = await session.run(READ[language])
        assert SECRET not in f"{step.text}{step.error}"
        assert step.state == "lost"
        assert "a" in step.lost_names
        assert [(one.name, "is new" in one.reason) for one in step.skipped] == [("late/.env", True)]
        again = await session.run(READ[language])
        assert SECRET not in f"{again.text}{again.error}"
        assert (again.state, again.skipped) == ("kept", ())
    assert (folder / "late/.env").read_text() == SECRET


async def test_a_file_that_is_replaced_between_two_steps_is_not_read_where_it_is_written_through(
    inside: Inside, folder: Path
) -> None:
    async with inside("shell", "direct") as session:
        await session.run("cat .env")
        (folder / "new").write_text(SECRET)
        (folder / "new").rename(folder / ".env")
        step = await session.run("cat .env")
        assert SECRET not in step.text
        assert step.state == "lost"
        assert any("was replaced" in one.reason for one in step.skipped)
        assert (await session.run("cat .env; echo $?")).stdout == "1\n"


async def test_a_step_ends_when_what_is_hidden_from_it_is_replaced(inside: Inside, folder: Path) -> None:
    async with inside("shell", "direct") as session:
        run = session.start("touch begun; sleep 50")
        while not (folder / "begun").exists():
            await session.files.list()
        (folder / "new").write_text(SECRET)
        (folder / "new").rename(folder / ".env")
        step = await run.wait()
        assert (step.status, step.state) == ("killed", "lost")
        assert step.cause is not None
        assert "was replaced" in step.cause.message
        assert (await session.run("cat .env; echo $?")).stdout == "1\n"


async def test_what_a_session_put_there_itself_is_its_own_also_after_a_reset(inside: Inside, folder: Path) -> None:
    async with inside("shell", "overlay") as session:
        await session.run("echo mine > late/.env; mkdir -p made; echo too > made/.env")
        assert (folder / "late/.env").read_text() == "mine\n"
        step = await session.run("cat late/.env made/.env")
        assert (step.stdout, step.state) == ("mine\ntoo\n", "kept")
        assert await session.files.read_text("late/.env") == "mine\n"
        await session.reset()
        step = await session.run("cat late/.env made/.env; cat .env")
        assert step.stdout == "mine\ntoo\n"


@both_modes
async def test_files_of_a_session_are_neither_read_nor_changed_from_outside_either(
    inside: Inside, folder: Path, tmp_path: Path, mode: str
) -> None:
    async with inside("shell", mode) as session:
        files = session.files
        await session.run(":")
        (folder / "late/.env").write_text(SECRET)
        for name in (".env", "late/.env"):
            for work in (
                files.read_bytes(name), files.read_text(name), files.read_part(name, 0, 9), files.write(name, "x"),
                files.remove(name), files.download(name, tmp_path / "copy"), files.upload(__file__, name),
            ):  # fmt: skip
                with pytest.raises(InvalidArgument, match="hidden"):
                    await work
        assert ".env" in [one.name for one in await files.list()]
    assert not (tmp_path / "copy").exists()
    for name in (".env", "late/.env"):
        assert (folder / name).read_text() == SECRET


@both_modes
async def test_a_folder_of_a_session_is_carried_without_what_is_hidden_in_it(
    inside: Inside, folder: Path, tmp_path: Path, mode: str
) -> None:
    (folder / "late/seen").write_text("seen")
    (folder / "late/deep/.env").mkdir(parents=True)
    (folder / "late/deep/.env/key").write_text(SECRET)
    hidden = {"": {".env", "late/.env", "late/deep/.env"}, "late": {".env", "deep/.env"}, "late/deep": {".env"}}
    async with inside("shell", mode) as session:
        await session.run(":")
        (folder / "late/.env").write_text(SECRET)
        for name, names in hidden.items():
            packed = await session.files.pack(name, tmp_path / "out.tar")
            with tarfile.open(tmp_path / "out.tar") as archive:
                assert not names & set(archive.getnames())
            assert SECRET.encode() not in (tmp_path / "out.tar").read_bytes()
            assert {one.name: "hidden" in one.reason for one in packed.left_out} == dict.fromkeys(names, True)
        for name, names in hidden.items():
            archive_of(tmp_path / "in.tar", *names, "other")
            unpacked = await session.files.unpack(tmp_path / "in.tar", name)
            assert {one.name for one in unpacked.left_out} == names
        assert await session.files.read_text("late/deep/other") == "put there"
    assert [(folder / name).read_text() for name in (".env", "late/.env", "late/deep/.env/key")] == [SECRET] * 3


def archive_of(place: Path, *names: str) -> None:
    with tarfile.open(place, "w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len("put there")
            archive.addfile(info, io.BytesIO(b"put there"))


async def test_what_is_to_be_seen_is_seen_also_when_it_comes_later(inside: Inside, folder: Path) -> None:
    async with inside("shell", "direct", allow_read=[folder / ".env", folder / "late/.env"]) as session:
        assert (await session.run("cat .env")).stdout == SECRET
        (folder / "late/.env").write_text(SECRET)
        assert (await session.run("cat late/.env")).stdout == SECRET
        assert await session.files.read_text("late/.env") == SECRET
