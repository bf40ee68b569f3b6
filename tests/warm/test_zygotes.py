"""Zygotes: what rules one out, when another takes its place, and what one is that was never given a program."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.contract import witness
from tests.support.waiting import until
from tests.warm.ready import field, make_venv, put, settle, settle_for, start_of, warmth, zygote_of, zygotes
from tests.warmth import starting

from casemate import Execution, sync

# -- what rules a zygote out

FAILING = {
    "starts a thread": (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", "threads"),
    "raises": ("raise ValueError('not here')", "ValueError: not here"),
    "exits": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "exits at once": ("import os\nif 'casemate' not in __import__('sys').path: os._exit(3)", "it ended 3 times"),
    "dies": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "it ended 3 times"),
    "imports what is not there": ("import surely_not_there", "surely_not_there"),
    "is no Python": ("def (:", "SyntaxError"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILING)
def test_a_module_that_cannot_be_loaded_ahead_rules_out_its_zygote_and_nothing_else(
    audit: Path, tmp_path: Path, name: str
) -> None:
    text, reason = FAILING[name]
    venv = make_venv(tmp_path / "venv", odd=text)
    with sync.Sandbox(audit=audit, environment=venv, preload=["odd"]) as sandbox:
        states = {one.preload: one for one in settle_for(sandbox, "import odd").zygotes}
        assert (states["odd",].state, states[()].state) == ("ruled out", "ready")
        assert reason in states["odd",].problem
        for _ in range(2):
            named = sandbox.run("print('it runs')  # odd")
            assert (named.stdout, named.ok, start_of(named)[0]) == ("it runs\n", True, "exec")
            assert reason in start_of(named)[1]
        other = sandbox.run("print('it runs')")
        assert (other.stdout, start_of(other)) == ("it runs\n", ("pool", ""))
        assert [one.state for one in warmth(sandbox).zygotes if one.preload] == ["ruled out"]


def test_a_module_that_does_not_exist_rules_out_its_zygote(audit: Path) -> None:
    with sync.Sandbox(audit=audit, preload=["json", "surely_not_there"]) as sandbox:
        settle_for(sandbox, "import json")
        execution = sandbox.run("import json; print(json.dumps(1))")
        assert (execution.stdout, start_of(execution)[0]) == ("1\n", "exec")
        assert "surely_not_there cannot be preloaded" in start_of(execution)[1]
        assert start_of(sandbox.run("print(1)"))[0] == "pool"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("size", [40, 40_000, 1 << 20])
def test_what_a_module_prints_when_it_is_loaded_ahead_is_not_in_the_output_of_programs(
    audit: Path, tmp_path: Path, stream: str, size: int
) -> None:
    venv = make_venv(tmp_path / "venv", loud=f"import sys\nsys.{stream}.write('x' * {size})")
    with sync.Sandbox(audit=audit, environment=venv, preload=["loud"]) as sandbox:
        settle_for(sandbox, "import loud")
        for _ in range(2):
            execution = sandbox.run("print('own')  # loud")
            assert (execution.stdout, execution.stderr, execution.ok) == ("own\n", "", True)


def test_an_empty_list_of_modules_gives_one_light_zygote(audit: Path) -> None:
    with sync.Sandbox(audit=audit, preload=()) as sandbox:
        assert [one.preload for one in settle(sandbox).zygotes] == [()]
        execution = sandbox.run("import sys; print('numpy' in sys.modules, 'IPython' in sys.modules)  # numpy")
        assert (execution.stdout, start_of(execution)) == ("False False\n", ("pool", ""))


def test_a_module_is_found_loaded_by_programs_that_name_it_and_by_no_other(audit: Path, tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv", kept="import os\npid = os.getpid()")
    sees = "import sys; print('ke' + 'pt' in sys.modules)"
    with sync.Sandbox(audit=audit, environment=venv, preload=["kept"]) as sandbox:
        settle_for(sandbox, "import kept")
        found = [sandbox.run(code) for code in (sees, f"{sees}  # kept")]
        given = sandbox.run(sees, files={"own.py": "import kept"})
        other = sandbox.run(sees, files={"own.txt": "import kept"})
    assert [one.stdout for one in (*found, given, other)] == ["False\n", "True\n", "True\n", "False\n"]
    assert {start_of(one)[0] for one in (*found, given, other)} <= {"pool", "zygote"}


# -- an environment that changes


def runs_until(sandbox: sync.Sandbox, code: str, expected: str) -> list[Execution]:
    """Run ``code`` until it prints what is expected from a warm cell; all runs."""
    runs: list[Execution] = []

    def arrived() -> bool:
        runs.append(sandbox.run(code))
        assert runs[-1].ok, runs[-1].stderr
        return runs[-1].stdout == expected and start_of(runs[-1])[0] != "exec"

    until(arrived, f"it never printed {expected!r}")
    return runs


def test_a_module_that_is_changed_on_the_disk_is_seen_by_later_runs(audit: Path, tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv", mymodule="value = 'before'")
    code = "import mymodule; print(mymodule.value)"
    with sync.Sandbox(audit=audit, environment=venv, preload=["mymodule"]) as sandbox:
        settle_for(sandbox, "import mymodule")
        first = sandbox.run(code)
        assert (first.stdout, start_of(first)[0]) == ("before\n", "pool")
        (old,) = [one for one in zygotes() if one == zygote_of(sandbox, "mymodule")]
        with witness.watching([old]) as watched:
            put(venv, "mymodule", "value = 'after the change'")
            runs = runs_until(sandbox, code, "after the change\n")
            said = [one.stdout for one in runs]
            assert said.index("after the change\n") <= 50, said
            assert "before\n" not in said[said.index("after the change\n") :], "an old cell was used again"
            assert watched.wait(), "the old zygote lives on"


def test_a_module_that_is_added_is_seen_by_later_runs(audit: Path, tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    code = "try:\n    import added; print(added.value)\nexcept ImportError: print('none')"
    with sync.Sandbox(audit=audit, environment=venv, preload=["added"]) as sandbox:
        settle_for(sandbox, "import added")
        first = sandbox.run(code)
        assert (first.stdout, start_of(first)[0]) == ("none\n", "exec")
        put(venv, "added", "value = 'here'")
        runs_until(sandbox, code, "here\n")


def test_warming_up_starts_the_zygote_of_the_modules_that_were_listed(audit: Path, tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv", mymodule="")
    with sync.Sandbox(audit=audit, environment=venv, preload=["mymodule"]) as sandbox:
        assert {one.preload for one in settle(sandbox).zygotes} == {(), ("mymodule",)}
        assert start_of(sandbox.run("import mymodule")) == ("pool", "")


def test_an_environment_where_cells_write_is_not_loaded_ahead(audit: Path, tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "project/venv", mymodule="value = 1")
    with sync.Sandbox(audit=audit, environment=venv, preload=["mymodule"], workspace=tmp_path / "project") as sandbox:
        sandbox.warm_up("python")
        for _ in range(3):
            execution = sandbox.run("import mymodule; print(mymodule.value)")
            start, reason = start_of(execution)
            assert (execution.stdout, start) == ("1\n", "exec")
            assert str(venv) in reason
            assert "lies where cells write" in reason
        assert (zygotes(), warmth(sandbox).zygotes) == ([], ())


# -- what a zygote is


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sync.Sandbox]:
    os.environ["CASEMATE_TEST_SECRET"] = "of the host"
    held = os.open(str(tmp_path_factory.mktemp("held")), os.O_RDONLY)
    os.set_inheritable(held, True)
    try:
        with sync.Sandbox(audit=tmp_path_factory.mktemp("audit") / "audit.db") as sandbox:
            settle(sandbox)
            yield sandbox
    finally:
        os.close(held)
        del os.environ["CASEMATE_TEST_SECRET"]


@pytest.mark.full
def test_there_is_a_zygote_for_each_list_of_modules(living: sync.Sandbox) -> None:
    assert len(zygotes()) == len(warmth(living).zygotes) == 2


@pytest.mark.full
def test_a_zygote_has_no_rights(living: sync.Sandbox) -> None:
    for pid in zygotes():
        assert {name: int(field(pid, name), 16) for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")} == {
            "CapEff": 0, "CapPrm": 0, "CapInh": 0, "CapBnd": 0, "CapAmb": 0}  # fmt: skip
        assert field(pid, "NoNewPrivs") == "1"
        assert "0" not in field(pid, "Uid").split()
        assert "0" not in field(pid, "Gid").split()
        assert field(pid, "Groups") in ("", "65534", str(os.getgid()))


@pytest.mark.root_only
def test_a_zygote_has_nothing_of_the_hosts_environment(living: sync.Sandbox) -> None:
    waiting = living.explain("pass").waiting
    assert not isinstance(waiting, str)
    for pid in zygotes():
        lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        env = dict(line.split("=", 1) for line in lines if line)
        assert "PATH" in env
        assert {**env, "PYTHONPATH": ""} == {**waiting.env, "PYTHONPATH": ""}


@pytest.mark.root_only
def test_a_zygote_has_no_descriptor_but_its_own_four(living: sync.Sandbox) -> None:
    def has_its_own(pid: int) -> bool:
        folder = f"/proc/{pid}/fd"
        try:
            found = {fd: os.readlink(f"{folder}/{fd}").partition(":")[0] for fd in os.listdir(folder)}
        except FileNotFoundError:  # while it forks, it has others for a moment
            return False
        return found == {"0": "/memfd", "1": "pipe", "2": "pipe", "3": "socket"}

    for pid in zygotes():
        until(partial(has_its_own, pid), "the zygote has descriptors that are not its own")


@pytest.mark.root_only
def test_a_zygote_has_namespaces_of_its_own_and_an_empty_network(living: sync.Sandbox) -> None:
    for pid in zygotes():
        for kind in ("net", "mnt", "ipc", "uts", "pid"):
            assert os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
        devices = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in devices] == ["lo"]
        assert Path(f"/proc/{pid}/net/route").read_text().splitlines()[1:] == []
        assert Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:] == []


@pytest.mark.root_only
def test_a_zygote_can_write_only_to_memory_of_its_own(living: sync.Sandbox) -> None:
    private = {"/tmp", "/workspace", "/dev/shm", "/run", "/proc"}
    for pid in zygotes():
        lines = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
        writable = {line[4]: line[line.index("-") + 1] for line in lines if "ro" not in line[5].split(",")}
        devices = {place for place in writable if place.startswith("/dev/") and place != "/dev/shm"}
        assert set(writable) - devices <= private, writable
        assert all(writable[place] == "tmpfs" for place in set(writable) & private - {"/proc"}), writable
        for place in devices:
            assert not Path(f"/proc/{pid}/root{place}").is_dir(), place
        assert Path(f"/proc/{pid}/root/tmp").stat().st_dev != Path("/tmp").stat().st_dev


@pytest.mark.root_only
def test_a_zygote_sees_nothing_of_the_hosts_files(living: sync.Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")
    for pid in zygotes():
        assert not Path(f"/proc/{pid}/root{tmp_path}").exists()
        assert not Path(f"/proc/{pid}/root/root/.ssh").exists()


def test_a_cell_of_a_zygote_shares_no_namespace_and_no_process_with_it(living: sync.Sandbox) -> None:
    code = "import os\nprint(sorted(p for p in os.listdir('/proc') if p.isdigit()))\n"
    code += "print([os.readlink(f'/proc/self/ns/{k}') for k in ('net', 'mnt', 'ipc', 'uts', 'pid', 'user')])"
    first, second = (living.run(code) for _ in range(2))
    assert start_of(first)[0] in ("pool", "zygote")
    assert len(first.stdout.splitlines()[0].split()) == len(second.stdout.splitlines()[0].split()) == 2
    theirs = {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in zygotes() for kind in ("net", "mnt", "user", "pid")}
    assert not any(name in first.stdout for name in theirs)


@pytest.mark.parametrize("start", ["exec", "warm"])
def test_an_environment_may_lie_where_a_cell_has_a_folder_of_its_own_behind_a_link(audit: Path, start: str) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # as with the home of a user who is called user
        os.chmod(folder, 0o755)
        made = make_venv(Path(folder) / "venv")
        with starting(start), sync.Sandbox(audit=audit, environment=made) as sandbox:
            execution = sandbox.run("import os, sys; print(sys.prefix, os.path.exists(sys.executable))")
    assert execution.stdout == f"{made} True\n"


def test_no_signal_ends_the_init_of_a_cell_whose_zygote_had_a_thread(audit: Path, tmp_path: Path) -> None:
    """The C library has handlers of its own from the first thread on, and resets them for nobody."""
    module = "import threading\none = threading.Thread(target=lambda: None)\none.start()\none.join()"
    venv = make_venv(tmp_path / "venv", threader=module)
    code = "import os, threader\nfor number in (32, 33): os.kill(1, number)\nprint(os.getppid())"
    with sync.Sandbox(audit=audit, environment=venv, preload=["threader"]) as sandbox:
        settle_for(sandbox, "import threader")
        execution = sandbox.run(code)
    assert (execution.status, execution.stdout, start_of(execution)[0]) == ("ok", "1\n", "pool")
