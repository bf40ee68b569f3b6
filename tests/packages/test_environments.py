"""Sandboxes whose environment is a list of requirements, and ``casemate packages``."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.packages.conftest import Opened
from tests.packages.index import Index, wheel

from casemate import ApprovalRequest, Denied, InvalidArgument, Unavailable, allow_all, sync


async def test_runs_and_sessions_of_it_have_its_packages(
    opened: Opened, index: Index, asked: list[ApprovalRequest]
) -> None:
    index.add(wheel("alpha", requires=("beta",)))
    index.add(wheel("beta"))
    async with opened(environment=["alpha>=1"]) as sandbox, sandbox.session() as session:
        results = [await sandbox.run("import alpha, beta"), await session.run("import alpha, beta")]
    assert [one.ok for one in results] == [True, True]
    assert [one.arguments["packages"] for one in asked] == [["alpha==1.0", "beta==1.0"]]


async def test_the_second_time_it_comes_from_the_cache_and_is_asked_about_all_the_same(
    opened: Opened, index: Index, asked: list[ApprovalRequest]
) -> None:
    index.add(wheel("alpha"))
    async with opened(environment=["alpha"]) as sandbox:
        assert (await sandbox.run("import alpha")).ok
    index.asked.clear()
    async with opened(environment=["alpha"]) as sandbox:
        assert (await sandbox.run("import alpha")).ok
        index.add(wheel("beta"))
        assert (await sandbox.packages.install(["beta"])).ok
        assert (await sandbox.run("import alpha, beta")).ok
    assert [path for path in index.paths() if "alpha" in path] == []
    assert asked[0].arguments == asked[1].arguments
    with pytest.raises(Denied, match="environment: it was asked for and not approved"):
        await opened(environment=["alpha"], approve=lambda _: False).run("1")
    async with opened(environment=["alpha"], approve=allow_all) as sandbox:
        assert not (await sandbox.run("import beta")).ok


def set_pip(monkeypatch: pytest.MonkeyPatch, index: Index) -> None:
    """The operator's pip has ``index``, and nothing else is said to it."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", index.url)


@pytest.mark.full
@pytest.mark.parametrize("whose", ["the operator's pip has", "is given"])
async def test_one_that_was_made_from_another_index_is_not_used(
    opened: Opened, index: Index, other: Index, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    index.add(wheel("alpha", "1.0"))
    other.add(wheel("alpha", "2.0"))
    for asked, version in ((index, "1.0"), (other, "2.0"), (index, "1.0")):
        set_pip(monkeypatch, asked)
        indexes = [asked.url] if whose == "is given" else []
        async with opened(environment=["alpha"], package_indexes=indexes) as sandbox:
            assert (await sandbox.run("import alpha; print(alpha.VERSION)")).stdout == f"{version}\n"
    assert len([path for path in other.paths() if path.endswith("/alpha/")]) == 1
    assert len([path for path in index.paths() if path.endswith("/alpha/")]) == 1


@pytest.mark.full
async def test_the_order_of_indexes_counts(opened: Opened, index: Index, other: Index) -> None:
    index.add(wheel("alpha", "1.0"))
    other.add(wheel("alpha", "2.0"))
    for first, second, version in ((index, other, "1.0"), (other, index, "2.0")):
        async with opened(environment=["alpha"], package_indexes=[first.url, second.url]) as sandbox:
            assert (await sandbox.run("import alpha; print(alpha.VERSION)")).stdout == f"{version}\n"


async def test_the_password_of_an_index_is_no_part_of_what_is_kept(
    opened: Opened, index: Index, tmp_path: Path, asked: list[ApprovalRequest]
) -> None:
    index.add(wheel("alpha"))
    for index.password in ("f1rst-pass", "sec0nd-pass"):
        async with opened(environment=["alpha"]) as sandbox:
            assert (await sandbox.run("import alpha")).ok
    assert len([path for path in index.paths() if path.endswith("/alpha/")]) == 1
    assert len(asked) == 2
    files = list((tmp_path / "cache").rglob("*"))
    assert [path for path in files if path.name == "packages.json"]
    for path in files:
        assert "-pass" not in path.name
        assert not path.is_file() or b"-pass" not in path.read_bytes()


@pytest.mark.full
async def test_hashes_hold_for_the_names_that_they_are_given_for_also_where_an_environment_is_kept(
    opened: Opened, index: Index
) -> None:
    files = wheel("alpha"), wheel("beta")
    for file in files:
        index.add(file)
    one, other = (f"--hash=sha256:{hashlib.sha256(content).hexdigest()}" for _, content in files)
    async with opened(environment=[f"alpha {one}", f"beta {other}"]) as sandbox:
        assert (await sandbox.run("import alpha, beta")).ok
    with pytest.raises(Unavailable, match="hash"):
        await opened(environment=[f"alpha {other}", f"beta {one}"]).run("1")


async def test_one_that_cannot_be_made_keeps_everything_from_running(opened: Opened, index: Index) -> None:
    with pytest.raises(Unavailable, match="nosuch"):
        await opened(environment=["nosuch"]).run("print('ran')")


@pytest.mark.parametrize("environment", [["--pre"], ["a @ file:///x"], [3]])
def test_what_is_no_requirement_is_refused_at_once(opened: Opened, environment: list[str]) -> None:
    with pytest.raises(InvalidArgument) as raised:
        opened(environment=environment)
    assert raised.value.argument == "environment"


def test_without_await_it_is_the_same(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    index.add(wheel("alpha"))
    given = {"audit": tmp_path / "a.db", "package_indexes": [index.url], "approve": allow_all}
    with sync.Sandbox(**given) as sandbox, sandbox.session() as session:
        assert sandbox.packages.install(["alpha"], session=session).ok
        assert session.run("import alpha").ok
        assert [one.name for one in sandbox.packages.list(session=session)] == ["alpha"]
        assert sandbox.packages.list() == ()


def casemate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
    command = [sys.executable, "-m", "casemate", "packages", *arguments]
    return subprocess.run(
        command, check=False, env=env, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL
    )


@pytest.mark.full
def test_the_command_line_installs_what_is_agreed_to_and_lists_it(index: Index, tmp_path: Path) -> None:
    index.add(wheel("alpha"))
    refused = casemate(tmp_path, "install", "alpha", "--index", index.url)
    agreed = casemate(tmp_path, "install", "alpha", "--index", index.url, "--yes")
    listed = casemate(tmp_path, "list")
    assert refused.returncode == 77
    assert "not approved" in refused.stderr
    assert "sha256:" in refused.stderr
    assert agreed.stdout.startswith("alpha==1.0 sha256:"), agreed.stderr
    assert listed.stdout == "alpha: alpha==1.0\n"
    there = casemate(tmp_path, "install", "packaging", "--index", index.url, "--yes")
    assert (there.returncode, "already installed" in there.stderr) == (0, True), there.stderr


def test_the_command_line_refuses_what_is_no_name(index: Index, tmp_path: Path) -> None:
    done = casemate(tmp_path, "install", "--index-url=http://evil.test", "--index", index.url)
    assert done.returncode != 0
    assert index.asked == []
