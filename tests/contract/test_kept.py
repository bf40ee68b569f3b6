"""What a policy and names keep in a caller's folder: no program, no session and no host function changes it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.approvers import answering

from casemate import ApprovalRequest, Denied, Execution, InvalidArgument, Limits, sync

WRITE = """
import os
for name in ("new", "sub/new", "sub/deep/new", "output/made"):
    try:
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "w") as file:
            file.write("x")
    except OSError:
        pass
"""
LINKS = {
    ".git/hooks/pre-commit": "../../scripts/pre-commit", ".vscode": "tools/vscode", ".mcp.json": "cfg/mcp.json",
    ".idea": "chain", "chain": "real", ".cargo": "cargo",
}  # fmt: skip
THROUGH_LINKS = """
import os, shutil
def write(name):
    os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name, "w") as file:
        file.write("evil")
ways = [
    lambda: write("scripts/pre-commit"), lambda: write("tools/vscode/tasks.json"), lambda: write("cfg/mcp.json"),
    lambda: write("real/workspace.xml"), lambda: os.unlink("chain"), lambda: os.mkdir("chain"),
    lambda: write("chain/workspace.xml"), lambda: os.rename("cfg", "cfg2"), lambda: os.symlink("e", "cfg"),
    lambda: write("e/mcp.json"), lambda: shutil.rmtree("scripts"), lambda: write("scripts/pre-commit"),
    lambda: write("cargo/config.toml"), lambda: write("c/config.toml"), lambda: os.symlink("c", ".mvn"),
    lambda: write("./fine"),
]
for way in ways:
    try:
        way()
    except OSError:
        pass
"""
SECRET = "TOKEN=hidden-value"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project."""
    path = tmp_path / "project"
    (path / "sub" / "deep").mkdir(parents=True)
    (path / "a").write_text("a")
    return path


@pytest.fixture(params=["program", "session"])
def run(request: pytest.FixtureRequest) -> Callable[[sync.Sandbox, str], Execution]:
    """Runs a program in a sandbox, as one of its own or as a step."""

    def one(sandbox: sync.Sandbox, text: str) -> Execution:
        if request.param == "program":
            return sandbox.run(text)
        with sandbox.session() as session:
            return session.run(text)

    return one


