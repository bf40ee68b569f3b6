"""Packages, indexes and programs that try to get out: nothing comes in that was not meant, and nothing goes out."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.packages.conftest import Opened
from tests.packages.index import Handler, Index, sdist, wheel

from casemate import ApprovalRequest, InvalidArgument, Limits

NAMES = [
    *("--index-url=http://evil.test/simple", "--extra-index-url=http://evil.test", "-r/etc/passwd", "-e .", "-c x"),
    *("--target=/x", "--global-option=x", "--config-settings=x", "--pre==x", "--index-url=http://evil.test/=="),
    *("pkg @ file:///etc/passwd", "pkg @ git+ssh://evil.test/x", "pkg@http://evil.test/x.whl", "./dir", "/etc", "."),
    *("http://evil.test/x.whl", "git+https://evil.test/x", "npm:alias@1", "github:u/r", "file:../x", "..", "~"),
    *("requests; touch marker", "requests && id", "$(id)", "`id`", "a\nb", "a\0b", "", " ", "requests==1\n--pre"),
    *('requests==1; python_version>"3"', "requests===anything", "-", "--", "a b", "a,b", "x" * 400, "requests==", "é"),
]  # fmt: skip


async def test_pk_02_pk_03_pk_04_what_is_no_name_with_versions_is_refused_before_anything_is_asked(
    opened: Opened, index: Index, asked: list[ApprovalRequest]
) -> None:
    async with opened() as sandbox:
        for name in NAMES:
            with pytest.raises(InvalidArgument) as raised:
                await sandbox.packages.install([name])
            assert (raised.value.argument, index.asked, asked) == ("packages", [], []), name


async def test_what_is_no_list_of_texts_is_refused(opened: Opened) -> None:
    async with opened() as sandbox:
        for packages in ("alpha", b"alpha", None, 3, [], [3], [None], ["a"] * 300):
            with pytest.raises(InvalidArgument):
                await sandbox.packages.install(packages)  # type: ignore[arg-type]


async def test_a_source_distribution_is_not_even_offered(opened: Opened, index: Index, installer: str) -> None:
    index.add(sdist("alpha", "1.0", "raise SystemExit('built')"))
    async with opened() as sandbox:
        installed = await sandbox.packages.install(["alpha"])
    assert installed.status == "failed"
    assert "built" not in installed.output
    assert [path for path in index.paths() if path.endswith(".tar.gz")] == []


async def test_pk_01_what_a_build_does_stays_in_the_cell_that_builds(
    opened: Opened, index: Index, installer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "marker"
    monkeypatch.setenv("SECRET_OF_THE_HOST", "s3cret")
    building = f"""
import os, socket
os.makedirs({str(tmp_path)!r}, exist_ok=True)
open({str(marker)!r}, "w").write("built")
assert "SECRET_OF_THE_HOST" not in os.environ
for place in (("{"127.0.0.1"}", {index.port}), ("198.18.0.1", 81), ("198.18.0.1", 3128)):
    try:
        socket.create_connection(place, 2)
    except OSError:
        continue
    raise SystemExit(f"reached {{place}}")
"""
    index.add(sdist("alpha", "1.0", building))
    async with opened() as sandbox, sandbox.session() as session:
        installed = await sandbox.packages.install(["alpha"], session=session, sources=True)
        ran = await session.run("import alpha")
    assert installed.ok, installed.output
    assert ran.ok, ran.text
    assert [one.file for one in installed.packages] == ["alpha-1.0.tar.gz"]
    assert not marker.exists()


async def test_a_package_that_nobody_served_is_not_kept(
    opened: Opened, index: Index, installer: str, asked: list[ApprovalRequest]
) -> None:
    smuggling = """
import glob, os
for site in glob.glob("/workspace/environment/lib/python*/site-packages"):
    os.makedirs(site + "/evil-1.0.dist-info", exist_ok=True)
    open(site + "/evil.py", "w").close()
    open(site + "/evil-1.0.dist-info/METADATA", "w").write("Metadata-Version: 2.1\\nName: evil\\nVersion: 1.0\\n")
