"""What is built can be installed and used by itself, and has all that it needs and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.distribution.conftest import ROOT

import casemate

pytestmark = [pytest.mark.full, pytest.mark.needs("hatchling", "uv")]


def test_the_wheel_has_every_file_of_the_package_with_its_mode_and_no_other(built: Path) -> None:
    package = ROOT / "src" / "casemate"
    files = {
        f"casemate/{path.relative_to(package)}": bool(path.stat().st_mode & 0o100)
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        found = {one.filename: bool(one.external_attr >> 16 & 0o100) for one in wheel.infolist()}
    assert {name: mode for name, mode in found.items() if name.startswith("casemate/")} == files
    assert {"casemate/py.typed", "casemate/guest/bin/tool", "casemate/guest/python/process.py"} <= set(found)
    assert {name.split("/")[0] for name in found} == {"casemate", f"casemate-{casemate.__version__}.dist-info"}


def test_the_source_archive_can_be_tested_and_built(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "server.json", "test", "packaging/mcpb/manifest.json"} <= names
    assert {
        "tests/distribution/test_wheel.py",
        "src/casemate/guest/bin/tool",
        "docs/reference/configuration.md",
    } <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".git/", ".venv", ".peers"))]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}


def ran(*argv: str | Path, env: dict[str, str], cwd: Path | None = None) -> str:
    """What a command that ends well says."""
    return subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, check=True).stdout


def test_the_command_of_an_installed_wheel_is_its_own(installed: Path, env: dict[str, str], tmp_path: Path) -> None:
    told = ran(installed / "python", "-P", "-c", "import casemate; print(casemate.__file__)", env=env, cwd=tmp_path)
    assert told.startswith(str(installed.parent))
    assert ran(installed / "casemate", "--version", env=env) == f"casemate {casemate.__version__}\n"


@pytest.mark.parametrize(("name", "text"), [("hello.py", "print(6 * 7)"), ("hello.sh", "echo $((6 * 7))")])
def test_an_installed_wheel_runs_programs(
    installed: Path, env: dict[str, str], tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    assert ran(installed / "casemate", "run", tmp_path / name, env=env) == "42\n"


def test_an_installed_wheel_makes_itself_known_to_clients(installed: Path, env: dict[str, str]) -> None:
    told = ran(installed / "casemate", "install", "cursor", "--print", env=env)
    entry = json.loads(told)["mcpServers"]["casemate"]
    assert entry == {"command": str(installed / "casemate"), "args": ["serve"]}


def test_an_installed_wheel_serves(installed: Path, env: dict[str, str]) -> None:
    assert "--toolset" in ran(installed / "casemate", "serve", "--help", env=env)
