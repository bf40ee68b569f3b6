"""What casemate is started with is nobody's business but the user's: any folder, and any umask."""

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


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_cells_can_be_made_with_any_umask(tmp_path: Path, umask: int) -> None:
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(Path(casemate.__file__).parents[1])}
    (tmp_path / "casemate").mkdir(mode=0o700)
    code = "import os; open('mine', 'w').close(); print(oct(os.umask(0)), os.listdir('/dev/shm'))"
    script = tmp_path / "show.py"
    script.write_text(code)
    command = [sys.executable, "-P", "-m", "casemate", "run", str(script)]
    ran = subprocess.run(command, umask=umask, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.stdout, ran.returncode) == ("0o22 []\n", 0), ran.stderr
