"""Which Python an environment means, and what a cell must see of it. Interpreters are laid out, never started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from casemate.errors import InvalidArgument, Unavailable
from casemate.languages import interpreters
from casemate.languages.python.runtime import PythonRuntime
from casemate.languages.runtime import merged_env
from casemate.model.plan import Bind, Launch, Symlink

ELF = b"\x7fELF and nothing that runs"


def launch(environment: object) -> Launch:
    return PythonRuntime().launch(environment, "main.py", ("a", "b"))  # type: ignore[arg-type]


def make_prefix(folder: Path, version: str = "3.12") -> Path:
    """A Python as its installer leaves it; nothing in it can be started."""
    for name in ("bin", f"lib/python{version}", f"include/python{version}"):
        (folder / name).mkdir(parents=True)
    program = folder / f"bin/python{version}"
    program.write_bytes(ELF)
    program.chmod(0o755)
    (folder / "bin/python3").symlink_to(program.name)
    (folder / f"lib/python{version}/os.py").write_text("")
    (folder / f"include/python{version}/patchlevel.h").write_text(f'#define PY_VERSION\t"{version}.7"\n')
    return folder


def make_venv(folder: Path, base: Path, version: str = "3.12") -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / f"lib/python{version}/site-packages").mkdir(parents=True)
    (folder / "lib64").symlink_to("lib")
    (folder / "bin/python3").symlink_to(base / "bin/python3")
    (folder / "bin/python").symlink_to("python3")
    (folder / "pyvenv.cfg").write_text(
        f"home = {base}/bin\ninclude-system-site-packages = false\nversion = {version}.7\n"
    )
    (folder / "project-secret").write_text("")
    return folder


def bound(planned: Launch) -> dict[str, str]:
    return {entry.target: entry.source for entry in planned.entries if isinstance(entry, Bind)}


def linked(planned: Launch) -> dict[str, str]:
    return {entry.target: entry.points_to for entry in planned.entries if isinstance(entry, Symlink)}


def seen_in_cell(planned: Launch, path: str) -> bool:
    """Whether ``path`` leads to a file when only the entries (and the system's folders) are there."""
    for _ in range(20):
        followed = next((link for link in linked(planned) if f"{path}/".startswith(f"{link}/")), None)
        if followed is not None:
            there = os.path.normpath(os.path.join(os.path.dirname(followed), linked(planned)[followed]))
            path = there + path[len(followed) :]
            continue
        for target, source in bound(planned).items():
            if path == target or path.startswith(target + "/"):
                real = source + path[len(target) :]
                if os.path.islink(real):
                    path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(real)))
                    break
                return os.path.exists(real)
        else:
            return path.startswith("/usr/") and os.path.exists(path)
    return False


def test_the_default_is_the_python_that_casemate_runs_on() -> None:
    planned = launch(None)
    assert planned.argv == (sys.executable, "-P", "/program/main.py", "a", "b")
    assert planned.version == ".".join(str(part) for part in sys.version_info[:3])
    assert seen_in_cell(planned, sys.executable)
    assert seen_in_cell(planned, os.__file__)
    assert seen_in_cell(planned, pytest.__file__)


def test_the_version_of_that_python_needs_no_header_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's has none without python3-dev."""
    monkeypatch.setattr(interpreters, "_patch_level", lambda *_: "")
    assert launch(os.path.realpath(sys.executable)).version == ".".join(str(part) for part in sys.version_info[:3])


