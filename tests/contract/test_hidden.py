"""Files called ``.env`` in a folder of the caller's: no program and no session reads or changes them, by any way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from casemate import Execution, InvalidArgument, sync

SECRET = "TOKEN=hidden-value"
HIDDEN = (".env", "sub/deep/.env", "link/.env", "real.txt")
MODES = ("overlay", "direct")
PYTHON = """
import ctypes, os
libc, name = ctypes.CDLL(None), b"{name}"
libc.renameat2(-100, name, -100, b"plain", 2)
libc.linkat(-100, name, -100, b"linked", 0)
folder = os.open("/workspace", os.O_PATH)
for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
    try:
        print(os.read(os.open(name, flags, dir_fd=folder), 99))
    except OSError as error:
        print(error)
print(open("plain").read(), os.path.exists("linked") and open("linked").read())
"""
WAYS = {
    "opened": "cat {name}",
    "opened for writing": "echo x > {name}",
    "appended to": "echo x >> {name}",
    "through /proc/self/root": "cat /proc/self/root/workspace/{name}",
    "through /proc/1/root": "cat /proc/1/root/workspace/{name}",
    "through a link": "ln -s /workspace/{name} l; cat l",
    "through a hard link": "ln {name} h; cat h",
    "renamed": "mv {name} m; cat m",
    "removed": "rm -f {name}; cat {name}",
    "replaced": "echo x > n; mv -f n {name}; cat {name}",
    "truncated": "truncate -s 0 {name}",
    "with other bits": "chmod 666 {name}; cat {name}",
    "given away": "chown 1000 {name}; touch {name}; cat {name}",
    "with its folder renamed": "mv sub other; mv link other2; cat other/deep/.env other2/.env",
    "with its folder removed": "rm -rf sub link; mkdir -p sub/deep link; echo x > {name}; cat {name}",
    "copied with its folder": "cp -a . /tmp/copy; cat /tmp/copy/{name}",
    "in an archive": "tar cf - . | grep -a hidden-value",
    "unmounted": "umount {name}; umount -l /workspace/{name}; cat {name}",
    "in other namespaces": "unshare -Urm sh -c 'umount {name}; cat {name}'",
    "covered": "mount -t tmpfs t /workspace; cat {name}",
    "by descriptors and system calls": f"python3 -c '{PYTHON}'",
}
SHELL_IN = {
    "python": "import subprocess; r = subprocess.run(['bash', '-c', {text!r}], capture_output=True); "
    "print((r.stdout + r.stderr).decode(errors='replace'))",
    "node": "const r = require('child_process').spawnSync('bash', ['-c', {text!r}]); "
    "process.stdout.write(String(r.stdout) + String(r.stderr) + '\\n')",
    "shell": "{text}",
}
READ = {
    "python": "open('/workspace/.env').read()",
    "node": "require('fs').readFileSync('/workspace/.env', 'utf8')",
    "shell": "read line < /workspace/.env",
}
SEEN = {
    "python": "print(open('.env').read())",
    "node": "console.log(require('fs').readFileSync('.env', 'utf8'))",
    "shell": "cat .env",
}
DENIED = {"python": "PermissionError", "node": "EACCES", "shell": "Permission denied"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with something to hide."""
    path = tmp_path / "project"
    for name in ("sub/deep", "link"):
        (path / name).mkdir(parents=True)
    for name in (".env", "sub/deep/.env", "real.txt"):
        (path / name).write_text(SECRET)
    (path / "link/.env").symlink_to("../real.txt")
    (path / "plain").write_text("plain\n")
    return path


@pytest.fixture(params=["program", "session"])
def run(request: pytest.FixtureRequest) -> Callable[..., Execution]:
    """Runs a text of a language in a sandbox, as a program of its own or as a step."""

    def one(sandbox: sync.Sandbox, text: str, language: str) -> Execution:
        if request.param == "program":
            return sandbox.run(text, language=language)
        with sandbox.session(language) as session:
            return session.run(text)

    return one


