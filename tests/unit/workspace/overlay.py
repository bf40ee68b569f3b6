"""A real overlay: a shell script changes a folder through it, and what the upper one holds is applied.

In a child with a mount namespace of its own, since the test process must not mount anything.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

_UNSHARE = ["unshare", "--mount", "--propagation", "private"]
_PROGRAM = """
import json, os, subprocess, sys
from casemate.files.bounds import TreeBounds
from casemate.workspace.apply import WRITTEN_BACK, apply
from casemate.workspace.upper import ROOTS, USERS

folder, script, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
base = "/mnt"
def mount(*arguments):
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode:
        print(json.dumps({"denied": done.stderr.strip()}))
        sys.exit()
subprocess.run(["sh", "-euc", options["before"]], cwd=folder, check=True, stdout=2)
lower = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
mount("-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs", base)
for name in ("upper", "work", "merged"):
    os.mkdir(f"{base}/{name}", 0o755)
layers = f"lowerdir={folder},upperdir={base}/upper,workdir={base}/work"
mount("-t", "overlay", "-o", f"{layers},{options['mount']}", "overlay", f"{base}/merged")
subprocess.run(["sh", "-euc", script], cwd=f"{base}/merged", check=True, stdout=2)
subprocess.run(["umount", f"{base}/merged"], check=True)
upper = os.open(f"{base}/upper", os.O_RDONLY | os.O_DIRECTORY)
bounds = TreeBounds(**options["bounds"]) if options["bounds"] else WRITTEN_BACK
done = apply(upper, lower, bounds=bounds, marks=USERS if "userxattr" in options["mount"] else ROOTS)
subprocess.run(["sh", "-euc", options["after"]], cwd=folder, check=True, stdout=2)
print(json.dumps([done.written, done.removed, [[s.name, s.reason] for s in done.skipped]]))
"""


@dataclass(frozen=True)
class Outcome:
    """What applying reported."""

    written: list[str]
    removed: list[str]
    skipped: dict[str, str]


def changed(
    folder: Path,
    script: str,
    *,
    mount: str = "userxattr",
    before: str = "",
    after: str = "",
    bounds: dict[str, int] | None = None,
) -> Outcome:
    """Run ``script`` in ``folder`` as seen through an overlay, and apply what it changed.

    ``before`` and ``after`` are run in the folder itself, in the same mount namespace.
    """
    options = json.dumps({"mount": mount, "before": before, "after": after, "bounds": bounds})
    namespaces = _UNSHARE if os.geteuid() == 0 else [*_UNSHARE, "--user", "--map-root-user"]
    done = subprocess.run(
        [*namespaces, sys.executable, "-c", _PROGRAM, str(folder), script, options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    if "unshare failed" in done.stderr:
        pytest.skip(f"needs a mount namespace and overlayfs: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    if isinstance(answer, dict):
        pytest.skip(f"needs overlayfs: {answer['denied']}")
    written, removed, skipped = answer
    return Outcome(written, removed, dict(skipped))