def test_a_python_started_through_a_parent_folder_runs_programs(tmp_path: Path) -> None:
    code = "import sys; from casemate import sync\nwith sync.Sandbox(audit=sys.argv[1]) as s: print(s.run('1').status)"
    command = [os.path.relpath(sys.executable, tmp_path), "-c", code, str(tmp_path / "audit.db")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stderr


def test_the_hook_is_found_and_the_programs_children_get_the_same_python() -> None:
    env = launch(None).env
    assert env["PYTHONPATH"] == "/opt/casemate/python:/opt/casemate/modules"
    assert env["PYTHONDONTWRITEBYTECODE"] == "1"
    assert env.get("PATH", "/usr/bin").split(":")[0] == os.path.dirname(sys.executable)


def test_of_a_virtual_environment_its_packages_are_seen_and_the_project_around_it_is_not(tmp_path: Path) -> None:
    base = make_prefix(tmp_path / "base")
    venv = make_venv(tmp_path / "project", base)
    planned = launch(venv)
    assert planned.argv[0] == f"{venv}/bin/python"
    assert planned.version == "3.12.7"
    for name in ("bin/python", "pyvenv.cfg", "lib/python3.12/site-packages", "lib64/python3.12"):
        assert seen_in_cell(planned, f"{venv}/{name}"), name
    assert seen_in_cell(planned, f"{base}/lib/python3.12/os.py")
    assert not seen_in_cell(planned, f"{venv}/project-secret")


def test_a_virtual_environment_with_a_copied_interpreter_finds_its_standard_library(tmp_path: Path) -> None:
    base = make_prefix(tmp_path / "base")
    venv = make_venv(tmp_path / "venv", base)
    (venv / "bin/python3").unlink()
    shutil.copy(base / "bin/python3.12", venv / "bin/python3")
    planned = launch(venv)
    assert planned.version == "3.12.7"
    assert seen_in_cell(planned, f"{base}/lib/python3.12/os.py")


@pytest.mark.parametrize("spelling", ["bin/python", "bin/python3"])
def test_an_interpreter_of_a_virtual_environment_means_that_environment(tmp_path: Path, spelling: str) -> None:
    venv = make_venv(tmp_path / "venv", make_prefix(tmp_path / "base"))
    planned = launch(str(venv / spelling))
    assert planned.argv[0] == f"{venv}/{spelling}"
    assert seen_in_cell(planned, f"{venv}/lib/python3.12/site-packages")


def test_a_link_to_an_interpreter_leads_to_it_in_the_cell(tmp_path: Path) -> None:
    base = make_prefix(tmp_path / "base")
    (tmp_path / "links").mkdir()
    (tmp_path / "links/second").symlink_to(base / "bin/python3")
    (tmp_path / "links/first").symlink_to("second")
    planned = launch(tmp_path / "links/first")
    assert linked(planned) == {
        f"{tmp_path}/links/first": "second",
        f"{tmp_path}/links/second": f"{base}/bin/python3",
    }
    assert seen_in_cell(planned, f"{tmp_path}/links/first")


def test_a_base_that_is_reached_through_a_linked_folder_is_seen_under_both_names(tmp_path: Path) -> None:
    real = make_prefix(tmp_path / "cpython-3.12.7")
    (tmp_path / "cpython-3.12").symlink_to(real.name)
    planned = launch(make_venv(tmp_path / "venv", tmp_path / "cpython-3.12"))
    assert bound(planned)[f"{tmp_path}/cpython-3.12"] == str(real)
    assert bound(planned)[str(real)] == str(real)
    assert seen_in_cell(planned, f"{tmp_path}/venv/bin/python")


def test_a_base_whose_linked_folder_now_leads_elsewhere_is_seen_where_it_is(tmp_path: Path) -> None:
    link = tmp_path / "cpython-3.12"
    link.symlink_to(make_prefix(tmp_path / "cpython-3.12.7").name)
    venv = make_venv(tmp_path / "venv", link)
    launch(venv)
    link.unlink()
    link.symlink_to(make_prefix(tmp_path / "cpython-3.12.8").name)
    os.utime(tmp_path / "cpython-3.12.8/bin/python3.12", ns=(1, 1))
    assert bound(launch(venv))[str(link)] == f"{tmp_path}/cpython-3.12.8"


def test_the_systems_python_needs_nothing_that_a_cell_has_not() -> None:
    if not os.path.exists("/usr/bin/python3"):
        pytest.skip("no /usr/bin/python3 here: apt-get install python3")
    planned = launch("/usr/bin/python3")
    assert [entry for entry in planned.entries if not entry.target.startswith("/etc/alternatives")] == []
    assert "PATH" not in planned.env


def test_nothing_of_an_environment_is_started(tmp_path: Path) -> None:
    base = make_prefix(tmp_path / "base")
    with pytest.raises(OSError, match="Exec format error"):
        subprocess.run([base / "bin/python3"], check=False)
    assert launch(base).version == "3.12.7"


def test_an_older_python_is_started_without_the_flag_that_it_does_not_know(tmp_path: Path) -> None:
    assert launch(make_prefix(tmp_path / "base", "3.10")).argv[1] == "/program/main.py"


def test_an_environment_that_was_replaced_is_looked_at_again(tmp_path: Path) -> None:
    base = make_prefix(tmp_path / "base", "3.12")
    assert launch(base).version == "3.12.7"
    shutil.rmtree(base)
    with pytest.raises(InvalidArgument):
        launch(base)
    make_prefix(base, "3.13")
    assert launch(base).version == "3.13.7"


def wrong_missing(path: Path) -> Path:
    return path / "nothing"


def wrong_empty_folder(path: Path) -> Path:
    return path


def wrong_shim(path: Path) -> Path:
    (path / "python").write_text("#!/bin/sh\n")
    return path / "python"


def wrong_broken_link(path: Path) -> Path:
    return make_venv(path / "venv", path / "removed")


def wrong_loop(path: Path) -> Path:
    (path / "python").symlink_to("python")
    return path / "python"


def wrong_without_library(path: Path) -> Path:
    base = make_prefix(path / "base")
    shutil.rmtree(base / "lib")
    return base


def wrong_too_old(path: Path) -> Path:
    return make_prefix(path / "base", "3.8")


def wrong_two_versions(path: Path) -> Path:
    base = make_prefix(path / "base")
    (base / "lib/python3.13").mkdir()
    (base / "lib/python3.13/os.py").write_text("")
    (base / "bin/python").write_bytes(ELF)
    (base / "bin/python").chmod(0o755)
    return base


WRONG = {
    wrong_missing: "does not exist",
    wrong_empty_folder: "has no bin/python",
    wrong_shim: "is not a program but a script",
    wrong_broken_link: "which does not exist",
    wrong_loop: "is a link to itself",
    wrong_without_library: "has no Python 3 standard library",
    wrong_too_old: "3.9 is the oldest",
    wrong_two_versions: "may be any of python3.12, python3.13",
}


@pytest.mark.parametrize("make", WRONG)
def test_an_environment_that_cannot_be_used_is_refused_by_name_with_the_reason(tmp_path: Path, make: object) -> None:
    assert callable(make)
    with pytest.raises(InvalidArgument, match=WRONG[make]) as caught:
        launch(make(tmp_path))
    assert caught.value.argument == "environment"


def test_an_environment_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="is not a path"):
        launch(3)