def told(execution: Execution) -> str:
    """All that comes out."""
    files = [one.read_bytes().decode("utf-8", "replace") for one in execution.artifacts]
    others = map(str, (execution.error, *execution.results, *execution.skipped))
    return "".join((execution.text, *others, *files))


def check_untouched(folder: Path) -> None:
    """Everything that was hidden is there and as it was."""
    for name in HIDDEN:
        assert (folder / name).read_text() == SECRET
    assert (folder / "link/.env").is_symlink()


@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_opens_a_hidden_file_gets_a_plain_error(
    folder: Path, tmp_path: Path, mode: str, language: str, run: Callable[..., Execution]
) -> None:
    with sync.Sandbox(workspace=folder, workspace_mode=mode, audit=tmp_path / "a.db") as sandbox:
        execution = run(sandbox, READ[language], language)
        assert DENIED[language] in told(execution)
        assert SECRET not in told(execution)
        assert any("'.env'" in note for note in execution.isolation.notes)
        assert "Hidden from programs" in execution._repr_mimebundle_()["text/html"]
    check_untouched(folder)


@pytest.mark.parametrize("mode", MODES)
def test_no_way_of_any_language_reads_changes_moves_removes_or_replaces_it(
    folder: Path, tmp_path: Path, mode: str, language: str, run: Callable[..., Execution]
) -> None:
    lines = [f"({way.format(name=name)}) 2>&1 | tail -c 300" for name in HIDDEN for way in WAYS.values()]
    text = SHELL_IN[language].format(text="\n".join((*lines, "echo all of them were tried")))
    with sync.Sandbox(workspace=folder, workspace_mode=mode, audit=tmp_path / "a.db") as sandbox:
        execution = run(sandbox, text, language)
        assert "all of them were tried" in execution.text[-100:]
        assert "hidden-value" not in told(execution)
        check_untouched(folder)
        again = run(sandbox, SHELL_IN[language].format(text="grep -r hidden-value . ; echo looked"), language)
        assert "looked" in again.text
        assert "hidden-value" not in told(again)
    check_untouched(folder)
    others = [path for path in folder.rglob("*") if path.is_file() and b"hidden-value" in path.read_bytes()]
    assert {str(path.relative_to(folder)) for path in others} == set(HIDDEN)
    assert not [name for name in (one.name for one in execution.skipped) if name in HIDDEN]


@pytest.mark.full
def test_marks_like_those_of_the_layer_remove_nothing_and_show_nothing(folder: Path, tmp_path: Path) -> None:
    """Attributes by which overlayfs knows a folder that replaces the one below, set by a program."""
    text = """
import os
for folder in (".", "sub", "sub/deep"):
    open(f"{folder}/new", "w").close()
    for name in ("user.overlay.opaque", "trusted.overlay.opaque", "user.overlay.overlay.opaque"):
        try:
            os.setxattr(folder, name, b"y")
        except OSError:
            pass
"""
    with sync.Sandbox(workspace=folder, audit=tmp_path / "a.db") as sandbox:
        assert sandbox.run(text).status == "ok"
        check_untouched(folder)
        with sandbox.session("python") as session:
            assert session.run(text).status == "ok"
            session.reset()
            again = session.run("for name in ('.env', 'sub/deep/.env', 'real.txt'):\n  try: print(open(name).read())\n"
                                "  except PermissionError: print('denied')")  # fmt: skip
            assert again.text.split() == ["denied"] * 3
            for name in HIDDEN:
                with pytest.raises(InvalidArgument, match="hidden"):
                    session.files.read_bytes(name)
    check_untouched(folder)
    assert (folder / "plain").read_text() == "plain\n"


def test_control_what_has_another_name_is_read_by_the_same_ways(folder: Path, tmp_path: Path, language: str) -> None:
    (folder / "shown").write_text(SECRET)
    text = SHELL_IN[language].format(text=WAYS["opened"].format(name="shown"))
    with sync.Sandbox(workspace=folder, audit=tmp_path / "a.db") as sandbox:
        assert SECRET in sandbox.run(text, language=language).text


