"""The overhead of a host command, and of a write to the host that a rule allows.

The references are the same command by `subprocess.run`, and `os.replace` of a written file.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from benchmarks.measure import Goal, Series
from casemate import Sandbox

_COMMAND = ["true"]
_MORE = Goal(plus=5e-3)


def main() -> None:
    run = measure.Run("host", __doc__ or "")
    with tempfile.TemporaryDirectory(prefix="casemate-host-") as folder:
        asyncio.run(_measure(run, Path(folder)))
    run.finish()


async def _measure(run: measure.Run, folder: Path) -> None:
    out = {"path": {"path": f"{folder}/**"}, "action": "write", "change": {"any": True}}
    policy = {
        "host": {"folder": str(folder), "roots": [{"path": str(folder), "write": True}]},
        "rules": [{"allow": "host", "command": _COMMAND}, {"allow": "files", "arguments": out}],
    }
    plain, commands, writes, replaced = (list[float]() for _ in range(4))
    async with Sandbox(policy=policy, audit=folder / "audit.db") as sandbox:
        await sandbox.host.exec(_COMMAND)
        for _ in range(run.rounds(100)):
            began = time.perf_counter()
            subprocess.run(_COMMAND, check=True, capture_output=True)  # noqa: ASYNC221 - the reference
            plain.append(time.perf_counter() - began)
            began = time.perf_counter()
            await sandbox.host.exec(_COMMAND)
            commands.append(time.perf_counter() - began)
        for number in range(run.rounds(100)):
            began = time.perf_counter()
            await sandbox.host.write(f"{folder}/notes", f"{number}\n")
            writes.append(time.perf_counter() - began)
            began = time.perf_counter()
            _replace(folder / "plain", f"{number}\n")
            replaced.append(time.perf_counter() - began)
    run.compare("a command", [Series("subprocess.run", tuple(plain)), Series("host.exec", tuple(commands), _MORE)])
    run.compare("a small file", [Series("written and renamed", tuple(replaced)), Series("host.write", tuple(writes))])


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


if __name__ == "__main__":
    main()
