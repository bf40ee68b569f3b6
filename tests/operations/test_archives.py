"""Whole folders out of sessions and runs, and into sessions."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.operations.conftest import AGENT

from casemate import Sandbox
from casemate.errors import InvalidArgument, NotFound, QueueFull
from casemate.operations import stores
from casemate.operations.invoke import Invoke, local
from casemate.operations.operations import Operations

HOSTILE = """
import os
os.makedirs('out/sub'); open('out/sub/a', 'w').write('A'); open('out/b', 'w').write('B')
os.symlink('/etc', 'out/folder'); os.symlink('/etc/passwd', 'out/file'); os.mkfifo('out/fifo')
open('out/line\\nbreak', 'w').close()
"""


async def fetched(operations: Operations, handle: str) -> dict[str, bytes | None]:
    """What is in an archive."""
    data = b"".join([piece async for piece in operations.archives.chunks(handle, AGENT)])
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {one.name: file.read() if (file := tar.extractfile(one)) else None for one in tar}


async def sent(operations: Operations, files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> str:
    """The handle of an archive that was uploaded."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, to in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, to
            tar.addfile(info)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

    async def pieces() -> AsyncGenerator[bytes]:
        yield out.getvalue()

    return await operations.uploads.store_bytes(pieces(), AGENT)


async def stepped(invoke: Invoke, code: str, **more: Any) -> dict[str, Any]:
    state: dict[str, Any] = await invoke("runs.start", {"code": code, "wait": 60, **more})
    assert state["status"] == "done"
    return state


async def test_what_a_killed_process_has_left_is_gone_before_the_next_takes_anything(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = "from casemate.files.temporary import TemporaryFolder; print(TemporaryFolder('uploads').path)"
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, check=True
    )
    left = Path(ended.stdout.decode().strip())
    (left / "upload").write_bytes(b"x")
    async with Operations(sandbox) as operations:
        assert not left.exists()
        handle = await sent(operations, {"a": b"A"})
        async with Operations(sandbox) as another:
            await sent(another, {"a": b"B"})
            assert await fetched(operations, handle) == {"a": b"A"}
        assert await fetched(operations, handle) == {"a": b"A"}
    assert list(tmp_path.iterdir()) == []


async def test_a_folder_of_a_session_is_had_without_links_and_what_is_no_file(
    agent: Invoke, operations: Operations
) -> None:
    session = (await agent("sessions.open", {}))["session"]
    await stepped(agent, HOSTILE, session=session)
    packed = await agent("archives.pack", {"session": session, "path": "out", "top": "out"})
    assert (packed["files"], packed["folders"], packed["bytes"], packed["is_whole"]) == (2, 2, 2, True)
    assert {one["name"] for one in packed["left_out"]} == {"folder", "file", "fifo", "line\\x0abreak"}
    assert await fetched(operations, packed["handle"]) == {
        "out": None,
        "out/sub": None,
        "out/sub/a": b"A",
        "out/b": b"B",
    }
    await agent("archives.drop", {"handle": packed["handle"]})
    with pytest.raises(NotFound):
        await fetched(operations, packed["handle"])
    for path in (".", "/workspace"):
        packed = await agent("archives.pack", {"session": session, "path": path})
        assert "out/sub/a" in await fetched(operations, packed["handle"])
        unpacked = await agent("archives.unpack", {"session": session, "handle": packed["handle"], "path": path})
        assert (unpacked["files"], unpacked["is_whole"]) == (2, True)
    with pytest.raises(InvalidArgument, match="link"):
        await agent("archives.pack", {"session": session, "path": "out/file"})
    with pytest.raises(InvalidArgument):
        await agent("archives.pack", {"session": session, "path": "out/folder"})
    await agent("sessions.close", {"session": session})