@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_is_named_as_to_be_seen_can_be_read_and_changed(
    folder: Path, tmp_path: Path, mode: str, language: str, run: Callable[..., Execution]
) -> None:
    given = {"workspace": folder, "workspace_mode": mode, "audit": tmp_path / "a.db"}
    with sync.Sandbox(**given, allow_read=[folder / ".env"]) as sandbox:
        assert SECRET in run(sandbox, SEEN[language], language).text
        changed = run(sandbox, SHELL_IN[language].format(text="echo y > .env; cat sub/deep/.env"), language)
        assert SECRET not in told(changed)
    assert (folder / ".env").read_text() == "y\n"


@pytest.mark.parametrize("mode", MODES)
def test_what_a_policy_hides_is_hidden_from_programs_too(
    folder: Path, tmp_path: Path, mode: str, run: Callable[..., Execution]
) -> None:
    (folder / "keys").mkdir()
    (folder / "keys/a.pem").write_text(SECRET)
    (folder / "private").mkdir()
    (folder / "private/b").write_text(SECRET)
    policy = {"filesystem": {"denyRead": [f"{folder}/**/*.pem", f"{folder}/private"]}}
    with sync.Sandbox(workspace=folder, policy=policy, workspace_mode=mode, audit=tmp_path / "a.db") as sandbox:
        text = "cat keys/a.pem private/b .env; mv keys k; mv private p; cat k/a.pem p/b; cat plain"
        execution = run(sandbox, text, "shell")
    assert execution.stdout == "plain\n"
    assert (folder / "private/b").read_text() == (folder / "keys/a.pem").read_text() == SECRET


def test_a_plan_and_a_run_in_the_background_do_not_see_it_either(folder: Path, tmp_path: Path) -> None:
    with sync.Sandbox(workspace=folder, workspace_mode="direct", audit=tmp_path / "a.db") as sandbox:
        assert SECRET not in told(sandbox.plan("cat .env", language="shell").execution)
        assert SECRET not in told(sandbox.start("cat .env", language="shell").wait())
        assert sandbox.explain("pass").workspace.hidden == (".env", "link/.env", "real.txt", "sub/deep/.env")


def test_a_file_in_the_output_folder_is_no_artifact_though_somebody_changes_it(folder: Path, tmp_path: Path) -> None:
    (folder / "output").mkdir()
    (folder / "output/.env").write_text("old")
    with sync.Sandbox(workspace=folder, workspace_mode="direct", audit=tmp_path / "a.db") as sandbox:
        events = iter(sandbox.stream("echo made > output/made; echo ready; read line < <(sleep 0.4)", language="shell"))
        next(events)
        (folder / "output/.env").write_text(SECRET)
        execution = list(events)[-1].execution  # type: ignore[union-attr]
    assert [one.name for one in execution.artifacts] == ["output/made"]


def test_a_folder_that_may_not_be_listed_hides_nothing_from_the_search(folder: Path, tmp_path: Path) -> None:
    (folder / "closed").mkdir()
    (folder / "closed/.env").write_text(SECRET)
    (folder / "closed").chmod(0o300)
    with sync.Sandbox(workspace=folder, workspace_mode="direct", audit=tmp_path / "a.db") as sandbox:
        execution = sandbox.run("cat closed/.env; chmod 700 closed; cat closed/.env", language="shell")
    assert SECRET not in told(execution)


def test_a_cell_that_was_ready_hides_a_file_that_was_replaced_since(folder: Path, tmp_path: Path) -> None:
    with sync.Sandbox(workspace=folder, workspace_mode="direct", audit=tmp_path / "a.db") as sandbox:
        for _ in range(3):
            assert SECRET not in told(sandbox.run("cat .env sub/deep/.env", language="shell"))
            for name in (".env", "sub/deep/.env"):
                (folder / "new").write_text(SECRET)
                (folder / "new").rename(folder / name)