"""
    index.add(sdist("alpha", "1.0", smuggling))
    async with opened() as sandbox, sandbox.session() as session:
        installed = await sandbox.packages.install(["alpha"], session=session, sources=True)
        ran = await session.run("import alpha")
    assert installed.status == "failed"
    assert "evil 1.0" in installed.reason
    assert asked == []
    assert not ran.ok


@pytest.mark.parametrize("metadata", [True, False])
async def test_a_file_that_is_not_what_the_page_says_never_reaches_the_cell(
    opened: Opened, index: Index, asked: list[ApprovalRequest], metadata: bool
) -> None:
    index.metadata = metadata
    index.add(wheel("alpha"), hashes={"sha256": "0" * 64})
    async with opened() as sandbox:
        installed = await sandbox.packages.install(["alpha"])
        ran = await sandbox.run("import alpha")
    assert installed.status == "failed"
    assert "sha256" in installed.reason
    assert "does not match the index" in installed.reason
    assert asked == []
    assert not ran.ok


def _redirect(to: str) -> Callable[[Handler], None]:
    return lambda handler: handler.answer(302, b"", Location=to)


async def test_a_redirect_to_another_host_is_not_followed(opened: Opened, index: Index) -> None:
    other = Index()
    try:
        file = index.add(wheel("alpha"))
        index.metadata = False
        other.add(wheel("alpha"))
        index.answers[f"/files/{file.name}"] = _redirect(f"http://127.0.0.1:{other.port}/files/{file.name}")
        async with opened() as sandbox:
            installed = await sandbox.packages.install(["alpha"])
        assert installed.status == "failed"
        assert "redirects to another host" in installed.reason
        assert other.asked == []
        assert index.paths().count(f"/files/{file.name}") <= 2  # for its metadata and whole: nothing is tried again
    finally:
        other.close()


async def test_a_redirect_within_the_index_is_followed_but_not_for_ever(opened: Opened, index: Index) -> None:
    index.metadata = False
    file = index.add(wheel("alpha"))
    index.add(wheel("beta"))
    index.answers["/files/elsewhere"] = lambda handler: handler.answer(200, file.content)
    index.answers[f"/files/{file.name}"] = _redirect("elsewhere")
    index.answers["/simple/beta/"] = _redirect("/simple/beta/")
    async with opened() as sandbox:
        assert (await sandbox.packages.install(["alpha"])).ok
        circling = await sandbox.packages.install(["beta"])
    assert circling.status == "failed"
    assert index.paths().count("/simple/beta/") < 10


async def test_what_is_too_large_is_broken_off(opened: Opened, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.metadata = False
    index.add(wheel("alpha", files={"large.py": os.urandom(150_000).hex()}))
    monkeypatch.setattr("casemate.sessions.packages._MOST_FILE", 100_000)
    async with opened() as sandbox:
        installed = await sandbox.packages.install(["alpha"])
    assert installed.status == "failed"
    assert "the limit for one file" in installed.reason


async def test_pk_08_a_wheel_that_unpacks_to_more_than_the_cell_may_hold_ends_with_the_cell(
    opened: Opened, index: Index, installer: str
) -> None:
    name, content = wheel("alpha")
    body = io.BytesIO(content)
    with zipfile.ZipFile(body, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.py", b"#" * (200 << 20))
    index.add((name, body.getvalue()))
    async with opened(limits=Limits(disk="64MiB")) as sandbox:
        installed = await sandbox.packages.install(["alpha"])
    assert installed.status == "failed"


async def test_pk_08_a_build_that_does_not_end_is_ended(opened: Opened, index: Index) -> None:
    index.add(sdist("alpha", "1.0", "while True: pass"))
    async with opened() as sandbox:
        began = time.monotonic()
        installed = await sandbox.packages.install(["alpha"], sources=True, timeout=6)
        took = time.monotonic() - began
    assert installed.status == "failed"
    assert "6 s" in installed.reason, installed
    assert took < 60


async def test_pk_07_a_module_of_the_standard_library_is_not_shadowed(opened: Opened, index: Index) -> None:
    bad = "open('/workspace/shadowed', 'a').write(__name__)\n"
    names = ["json/__init__.py", "encodings/__init__.py", "_casemate/__init__.py", "sitecustomize.py"]
    index.add(wheel("alpha", files=dict.fromkeys(names, bad)))
    async with opened() as sandbox, sandbox.session() as session:
        assert (await sandbox.packages.install(["alpha"], session=session)).ok
        step = await session.run(
            "import json, encodings, os, subprocess, sys; print('/packages' in json.__file__)\n"
            "print(subprocess.run([sys.executable, '-c', 'import json; print(json.__file__)'], "
            "capture_output=True, text=True).stdout.count('/packages'))"
        )
        await session.reset()
        again = await session.run("import json, encodings, os; print('/packages' in json.__file__, _casemate_ok := 1)")
    assert step.stdout == "False\n0\n", step.text
    assert again.stdout == "False 1\n", again.text


async def test_pk_01_a_pth_file_runs_in_cells_only(opened: Opened, index: Index, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    line = f"import os; os.path.exists({str(tmp_path)!r}) and open({str(marker)!r}, 'w').write('x')\n"
    index.add(wheel("alpha", files={"alpha.pth": line}))
    async with opened() as sandbox:
        assert (await sandbox.packages.install(["alpha"])).ok
        assert (await sandbox.run("import alpha")).ok
    assert not marker.exists()


async def test_pk_09_settings_in_the_workspace_and_in_variables_change_nothing(
    opened: Opened, index: Index, tmp_path: Path, installer: str
) -> None:
    evil = Index()
    try:
        index.add(wheel("alpha", "1.0"))
        evil.add(wheel("alpha", "9.0"))
        workspace = tmp_path / "workspace"
        workspace.mkdir()
        (workspace / "pip.conf").write_text(f"[global]\nindex-url = {evil.url}\n")
        (workspace / "uv.toml").write_text(f'[[index]]\nurl = "{evil.url}"\ndefault = true\n')
        env = {"PIP_INDEX_URL": evil.url, "UV_DEFAULT_INDEX": evil.url, "PIP_CONFIG_FILE": "/workspace/pip.conf"}
        async with opened(workspace=workspace) as sandbox, sandbox.session(env=env) as session:
            ran = await session.run("%pip install alpha\nimport alpha; print(alpha.VERSION)")
        assert ran.stdout.endswith("1.0\n"), ran.text
        assert evil.asked == []
    finally:
        evil.close()


async def test_nothing_but_the_name_goes_to_the_index(opened: Opened, index: Index, installer: str) -> None:
    index.add(wheel("alpha"))
    async with opened() as sandbox:
        await sandbox.packages.install(["alpha"])
    assert {method for method, _, _ in index.asked} == {"GET"}
    assert all("?" not in path for path in index.paths())
    agents = {headers["user-agent"] for _, _, headers in index.asked}
    assert not any("pip/" in agent or agent.startswith("uv/") for agent in agents)  # they tell of the machine


async def test_cancelling_ends_the_cell_and_leaves_nothing(opened: Opened, index: Index) -> None:
    index.add(sdist("alpha", "1.0", "while True: pass"))
    async with opened() as sandbox:
        task = asyncio.ensure_future(sandbox.packages.install(["alpha"], sources=True))
        while not any(path.endswith(".tar.gz") for path in index.paths()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await sandbox.packages.list() == ()


async def test_the_cache_notices_a_file_that_was_changed(opened: Opened, index: Index, tmp_path: Path) -> None:
    file = index.add(wheel("alpha"))
    kept = tmp_path / "cache" / "casemate" / "packages" / "files" / hashlib.sha256(file.content).hexdigest()
    async with opened() as sandbox:
        assert (await sandbox.packages.install(["alpha"])).ok
        kept.write_bytes(b"something else")
        async with sandbox.session() as session:
            await sandbox.packages.remove(["alpha"])
            assert (await sandbox.packages.install(["alpha"], session=session)).ok
    assert kept.read_bytes() == file.content
    assert index.paths().count(f"/files/{file.name}") == 2


async def test_a_wheel_cannot_keep_another_out_of_the_question(
    opened: Opened, index: Index, installer: str, asked: list[ApprovalRequest]
) -> None:
    index.add(wheel("quiet"))
    note = {"alpha-1.0.data/purelib/quiet-1.0.dist-info/INSTALLER": "casemate\n"}
    index.add(wheel("alpha", requires=("quiet",), files=note))
    async with opened() as sandbox:
        installed = await sandbox.packages.install(["alpha"])
    assert installed.ok, installed.output
    (question,) = asked
    assert question.arguments["packages"] == ["alpha==1.0", "quiet==1.0"]


async def test_an_index_leads_nobody_to_another_with_the_operators_password(opened: Opened, index: Index) -> None:
    private = Index()
    try:
        private.password = "s3cret-of-the-operator"
        private.add(wheel("alpha"))
        index.metadata = False
        index.add(wheel("alpha"), url=f"http://127.0.0.1:{private.port}/files/alpha-1.0-py3-none-any.whl")
        file = index.add(wheel("beta"))
        to = f"http://127.0.0.1:{private.port}/files/alpha-1.0-py3-none-any.whl"
        index.answers[f"/files/{file.name}"] = _redirect(to)
        private.projects["gamma"] = []
        async with opened(package_indexes=[index.url, private.url]) as sandbox:
            linked = await sandbox.packages.install(["alpha"])
            redirected = await sandbox.packages.install(["beta"])
        assert (linked.status, redirected.status) == ("failed", "failed")
        assert not any("authorization" in headers for _, path, headers in private.asked if path.startswith("/files"))
    finally:
        private.close()