def tree(folder: Path) -> dict[str, str]:
    """Each file in it, and each link."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_text()
        for path in folder.rglob("*") if path.is_symlink() or path.is_file()
    }  # fmt: skip


def writing_in(*folders: Path) -> dict[str, object]:
    """A policy by which nothing else is written."""
    return {"filesystem": {"allowWrite": [str(path) for path in folders]}}


@pytest.mark.parametrize("listed", [(), ("sub/deep",)])
def test_nothing_is_written_where_the_policy_does_not_list_it(
    wall: str, tmp_path: Path, folder: Path, run: Callable[..., Execution], listed: tuple[str, ...]
) -> None:
    policy, audit = writing_in(*(folder / name for name in listed)), tmp_path / "audit.db"
    with sync.Sandbox(isolation=wall, workspace=folder, policy=policy, audit=audit) as sandbox:
        done = run(sandbox, WRITE)
    assert tree(folder) == {"a": "a", **{f"{name}/new": "x" for name in listed}}
    assert not (folder / "output").exists()
    assert [one.name for one in done.artifacts] == ["output/made"]
    if wall == "native":  # there the program's own call fails
        assert done.skipped == ()
    else:
        assert {"new", "sub/new"} <= {one.name for one in done.skipped}
        assert all("allowWrite" in one.reason for one in done.skipped)


def test_a_folder_that_is_written_through_is_read_only_but_for_what_the_policy_lists(
    tmp_path: Path, folder: Path, run: Callable[..., Execution]
) -> None:
    policy = writing_in(folder / "sub")
    with sync.Sandbox(workspace=folder, workspace_mode="direct", policy=policy, audit=tmp_path / "audit.db") as sandbox:
        run(sandbox, WRITE)
    assert tree(folder) == {"a": "a", "sub/new": "x", "sub/deep/new": "x"}


def test_files_of_a_session_are_not_written_where_the_policy_does_not_list_them(
    wall: str, tmp_path: Path, folder: Path
) -> None:
    policy, audit = writing_in(folder / "sub"), tmp_path / "audit.db"
    with (
        sync.Sandbox(isolation=wall, workspace=folder, policy=policy, audit=audit) as sandbox,
        sandbox.session() as session,
    ):
        with pytest.raises(InvalidArgument, match=r"policy: allowWrite"):
            session.files.write("new", b"x")
        with pytest.raises(InvalidArgument, match=r"policy: allowWrite"):
            session.files.remove("a")
        session.files.write("sub/new", b"x")
        session.files.write("output/given", b"x")
        assert session.run("import os; print(os.path.exists('output/given'))").stdout == "True\n"
    assert tree(folder) == {"a": "a", "sub/new": "x"}


def test_what_the_policy_keeps_in_the_folder_stays_as_it_is_and_is_told(
    wall: str, tmp_path: Path, folder: Path, run: Callable[..., Execution]
) -> None:
    keeps = [str(folder / "sub"), f"{folder}/*.lock"]
    policy = {"filesystem": {"allowWrite": [str(folder)], "denyWrite": keeps}}
    with sync.Sandbox(isolation=wall, workspace=folder, policy=policy, audit=tmp_path / "audit.db") as sandbox:
        done = run(sandbox, WRITE + "open('a.lock', 'w').write('x')")
        with sandbox.session() as session, pytest.raises(InvalidArgument, match="denyWrite"):
            session.files.write("b.lock", b"x")
    assert tree(folder) == {"a": "a", "new": "x", "output/made": "x"}
    skipped = {one.name: one.reason for one in done.skipped}
    # Behind the native wall the program's own call fails for what was there already.
    assert {"a.lock", *(() if wall == "native" else ("sub/new",))} <= {*skipped}
    assert all("denyWrite" in reason for reason in skipped.values())


def test_what_a_protected_link_leads_to_is_protected_by_its_name(
    wall: str, tmp_path: Path, folder: Path, run: Callable[..., Execution]
) -> None:
    for name in (".git/hooks", "scripts", "tools/vscode", "cfg", "real", "cargo"):
        (folder / name).mkdir(parents=True)
    (folder / "scripts" / "pre-commit").write_text("honest")
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    before = tree(folder)
    with sync.Sandbox(isolation=wall, workspace=folder, audit=tmp_path / "audit.db") as sandbox:
        done = run(sandbox, THROUGH_LINKS)
    after = {name: text for name, text in tree(folder).items() if name != "cfg2/mcp.json"}  # where it can be renamed
    assert after == {**before, "fine": "evil", "e/mcp.json": "evil", "c/config.toml": "evil"}
    reasons = {one.name: one.reason for one in done.skipped}
    assert ".vscode leads there" in reasons["tools/vscode"]


@pytest.mark.parametrize("policy", [
    {"defaults": {"files": "deny"}}, {"rules": [{"deny": "files"}]},
])  # fmt: skip
def test_a_rule_that_denies_files_lets_nothing_be_applied_and_that_is_told(
    wall: str, tmp_path: Path, folder: Path, run: Callable[..., Execution], policy: dict[str, object]
) -> None:
    with sync.Sandbox(isolation=wall, workspace=folder, policy=policy, audit=tmp_path / "audit.db") as sandbox:
        done = run(sandbox, WRITE)
    assert tree(folder) == {"a": "a"}
    assert [one.name for one in done.artifacts] == ["output/made"]
    assert {one.name for one in done.skipped} == {"new", "sub/new", "sub/deep/new"}
    assert all("denies changes of files (policy" in one.reason for one in done.skipped)
    with pytest.raises(InvalidArgument, match=r"'direct' changes files at once, and the policy denies"):
        sync.Sandbox(isolation=wall, workspace=folder, workspace_mode="direct", policy=policy)


def test_what_is_refused_leaves_no_empty_folder(
    wall: str, tmp_path: Path, folder: Path, run: Callable[..., Execution]
) -> None:
    program = "import os\nos.makedirs('.git/hooks')\nopen('.git/hooks/x', 'w').close()\nos.mkdir('empty')"
    with sync.Sandbox(isolation=wall, workspace=folder, audit=tmp_path / "audit.db") as sandbox:
        done = run(sandbox, program)
    assert [one.name for one in done.skipped] == [".git/hooks"]
    assert sorted(os.listdir(folder)) == ["a", "empty", "sub"]


def test_a_diff_and_a_question_show_nothing_that_the_program_could_not_read(
    wall: str, tmp_path: Path, folder: Path
) -> None:
    asked: list[str] = []

    def approve(request: ApprovalRequest) -> bool:
        asked.append(f"{request.arguments}")
        return True

    for name in ("sub/.env", "sub/key"):
        (folder / name).write_text(SECRET)
    (folder / "sub" / "plain").write_text("plain")
    policy = {"filesystem": {"allowWrite": [str(folder)], "denyRead": [str(folder / "sub" / "key")]}}
    remove = "import shutil\nshutil.rmtree('sub', ignore_errors=True)"
    with sync.Sandbox(
        isolation=wall, workspace=folder, workspace_mode="review", policy=policy, audit=tmp_path / "audit.db",
        approve=approve,
    ) as sandbox:  # fmt: skip
        with sandbox.session() as session:
            session.run(remove)
            shown = session.diff()
            assert not any(one.path in ("sub/.env", "sub/key") for one in shown.changes)
            assert any(one.path == "sub/plain" and "-plain" in one.diff for one in shown.changes)
            session.apply()
        sandbox.run("import os\ntry:\n    os.rename('sub', 'other')\nexcept OSError:\n    pass")
        told = f"{shown}{asked}{[row.detail for row in sandbox.audit.tail(1000)]}"
    assert asked
    assert SECRET not in told
    assert {"sub/.env", "sub/key"} <= {*tree(folder)}
    assert "sub/plain" not in tree(folder)


@pytest.mark.parametrize("has_workspace", [True, False])
def test_what_the_host_puts_into_a_session_is_within_its_limits(
    wall: str, tmp_path: Path, folder: Path, has_workspace: bool
) -> None:
    limits, big = Limits(disk="1MiB", inodes=100), tmp_path / "big"
    big.write_bytes(b"x" * (4 << 20))
    workspace = folder if has_workspace else None
    with (
        sync.Sandbox(isolation=wall, workspace=workspace, limits=limits, audit=tmp_path / "audit.db") as sandbox,
        sandbox.session() as session,
    ):
        assert session.run("print('there')").ok
        with pytest.raises(InvalidArgument, match="there is no room for it"):
            session.files.write("big", big.read_bytes())
        with pytest.raises(InvalidArgument, match="there is no room for it"):
            session.files.upload(big)
        with pytest.raises(InvalidArgument, match="there is no room for it"):
            for number in range(300):
                session.files.write(f"many/{number}", b"x")
        done = session.run("print('still')")
        assert (done.status, done.stdout) == ("ok", "still\n")
    assert not (folder / "big").exists()


def test_the_host_writes_files_while_other_steps_begin_and_end(wall: str, tmp_path: Path) -> None:
    with sync.Sandbox(isolation=wall, audit=tmp_path / "audit.db") as sandbox, sandbox.session() as session:

        def use(who: int) -> str:
            for number in range(12):
                session.files.write(f"file{who}", str(number))
                session.run("1")
            return str(session.files.read_text(f"file{who}"))

        with ThreadPoolExecutor() as threads:
            assert list(threads.map(use, range(4))) == ["11"] * 4


def test_the_host_reads_and_writes_nothing_that_is_hidden_or_kept(tmp_path: Path, folder: Path) -> None:
    for name in (".env", "key", "real"):
        (folder / name).write_text(SECRET)
    (folder / "link").mkdir()
    (folder / "link" / ".env").symlink_to("../real")
    (folder / "sub" / "settings").mkdir()
    (folder / ".vscode").symlink_to("sub/settings")
    asked: list[ApprovalRequest] = []
    policy = {
        "filesystem": {"allowWrite": [str(folder / "sub")], "denyRead": [str(folder / "key")]},
        "host": {"roots": [{"path": str(folder), "write": True}]},
    }
    with sync.Sandbox(
        workspace=folder, policy=policy, audit=tmp_path / "audit.db", approve=answering(asked)
    ) as sandbox:
        for name in (".env", "key", "real"):
            path = str(folder / name)
            for use, arguments in (
                (sandbox.host.read, (path,)),
                (sandbox.host.write, (path, "x")),
                (sandbox.host.copy, (path, str(folder / "sub" / "copy"))),
                (sandbox.host.copy, (str(folder / "a"), path)),
            ):
                with pytest.raises(Denied, match=r"the policy (hides it|lets nothing be written there)"):
                    use(*arguments)
        for name in ("new", "sub/settings/tasks.json"):
            with pytest.raises(Denied, match=r"policy: allowWrite|\.vscode leads there"):
                sandbox.host.write(str(folder / name), "x")
        assert asked == []
        sandbox.host.write(str(folder / "sub" / "new"), "x")
        assert sandbox.host.read(str(folder / "a")) == b"a"
    assert len(asked) == 1
    assert (folder / ".env").read_text() == (folder / "key").read_text() == (folder / "real").read_text() == SECRET


@pytest.mark.parametrize("path", ["/", "/etc", "/etc/ssl", "/etc/ssl/*", "{packages}", "{packages}/**/*.py"])
def test_what_every_cell_sees_cannot_be_hidden_and_that_is_said_at_the_start(folder: Path, path: str) -> None:
    packages = os.path.dirname(os.path.dirname(pytest.__file__))
    path = path.format(packages=packages)
    with pytest.raises(InvalidArgument, match=r"cannot be hidden from programs"):
        sync.Sandbox(workspace=folder, policy={"filesystem": {"allowWrite": [], "denyRead": [path]}})


def test_a_machines_own_accounts_cannot_be_hidden_where_cells_see_them(wall: str, folder: Path) -> None:
    policy = {"filesystem": {"allowWrite": [], "denyRead": ["/etc/passwd"]}}
    if wall == "landlock":
        with pytest.raises(InvalidArgument, match=r"/etc/passwd cannot be hidden"):
            sync.Sandbox(isolation=wall, workspace=folder, policy=policy)
    else:
        sync.Sandbox(isolation=wall, workspace=folder, policy=policy).close()
