"""Nothing outside the workspace is changed, and nothing is left in it that somebody runs later."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.escapes import host
from tests.escapes.cells import Attack, attack, bare, held, held_bare, told, without

from casemate import sync

BITS = stat.S_ISUID | stat.S_ISGID
_PLANTED = "echo planted"


@pytest.fixture(scope="module")
def environment(scratch: Path) -> Iterator[Path]:
    """A virtual environment, writable by everybody, that cells are shown: only the wall keeps it as it is.

    Not in root's home, which users of cells may not enter.
    """
    folder = Path(tempfile.mkdtemp(dir="/srv")) if os.geteuid() == 0 else scratch / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "canary.py").write_text("x = 1\n")
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o777 if path.is_dir() else 0o666)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def inside(environment: Path, scratch: Path) -> Iterator[sync.Sandbox]:
    with sync.Sandbox(audit=scratch / "audit-environment.db", environment=environment) as one:
        yield one


def _targets(canaries: host.Canaries, environment: Path) -> dict[str, str]:
    packages = next(environment.glob("lib/python*/site-packages"))
    files = [packages / "canary.py", environment / "pyvenv.cfg", *canaries.paths.values()]
    folders = [packages, environment / "bin", *{path.parent for path in canaries.paths.values()}]
    return {"FILES": ":".join(map(str, files)), "FOLDERS": ":".join(map(str, folders))}


def _all_of(canaries: host.Canaries, environment: Path) -> list[object]:
    folders = [environment, *{path.parent for path in canaries.paths.values()}]
    system = [Path("/etc/passwd"), Path("/etc/hostname"), Path("/usr"), Path("/usr/bin/env"), Path(sys.executable)]
    return [host.snapshot(folder) for folder in sorted(folders)] + [
        (p.stat().st_ctime_ns, p.stat().st_mode) for p in system
    ]


def test_nothing_of_the_host_is_changed(
    canaries: host.Canaries, environment: Path, inside: sync.Sandbox, language: str
) -> None:
    """Files by every call that changes one, new files in every folder; those of the environment are in sight."""
    before = _all_of(canaries, environment)
    attack(inside, Attack("write", language), _targets(canaries, environment))
    assert _all_of(canaries, environment) == before


@pytest.mark.parametrize("missing", ["landlock", "seccomp", "capabilities", "mounts", "init", "namespaces"])
def test_without_any_one_layer_nothing_of_the_host_is_changed(
    canaries: host.Canaries, environment: Path, inside: sync.Sandbox, missing: str
) -> None:
    before = _all_of(canaries, environment)
    with without(missing):
        attack(inside, Attack("write"), _targets(canaries, environment))
    assert _all_of(canaries, environment) == before


def test_control_bare_the_same_attack_changes_every_file(tmp_path: Path, language: str) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "canary").write_text("as it was")
    before = host.snapshot(folder)
    bare(Attack("write", language), {"FILES": str(folder / "canary"), "FOLDERS": str(folder)}, tmp_path / "bare")
    after = host.snapshot(folder)
    assert after.get("canary") != before["canary"]
    assert {"sitecustomize.py", "evil.pth", ".bashrc", "new", "made"} <= set(after)


# ---------------------------------------------------------------------------------------- what is run later, and bits


def _sandbox(scratch: Path, workspace: Path, mode: str = "overlay") -> sync.Sandbox:
    return sync.Sandbox(audit=scratch / "audit-project.db", workspace=workspace, workspace_mode=mode)


def test_nothing_is_left_in_a_project_that_somebody_runs_later(scratch: Path, workspace: Path, language: str) -> None:
    before = host.snapshot(workspace)
    with _sandbox(scratch, workspace) as sandbox:
        execution = attack(sandbox, Attack("plant", language))
    after = host.snapshot(workspace)
    assert (workspace / "src/result.txt").read_text() == "honest", "the control: honest changes are applied"
    changed = {name for name in after if after[name] != before.get(name) and not (workspace / name).is_dir()}
    planted = {name for name in changed if _PLANTED in (workspace / name).read_text(errors="replace")}
    harmless = {name for name in planted if name.split("/")[0] in ("innocent", "harmless", "copied.json", "was-git")}
    assert planted == harmless
    assert changed - planted == {"src/result.txt"}
    assert set(before) - {".git/HEAD"} <= set(after)  # which is moved where whole folders can be
    assert len(execution.skipped) >= 5, "each refusal is reported"
    assert not any((workspace / name / "hooks").exists() for name in ("repo/.git", "sub/.git"))


def test_control_bare_the_same_attack_plants_all_of_it(tmp_path: Path, workspace: Path, language: str) -> None:
    shutil.copytree(workspace, tmp_path / "bare")
    bare(Attack("plant", language), {}, tmp_path / "bare")
    for name in (".envrc", ".mcp.json", ".bashrc", "evil.pth", "sitecustomize.py", ".venv/bin/activate"):
        assert _PLANTED in (tmp_path / "bare" / name).read_text()


def _with_bits(folder: Path) -> set[str]:
    found = set()
    for path in folder.rglob("setuid-*"):
        if path.lstat().st_mode & BITS:
            found.add(path.name)
            path.unlink() if not path.is_dir() else path.rmdir()  # never leave one, harmless as it is
    return found


def test_no_setuid_file_is_left_even_where_a_folder_is_written_through(scratch: Path, workspace: Path) -> None:
    """Direct mode has no write-back that could strip the bits: seccomp alone refuses each call."""
    with _sandbox(scratch, workspace, "direct") as sandbox:
        attack(sandbox, Attack("setuid"), into=workspace)
        assert (workspace / "honest").exists()
        assert _with_bits(workspace) == set()
        with without("seccomp"):
            attack(sandbox, Attack("setuid"), into=workspace)
        ways = _with_bits(workspace)
        assert {"setuid-chmod", "setuid-fchmod", "setuid-creat", "setuid-mknod", "setuid-unnamed"} <= ways, (
            "the control"
        )


def test_the_write_back_alone_strips_setuid_bits(scratch: Path, workspace: Path) -> None:
    """The overlay without seccomp: files are made with the bits, and come to the host without."""
    with _sandbox(scratch, workspace) as sandbox, without("seccomp"):
        attack(sandbox, Attack("setuid"))
    assert (workspace / "setuid-chmod").exists()
    assert _with_bits(workspace) == set()


def test_shell_and_node_leave_no_setuid_file_either(scratch: Path, workspace: Path) -> None:
    shell = "cp /bin/true setuid-cp; chmod u+s setuid-cp; install -m 6755 /bin/true setuid-install\n"
    shell += "mkdir -m 2755 setuid-dir\n"
    node = "const f=require('fs'); for (const g of [()=>f.writeFileSync('setuid-n','x',{mode:0o4755}),"
    node += "()=>f.chmodSync('setuid-n',0o6755)]) { try { g() } catch (e) { console.log(e.code) } }"
    with _sandbox(scratch, workspace, "direct") as sandbox:
        assert sandbox.run(shell + "echo end", language="shell").stdout.endswith("end\n")
        if shutil.which("node"):
            assert sandbox.run(node, language="node").stdout.count("EPERM") >= 1
        assert _with_bits(workspace) == set()
        with without("seccomp"):
            sandbox.run(shell, language="shell")
            assert _with_bits(workspace) >= {"setuid-cp"}, "the control"


# ------------------------------------------------------------------------------------------------- links and artifacts

LINKS = """
import os
from tests.escapes.payloads.attempts import attempt, finish
target = os.environ["TARGET"]
os.makedirs("output/deep", exist_ok=True)
attempt("absolute", lambda: os.symlink(target, "output/absolute"))
attempt("up", lambda: os.symlink("/.." * 10 + target, "output/deep/up"))
attempt("relative", lambda: os.symlink(os.path.relpath(target, "/workspace/output"), "output/relative"))
attempt("folder", lambda: os.symlink(os.path.dirname(target), "output/folder"))
attempt("two steps", lambda: os.symlink("absolute", "output/two"))
attempt("proc", lambda: os.symlink("/proc/self/environ", "output/environ"))
attempt("hard", lambda: os.link("/etc/hostname", "output/hard"))
attempt("fifo", lambda: os.mkfifo("output/fifo"))
def replace():
    import shutil
    shutil.rmtree("src")
    os.symlink(os.path.dirname(target), "src")