def test_a_program_ends_when_what_is_hidden_from_it_is_replaced_in_a_folder_that_is_written_through(
    folder: Path, tmp_path: Path
) -> None:
    with sync.Sandbox(workspace=folder, workspace_mode="direct", audit=tmp_path / "a.db") as sandbox:
        events = iter(sandbox.stream("echo ready; exec sleep 50", language="shell"))
        next(events)
        (folder / "new").write_text("TOKEN=other")
        (folder / "new").rename(folder / ".env")
        execution = list(events)[-1].execution  # type: ignore[union-attr]
    assert (execution.status, execution.exit_code) == ("killed", None)
    assert execution.cause is not None
    assert "was replaced" in execution.cause.message


def test_through_an_overlay_a_file_that_is_replaced_stays_hidden(folder: Path, tmp_path: Path) -> None:
    with sync.Sandbox(workspace=folder, audit=tmp_path / "a.db") as sandbox, sandbox.session("shell") as session:
        session.run("ls -A . sub/deep")
        for name in (".env", "sub/deep/.env"):
            (folder / "new").write_text("TOKEN=other")
            (folder / "new").rename(folder / name)
        execution = session.run("cat .env sub/deep/.env")
    assert (execution.stdout, execution.state) == ("", "kept")


def test_a_file_that_vanishes_while_a_run_is_prepared_is_an_error_in_words(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from casemate.walls.native import launch

    def request(*arguments: object) -> object:
        (folder / ".env").unlink(missing_ok=True)
        return real(*arguments)  # type: ignore[arg-type]

    real = launch.request
    monkeypatch.setattr(launch, "request", request)
    with sync.Sandbox(workspace=folder, audit=tmp_path / "a.db") as sandbox:
        with pytest.raises(InvalidArgument, match=r"\.env'(\n|.)*try again"):
            sandbox.run("pass")
        assert sandbox.run("print(1)").stdout == "1\n"


def test_a_folder_that_is_hidden_whole_is_an_error(folder: Path, tmp_path: Path) -> None:
    policy = {"filesystem": {"denyRead": [str(folder)]}}
    with (
        sync.Sandbox(workspace=folder, policy=policy, audit=tmp_path / "a.db") as sandbox,
        pytest.raises(InvalidArgument, match="denyRead"),
    ):
        sandbox.run("pass")


def test_runs_at_the_same_time_in_one_folder_hide_the_same(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with sync.Sandbox(workspace=folder, audit=tmp_path / "a.db") as sandbox:
        read = lambda: said.append(told(sandbox.run("cat .env", language="shell")))  # noqa: E731
        work = [threading.Thread(target=read) for _ in range(6)]
        for one in work:
            one.start()
        for one in work:
            one.join()
    assert len(said) == 6
    assert not any(SECRET in one for one in said)
    assert os.path.exists(folder / ".env")


_MOUNTED = """
import subprocess, sys
from casemate import sync
folder, mode = sys.argv[1:]
subprocess.run(["mount", "--bind", folder + "/sub", folder + "/plain folder"], check=True)
with sync.Sandbox(workspace=folder, workspace_mode=mode, audit=folder + "/../a.db") as sandbox:
    execution = sandbox.run("cat .env 'plain folder/deep/.env'; ls 'plain folder'; echo end", language="shell")
    print(execution.stderr + execution.stdout.rstrip(), execution.status)
"""


@pytest.mark.root_only
@pytest.mark.parametrize(("mode", "listed"), [("overlay", ""), ("direct", "deep\n")])
def test_what_is_mounted_in_the_folder_is_hidden_where_it_is_seen_at_all(folder: Path, mode: str, listed: str) -> None:
    (folder / "plain folder").mkdir()
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", _MOUNTED, str(folder), mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.endswith(f"{listed}end ok\n"), done.stdout + done.stderr
    assert "hidden-value" not in done.stdout
