"""Where casemate is started from is nobody's business but the user's: the folder may hold anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import casemate


@pytest.mark.parametrize("below", [".", "deep/down"])
def test_a_folder_that_looks_like_pythons_own_runs_no_code_on_the_host(tmp_path: Path, below: str) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    planted = tmp_path / "lib" / version
    (planted / "lib-dynload").mkdir(parents=True)
    witness = tmp_path / "witness"
    trap = f"import posix; posix.close(posix.open({str(witness)!r}, posix.O_CREAT | posix.O_WRONLY))\n"
    (planted / "os.py").write_text(trap)  # by which the interpreter knows its library
    (planted / "encodings").mkdir()
    (planted / "encodings" / "__init__.py").write_text(trap)
    here = tmp_path / below
    here.mkdir(parents=True, exist_ok=True)
    (here / "hello.py").write_text("print('hello')")
    env = {
        **os.environ,
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYTHONPATH": str(Path(casemate.__file__).parents[1]),
    }
    command = [sys.executable, "-P", "-m", "casemate", "run", "hello.py"]
    ran = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert not witness.exists()
    assert (ran.stdout, ran.returncode) == ("hello\n", 0), ran.stderr