if os.path.isdir("src"):
    attempt("folder replaced by a link", replace)
open("output/honest.txt", "w").write("honest")
finish()
"""


@pytest.mark.parametrize("kind", ["private", "overlay", "direct"])
def test_links_out_of_the_workspace_are_neither_followed_nor_written(
    canaries: host.Canaries, scratch: Path, workspace: Path, tmp_path: Path, kind: str
) -> None:
    target = canaries.paths["home"]
    before = host.snapshot(target.parent)
    folder = None if kind == "private" else workspace
    audit = scratch / "audit-links.db"
    mode = "direct" if kind == "direct" else "overlay"
    with sync.Sandbox(audit=audit, workspace=folder, workspace_mode=mode, output_dir=tmp_path / "out") as sandbox:
        into = workspace if kind == "direct" else None
        execution = attack(sandbox, Attack("links", source=LINKS), {"TARGET": str(target)}, into=into)
    assert "tried absolute: done" in execution.stdout, "the control: the link was made, and leads to the canary"
    assert canaries.secrets["home"] not in told(execution)
    assert [one.name for one in execution.artifacts] == ["output/honest.txt"]
    assert host.snapshot(target.parent) == before
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_symlink()]
    if kind == "overlay":
        outward = [path for path in workspace.rglob("*") if path.is_symlink() and not _stays(path, workspace)]
        assert outward == []
        assert (workspace / "src/main.py").read_text() == "x = 1\n" or not (workspace / "src").exists()


def _stays(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(folder.resolve())


RACE = """
import os
from tests.escapes.payloads.attempts import END
target = os.environ["TARGET"]
print(END, flush=True)
while True:
    for name in ("output/raced", "raced"):
        open("mine", "w").write("mine")
        os.rename("mine", name)
        os.symlink(target, "link")
        os.rename("link", name)