def test_requirements_are_said_to_be_for_a_later_version() -> None:
    with pytest.raises(Unavailable, match="requirements that are not a list") as caught:
        launch(["numpy", "pandas"])
    assert "virtual environment" in caught.value.remediation


@pytest.mark.parametrize("above", ["", ".."])
def test_a_prefix_that_holds_the_home_folder_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    home = make_prefix(tmp_path / "home")
    monkeypatch.setenv("HOME", str(home / "user" if above else home))
    with pytest.raises(InvalidArgument, match="contains a home folder"):
        launch(home)


def test_a_prefix_in_the_home_folder_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    base = make_prefix(tmp_path / ".pyenv/versions/3.12.7")
    assert bound(launch(base)) == {str(base): str(base)}


@pytest.mark.root_only
@pytest.mark.parametrize("name", ["", "lib/python3.12", "lib/python3.12/os.py", "bin/python3.12"])
def test_files_that_only_root_can_read_are_named(tmp_path: Path, name: str) -> None:
    base = make_prefix(tmp_path / "base")
    (base / name).chmod(0o700)
    with pytest.raises(InvalidArgument, match="cannot be read by the ordinary user") as caught:
        launch(base)
    assert f"chmod -R a+rX {base / name}" in caught.value.remediation


def test_a_search_path_of_the_callers_comes_after_the_hooks_own() -> None:
    planned = launch(None)
    merged = merged_env({"A": "base", "B": "base"}, planned, {"B": "asked", "PYTHONPATH": "/mine"})
    assert merged["PYTHONPATH"] == "/opt/casemate/python:/opt/casemate/modules:/mine"
    assert (merged["A"], merged["B"]) == ("base", "asked")


def test_the_python_is_listed_with_version_and_path() -> None:
    found = PythonRuntime().find_installation()
    assert (found.language, found.path, found.missing) == ("python", sys.executable, "")
    assert found.version.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
