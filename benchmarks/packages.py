"""Installing a cached wheel in a session, against a bare ``pip install`` of the same wheel in a virtual environment.

    python -m benchmarks.packages [TIMES]

The index is the tests' own, on the loopback interface. Both sides have the wheel in their caches.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from tests.packages.index import Index, wheel

from casemate import Sandbox, allow_all


async def into_sessions(index: Index, folder: Path, times: int) -> list[float]:
    """Seconds of each installation in a running session."""
    took = []
    async with Sandbox(audit=folder / "audit.db", approve=allow_all, package_indexes=[index.url]) as sandbox:
        for number in range(times + 1):
            async with sandbox.session() as session:
                await session.run("pass")
                began = time.perf_counter()
                installed = await sandbox.packages.install(["alpha"], session=session)
                took.append(time.perf_counter() - began)
                assert installed.ok, installed
                (await session.run("import alpha")).raise_for_status()
            if not number:
                took.clear()  # the first fills the caches
    return took


def with_pip(index: Index, folder: Path, times: int) -> list[float]:
    """Seconds of each ``pip install``, each in a new virtual environment."""
    venv.create(folder / "venv", with_pip=True)
    command = [
        *(str(folder / "venv/bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--index-url", index.url, "--cache-dir", str(folder / "pip"), "--force-reinstall", "alpha"),
    ]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PIP_CONFIG_FILE": os.devnull}
    took = []
    for _ in range(times + 1):
        began = time.perf_counter()
        subprocess.run(command, env=env, check=True)
        took.append(time.perf_counter() - began)
    return took[1:]


def main() -> None:
    """Measure, and print both medians and their ratio."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    index = Index()
    index.add(wheel("alpha", files={f"alpha_data/m{n}.py": "x = 1\n" for n in range(50)}))
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_CACHE_HOME"] = name
        ours = asyncio.run(into_sessions(index, Path(name), times))
        theirs = with_pip(index, Path(name), times)
    index.close()
    mine, bare = statistics.median(ours), statistics.median(theirs)
    print(f"into a session {mine * 1000:.0f} ms, pip install {bare * 1000:.0f} ms: {mine / bare:.2f}x")


if __name__ == "__main__":
    main()