async def test_what_a_run_has_left_is_had_as_a_folder(agent: Invoke, operations: Operations) -> None:
    run = (await stepped(agent, HOSTILE))["run"]
    packed = await agent("archives.pack", {"run": run, "path": "out"})
    assert await fetched(operations, packed["handle"]) == {"sub/a": b"A", "b": b"B"}
    packed = await agent("archives.pack", {"run": run, "path": "out/b"})
    assert await fetched(operations, packed["handle"]) == {"b": b"B"}
    kinds = {path: (await agent("files.info", {"run": run, "path": path}))["kind"] for path in ("", "out", "out/b")}
    assert kinds == {"": "folder", "out": "folder", "out/b": "file"}
    with pytest.raises(NotFound):
        await agent("archives.pack", {"run": run, "path": "nothing"})
    packed = await agent("archives.pack", {"run": run, "path": "."})
    assert await fetched(operations, packed["handle"]) == {"out/sub/a": b"A", "out/b": b"B"}
    packed = await agent("archives.pack", {"run": run, "path": "out/sub", "top": "a/b"})
    assert await fetched(operations, packed["handle"]) == {"a/b": None, "a/b/a": b"A"}
    for top in ("../up", "/etc", "a//b"):
        with pytest.raises(InvalidArgument, match="top"):
            await agent("archives.pack", {"run": run, "path": "out", "top": top})


async def test_an_archive_comes_out_in_the_workspace_and_its_programs_see_it(
    agent: Invoke, operations: Operations
) -> None:
    session = (await agent("sessions.open", {}))["session"]
    await stepped(agent, "import os\nos.makedirs('in')\nos.symlink('/tmp', 'in/away')", session=session)
    handle = await sent(operations, {"a/b": b"1", "away/planted": b"2", "../up": b"3"}, {"link": "/etc/passwd"})
    told = await agent("archives.unpack", {"session": session, "handle": handle, "path": "in"})
    assert (told["files"], told["is_whole"]) == (1, False)
    assert {one["name"] for one in told["left_out"]} == {"away/planted", "../up", "link"}
    found = (
        "sorted(os.listdir('in')), os.path.exists('/tmp/planted'), open('in/a/b').read(),"
        " os.stat('in/a/b').st_uid == os.getuid()"
    )
    done = await stepped(agent, found, session=session)
    assert done["execution"]["text"] == "(['a', 'away'], False, '1', True)"
    await agent("sessions.close", {"session": session})


async def test_a_secret_of_a_session_is_in_no_archive_of_it(
    agent: Invoke, operator: Invoke, operations: Operations
) -> None:
    await operator("vault.set", {"name": "TOKEN", "value": "kept-to-itself-9317"})
    given = local(operations, AGENT._replace(secrets=("TOKEN",)))
    session = (await given("sessions.open", {"secrets": ["TOKEN"]}))["session"]
    tells = "import os; t = os.environ['TOKEN']\nos.mkdir('d')\nfor n in 'plain', t: open(f'd/{n}', 'w').write('x' + t)"
    await stepped(agent, tells, session=session)
    packed = await agent("archives.pack", {"session": session, "path": "d"})
    inside = await fetched(operations, packed["handle"])
    assert list(inside) == ["plain"]
    assert "9317" not in f"{inside} {packed}"
    await agent("sessions.close", {"session": session})


async def test_archives_are_their_makers_and_count_as_uploads(
    agent: Invoke, other: Invoke, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = (await agent("sessions.open", {"files": {"a": {"text": "1"}}}))["session"]
    theirs = (await other("sessions.open", {}))["session"]
    handle = (await agent("archives.pack", {"session": session}))["handle"]
    unpacking = {"session": theirs, "handle": handle}
    for refused, given in (("archives.pack", {"session": session}), ("archives.unpack", unpacking)):
        with pytest.raises(NotFound):
            await other(refused, given)
    await other("archives.drop", {"handle": handle})
    assert await fetched(operations, handle) == {"a": b"1", "output": None}
    monkeypatch.setattr(stores, "MOST_OF_ONE", stores.MOST_BYTES + operations.uploads._total(AGENT.payer) - 1)
    with pytest.raises(QueueFull):
        await agent("archives.pack", {"session": session})
    await agent("archives.drop", {"handle": handle})
    await agent("archives.drop", {"handle": (await agent("archives.pack", {"session": session}))["handle"]})
    for invoke, one in ((agent, session), (other, theirs)):
        await invoke("sessions.close", {"session": one})


async def test_what_is_no_archive_is_an_error_and_changes_nothing(
    agent: Invoke, operations: Operations, tmp_path: Path
) -> None:
    session = (await agent("sessions.open", {}))["session"]

    async def noise() -> AsyncGenerator[bytes]:
        yield os.urandom(4096)

    handle = await operations.uploads.store_bytes(noise(), AGENT)
    with pytest.raises(InvalidArgument, match="not a complete tar archive"):
        await agent("archives.unpack", {"session": session, "handle": handle})
    await agent("sessions.close", {"session": session})