"""


def test_a_race_between_a_file_and_a_link_wins_nothing(
    canaries: host.Canaries, scratch: Path, workspace: Path, wall: str
) -> None:
    """The race goes on until the time limit; files are taken when nothing runs any more."""
    target = canaries.paths["home"]
    before = host.snapshot(target.parent)
    with _sandbox(scratch, workspace) as sandbox:
        for _ in range(3):
            timeout = 1.5 if wall == "native" else 5  # in which it must have begun, also on a busy machine
            execution = attack(sandbox, Attack("race", source=RACE), {"TARGET": str(target)}, timeout=timeout)
            assert execution.status == "timeout"
            assert canaries.secrets["home"] not in told(execution)
    assert host.snapshot(target.parent) == before
    for name in ("raced", "output/raced"):
        assert not (workspace / name).is_symlink()


# -------------------------------------------------------------------------------------------------- system settings

SYSCTLS = """
import os
from tests.escapes.payloads.attempts import attempt, finish
for name in os.environ["NAMES"].split(":"):
    attempt(name, lambda: os.open(name, os.O_WRONLY))
finish()
"""
_SETTINGS = (
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory",
    "/proc/sys/kernel/hostname", "/proc/sys/fs/binfmt_misc/register", "/proc/sysrq-trigger", "/proc/irq/0/smp_affinity",
    "/proc/sys/kernel/ns_last_pid", "/proc/sys/user/max_user_namespaces", "/proc/sys/net/ipv4/ip_forward",
    "/proc/1/oom_score_adj", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/memory/release_agent",
)  # fmt: skip


@pytest.mark.parametrize("missing", ["nothing", "mounts", "landlock"])
def test_no_setting_of_the_kernel_is_open_for_writing(
    sandbox: sync.Sandbox, scratch: Path, start: str, missing: str
) -> None:
    """Judged by the descriptors that the attack holds, and by the settings themselves.

    Without Landlock a warm cell of an ordinary user can open one file of its own init's: /proc/1 belongs to that user
    there, and to root in a cell by exec. It can only make its own end likelier with it.
    """
    inits_own = {"/proc/1/oom_score_adj"} if start == "warm" and os.geteuid() else set()
    it = Attack("sysctls", source=SYSCTLS)
    before = {name: _content(name) for name in _SETTINGS}
    with without(missing), held(sandbox, it, {"NAMES": ":".join(_SETTINGS)}) as one:
        assert any(link.startswith("pipe:") for link in host.open_files(one.pid)), "its descriptors can be seen"
        opened = {link for link in host.open_files(one.pid) if link.startswith(("/proc", "/sys"))}
        assert opened <= (inits_own if missing == "landlock" else set())
    if os.geteuid() == 0:
        with held_bare(it, {"NAMES": ":".join(_SETTINGS[:3])}, scratch / "sysctl") as control:
            assert "/proc/sys/kernel/core_pattern" in host.open_files(control.pid), "the control"
    assert {name: _content(name) for name in _SETTINGS} == before


def _content(name: str) -> str:
    if not os.path.isfile(name) or name.endswith(("ns_last_pid", "sysrq-trigger", "register")):
        return ""
    with open(name) as file:
        return file.read()


LEASE = """
import fcntl, os, signal
from tests.escapes.payloads.attempts import attempt, finish
signal.signal(signal.SIGIO, signal.SIG_IGN)  # who holds a lease is told so, and would die of it
fd = os.open(os.environ["TARGET"], os.O_RDONLY)
attempt("lease", lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK))
attempt("lock", lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))
finish()
"""


@pytest.mark.user_only
def test_a_cell_cannot_make_the_hosts_writers_wait(environment: Path, inside: sync.Sandbox) -> None:
    """A lease on a file that the cell may read would stop those who open it for writing for 45 seconds."""
    target = next(environment.glob("lib/python*/site-packages/canary.py"))
    with held(inside, Attack("lease", source=LEASE), {"TARGET": str(target)}):
        os.close(os.open(target, os.O_WRONLY | os.O_NONBLOCK))


def test_control_bare_a_lease_and_a_lock_are_taken(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.touch()
    with held_bare(Attack("lease", source=LEASE), {"TARGET": str(target)}, tmp_path / "bare"):
        with pytest.raises(BlockingIOError):
            os.open(target, os.O_WRONLY | os.O_NONBLOCK)
        with target.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.xfail(
    strict=True, reason="flock(2) on a read-only bind is the host's own lock; nothing filters it by file"
)
def test_a_cell_cannot_hold_the_hosts_locks(environment: Path, inside: sync.Sandbox) -> None:
    target = next(environment.glob("lib/python*/site-packages/canary.py"))
    with held(inside, Attack("lease", source=LEASE), {"TARGET": str(target)}), target.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
