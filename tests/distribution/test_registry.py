"""server.json and the .mcpb bundle: what registries and clients read about casemate."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.distribution.conftest import ROOT
from tests.tools.connections.peers import install

import casemate
from casemate.api.keys import CONFIG, KEYS, VARIABLES

SERVER = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))
BUNDLE = ROOT / "packaging" / "mcpb"
MANIFEST = json.loads((BUNDLE / "manifest.json").read_text(encoding="utf-8"))


def test_the_registrys_entry_keeps_to_its_schema() -> None:
    """The facts of the schema of 2025-12-11: what is required, and how long and of which form it may be."""
    assert SERVER["$schema"] == "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
    assert set(SERVER) <= {
        "$schema", "_meta", "description", "icons", "name", "packages", "remotes", "repository", "title", "version",
        "websiteUrl",
    }  # fmt: skip
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", SERVER["name"])
    assert 1 <= len(SERVER["description"]) <= 100
    assert 1 <= len(SERVER["title"]) <= 100
    (package,) = SERVER["packages"]
    assert set(package) <= {
        "environmentVariables", "fileSha256", "identifier", "packageArguments", "registryBaseUrl", "registryType",
        "runtimeArguments", "runtimeHint", "transport", "version",
    }  # fmt: skip
    assert package["transport"] == {"type": "stdio"}
    for one in package["packageArguments"]:
        assert one["type"] == "positional"
        assert {"value", "valueHint"} & set(one)
    for one in package["environmentVariables"]:
        assert set(one) <= {
            "choices",
            "default",
            "description",
            "format",
            "isRequired",
            "isSecret",
            "name",
            "placeholder",
        }
        assert one["format"] in {"string", "number", "boolean", "filepath"}


def test_all_that_is_published_is_of_this_version_and_name() -> None:
    versions = {SERVER["version"], SERVER["packages"][0]["version"], MANIFEST["version"]}
    assert versions == {casemate.__version__}
    needs = tomllib.loads((BUNDLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    assert needs == [f"casemate=={casemate.__version__}"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"mcp-name: {SERVER['name']}" in readme  # by this the registry knows whose the package is


def test_the_variables_that_are_offered_mean_something() -> None:
    offered = {one["name"]: one for one in SERVER["packages"][0]["environmentVariables"]}
    assert set(offered) <= {*VARIABLES, CONFIG}
    assert offered["CASEMATE_SERVE_TOOLSET"]["choices"] == list(KEYS["serve.toolset"].choices)
    settings = MANIFEST["server"]["mcp_config"]["env"]
    assert set(settings) <= set(VARIABLES)
    assert {f"${{user_config.{name}}}" for name in MANIFEST["user_config"]} == set(settings.values())


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bundle") / "casemate.mcpb"
    subprocess.run([sys.executable, ROOT / "packaging" / "bundle.py", made], check=True)
    return made


def test_a_bundle_has_what_its_manifest_names_and_is_the_same_each_time(bundle: Path) -> None:
    first = bundle.read_bytes()
    subprocess.run([sys.executable, ROOT / "packaging" / "bundle.py", bundle], check=True)
    assert bundle.read_bytes() == first
    with zipfile.ZipFile(bundle) as packed:
        assert {"manifest.json", "pyproject.toml", MANIFEST["server"]["entry_point"]} == set(packed.namelist())


@pytest.mark.full
@pytest.mark.needs("npm")
def test_its_makers_own_program_finds_the_bundle_sound(bundle: Path, tmp_path: Path) -> None:
    mcpb = install().parent / ".bin" / "mcpb"
    subprocess.run([mcpb, "unpack", bundle, tmp_path / "out"], check=True, capture_output=True)
    done = subprocess.run(
        [mcpb, "validate", tmp_path / "out" / "manifest.json"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "passes" in done.stdout) == (0, True)
    broken: dict[str, Any] = {**MANIFEST, "server": {"type": "uvx"}}
    (tmp_path / "manifest.json").write_text(json.dumps(broken))
    assert subprocess.run([mcpb, "validate", tmp_path / "manifest.json"], capture_output=True, check=False).returncode


def test_what_a_bundle_starts_leaves_settings_out_that_nobody_made(tmp_path: Path) -> None:
    """`serve` itself is not started: a module of casemate's place says what it would get."""
    stand_in = tmp_path / "casemate" / "surfaces"
    stand_in.mkdir(parents=True)
    for folder in (stand_in.parent, stand_in):
        (folder / "__init__.py").touch()
    (stand_in / "cli.py").write_text(
        "import json, os, sys\n"
        "def main(): print(json.dumps([sys.argv, sorted(name for name in os.environ if 'CASEMATE' in name)]))\n"
    )
    given = {
        "CASEMATE_WORKSPACE": "",
        "CASEMATE_ALLOWED_DOMAINS": "${user_config.allowed_domains}",
        "CASEMATE_SERVE_TOOLSET": "full",
    }
    done = subprocess.run(
        [sys.executable, BUNDLE / "src" / "server.py"], env={**os.environ, **given, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    argv, variables = json.loads(done.stdout)
    assert (argv, [name for name in variables if name in given]) == (["casemate", "serve"], ["CASEMATE_SERVE_TOOLSET"])
