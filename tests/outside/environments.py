"""What other projects wrote to judge programs like casemate, each in an environment of its own in ``.outside``.

It is made once and kept by the hash of its pins: an answer changes with casemate, and not with a release of theirs.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ("jupyter-kernel-test==0.7.0", "jupyter-client==8.10.0", "pytest==9.2.0")
CONFORMANCE = ("@modelcontextprotocol/conformance@0.2.0-alpha.12",)
SITE = (
    "mkdocs==1.6.1", "mkdocs-material==9.8.2", "mkdocstrings==1.0.8", "mkdocstrings-python==2.0.11",
    "griffelib==2.4.1", "ruff==0.17.6",
)  # fmt: skip


def kernels() -> Path:
    """The Python that has Jupyter's tests of kernels, and casemate."""
    return _with_casemate("kernels", "node,data,notebook", KERNELS) / "python"


def mkdocs() -> Path:
    """The program that builds the documentation site."""
    return _with_casemate("site", "site", SITE) / "mkdocs"


def conformance() -> Path:
    """MCP's conformance suite."""

    def make(folder: Path) -> None:
        quiet = ["--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder)]
        command = ["npm", "install", *quiet, *CONFORMANCE]
        subprocess.run(command, check=True, timeout=600, stdin=subprocess.DEVNULL)

    return _environment("conformance", CONFORMANCE, make) / "node_modules" / ".bin" / "conformance"


def _with_casemate(name: str, extras: str, pins: Sequence[str]) -> Path:
    """The programs of an environment that has casemate with these extras, and the pinned packages."""

    def make(folder: Path) -> None:
        uv = [str(Path(sys.executable).with_name("uv")), "--quiet"]
        subprocess.run([*uv, "venv", "--python", sys.executable, str(folder)], check=True)
        install = [*uv, "pip", "install", "--python", str(folder / "bin" / "python")]
        subprocess.run([*install, "--editable", f"{ROOT}[{extras}]", *pins], check=True)

    own = (ROOT / "pyproject.toml").read_text(encoding="utf-8")  # what casemate itself wants there
    return _environment(name, (*pins, own), make) / "bin"


def _environment(name: str, pins: Sequence[str], make: Callable[[Path], None]) -> Path:
    folder = ROOT / ".outside" / f"{name}-{hashlib.sha256(repr(pins).encode()).hexdigest()[:12]}"
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            for old in folder.parent.glob(f"{name}-*"):
                shutil.rmtree(old)
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder
