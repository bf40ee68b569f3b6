"""The start of casemate: whole processes, against a bare start of the same interpreter.

Nothing of casemate runs before. The result of its self-test is cached, as after the first use since boot.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from benchmarks.measure import Goal, Thing

# The same as pip's console script.
_SCRIPT = "import re, sys; from casemate.surfaces.cli import main; sys.exit(main())"


def main() -> None:
    run = measure.Run("startup", __doc__ or "")
    with tempfile.TemporaryDirectory(prefix="casemate-startup-") as folder:
        env = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache", "XDG_STATE_HOME": f"{folder}/state"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # use compiled files, as installed code does
        env["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
        hello = Path(folder, "hello.py")
        hello.write_text("print('hello')\n", encoding="utf-8")
        casemate = _command()
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "import casemate": [sys.executable, "-c", "import casemate"],
            "from casemate import Sandbox": [sys.executable, "-c", "from casemate import Sandbox"],
            "casemate --help": [*casemate, "--help"],
            "casemate run hello.py": [*casemate, "run", str(hello)],
            "casemate doctor": [*casemate, "doctor"],
        }
        goals = {"import casemate": Goal(8), "casemate --help": Goal(12), "casemate run hello.py": Goal(12)}
        things = {name: _whole(argv, env) for name, argv in commands.items()}
        for name in [name for name, argv in commands.items() if not _works(name, argv, env)]:
            del things[name]
        run.compare("whole processes", measure.in_turn(things, run.rounds(40), goals))
    run.finish()


def _command() -> list[str]:
    """The console script of this interpreter, or the equivalent command if casemate is not installed."""
    script = shutil.which("casemate", path=str(Path(sys.executable).parent))
    return [script] if script else [sys.executable, "-c", _SCRIPT]


def _whole(argv: list[str], env: dict[str, str]) -> Thing:
    return lambda: measure.start_and_wait(argv, env)


def _works(name: str, argv: list[str], env: dict[str, str]) -> bool:
    """Run a command once, which also fills the cache. If it fails, print that and leave it out."""
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        print(f"left out: {name} ended with {done.returncode}: {''.join(last)}", file=sys.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    main()
