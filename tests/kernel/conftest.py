"""A kernel as front ends start it: from its kernel spec, spoken to by Jupyter's own client."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.kernel.notebook import Notebook

import casemate
from casemate.surfaces.cli import command


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Variables with which Jupyter finds the kernels of casemate's, and keeps all else to itself."""
    home = tmp_path_factory.mktemp("jupyter")
    runtime = tempfile.mkdtemp(prefix="casemate-jupyter-")  # a socket's path is short
    variables = {
        "JUPYTER_RUNTIME_DIR": runtime,
        "JUPYTER_CONFIG_DIR": f"{home}/config",
        "JUPYTER_DATA_DIR": f"{home}/data",
        "JUPYTER_PLATFORM_DIRS": "1",
        "IPYTHONDIR": f"{home}/ipython",
        "XDG_STATE_HOME": f"{home}/state",
        "XDG_CACHE_HOME": f"{home}/cache",
        "PYTHONPATH": str(Path(casemate.__file__).parents[1]),
        "CASEMATE_PRELOAD": "",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        for language in ("python", "node", "shell"):
            assert command(["kernel", "install", "--language", language]) == 0
        assert command(["kernel", "install", "--name", "casemate-all", "--display", "all"]) == 0
        yield variables
    shutil.rmtree(runtime, ignore_errors=True)


@pytest.fixture(scope="module")
def notebook(jupyter: Mapping[str, str]) -> Iterator[Notebook]:
    """A notebook of Python, for all tests of a file."""
    with Notebook("casemate-python") as opened:
        yield opened


@pytest.fixture(scope="module")
def trusted(jupyter: Mapping[str, str]) -> Iterator[Notebook]:
    """A notebook that shows all that cells show, widgets too."""
    with Notebook("casemate-all") as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a notebook lies."""
    os.makedirs(tmp_path / "notebooks")
    return tmp_path / "notebooks"
