"""Applying what a program left in a caller's folder: nothing in it holds the host up, and it can be cancelled."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from casemate import Sandbox, sync

BOUND = 20  # seconds
INDEX = """
import os, struct
os.makedirs(".git")
def write_index(entries):
    with open(".git/index", "wb") as file:
        file.write(b"DIRC" + struct.pack(">II", 4, len(entries)) + b"".join(entries) + bytes(20))
entry = bytes(60) + struct.pack(">H", 0xFFF)
long = entry + b"\\0" + b"a" * 4095 + b"\\0"
"""
ENDLESS = f"{INDEX}write_index([entry + b'\\xff' * 400_000])"
REPEATED = f"{INDEX}write_index([long] + [bytes(60) + b'\\x8f\\xff' + b'\\x08%08d\\0' % n for n in range(9000)])"
SLOW = f"""{INDEX}
open(".a-first", "w").close()
write_index([long, *[entry + b"\\1b\\0"] * 15_000, bytes(60) + b"\\x8f\\xff\\1c\\0"])
for number in range(200):
    os.link(".git/index", f".git/sharedindex.{{number}}")
open("z-last", "w").close()
"""


@pytest.mark.parametrize("program", [ENDLESS, REPEATED], ids=["a number without end", "long paths in few bytes"])
def test_an_index_made_to_take_long_is_not_written_back(
    wall: str, program: str, tmp_path: Path, workspace: Path
) -> None:
    with sync.Sandbox(isolation=wall, workspace=workspace, audit=tmp_path / "audit.db") as sandbox:
        tracemalloc.start()
        try:
            done = sandbox.run(f"{program}\nprint(os.path.getsize('.git/index') < 700_000)")
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (done.status, done.stdout) == ("ok", "True\n"), done.text
    assert [one.name for one in done.skipped] == [".git/index"]
    assert not (workspace / ".git" / "index").exists()
    assert most < 16 << 20


@pytest.mark.parametrize("kind", ["run", "step"])
def test_cancelling_ends_the_applying_of_what_was_written(
    wall: str, kind: str, tmp_path: Path, workspace: Path
) -> None:
    async def cancel_one() -> str:
        async with Sandbox(isolation=wall, workspace=workspace, audit=tmp_path / "audit.db", concurrency=1) as sandbox:
            runner = sandbox.session() if kind == "step" else sandbox
            work = asyncio.create_task(runner.run(SLOW))
            async with asyncio.timeout(BOUND):
                while not (workspace / ".a-first").exists():
                    assert not work.done(), work.result()
                    await asyncio.sleep(0.01)
            work.cancel()
            await asyncio.wait([work], timeout=BOUND)
            assert work.cancelled()
            return (await sandbox.run("print('next')")).stdout

    assert asyncio.run(cancel_one()) == "next\n"
    assert not (workspace / "z-last").exists()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A caller's folder."""
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"
