"""Runs a program as plain ``python main.py`` does, and once more with the guest's hook, to compare the two."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

GUEST = Path(__file__).resolve().parents[3] / "src" / "casemate" / "guest"
HOOK = GUEST / "python"
SECONDS = 60
BASE_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "MPLBACKEND": "agg"}
OLDEST = (3, 9)
# What a warm interpreter has loaded.
PRELOADED = ["random", "uuid", "tempfile", "logging", "platform", "threading", "ssl", "multiprocessing.synchronize"]


@cache
def pythons() -> list[str]:
    """This interpreter, and one of every other version that this machine has."""
    others = [Path("/usr/bin/python3"), *sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"))]
    found = {sys.version_info[:2]: sys.executable}
    for python in others:
        if os.access(python, os.X_OK):
            version = subprocess.check_output([python, "-c", "import sys; print(*sys.version_info[:2])"], text=True)
            major, minor = (int(part) for part in version.split())
            if (major, minor) >= OLDEST:
                found.setdefault((major, minor), str(python))
    return list(found.values())


@dataclass(frozen=True)
class Outcome:
    """What a program did; ``frames``: what it sent to descriptor 3. Its paths are shown as ``MAIN`` and ``WORK``."""

    exit: int
    stdout: str
    stderr: str
    frames: list[dict[str, Any]]

    @property
    def visible(self) -> tuple[int, str, str]:
        """All that a user sees of a plain program."""
        return self.exit, self.stdout, self.stderr

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [frame for frame in self.frames if frame["type"] == kind]


@dataclass(frozen=True)
class Stage:
    """A folder with the program and a working directory, as in a cell: ``program/main.py`` and ``workspace/``."""

    folder: Path

    def put(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def run(
        self, command: list[str], env: Mapping[str, str], program: Path, stdin: str = "", order: bytes | None = None
    ) -> Outcome:
        """Start ``command`` in the working directory with a pipe as descriptor 3, and nothing else that is open.

        With an ``order`` there is also descriptor 6, from which it can be read.
        """
        workspace = self.folder / "workspace"
        workspace.mkdir(parents=True, exist_ok=True)
        read, write = os.pipe()
        high = fcntl.fcntl(write, fcntl.F_DUPFD, 10)
        os.close(write)
        received: list[bytes] = []
        reader = threading.Thread(target=lambda: received.append(_all_of(read)))
        ordered = _pipe_of(order) if order is not None else None
        more = "" if ordered is None else f"6<&{ordered} {ordered}<&-"
        wrapped = ["bash", "-c", f'exec "$@" 3>&{high} {high}>&- {more}', "-", *command]
        with subprocess.Popen(
            wrapped,
            env={**BASE_ENV, "HOME": str(self.folder), **env},
            cwd=workspace,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[descriptor for descriptor in (high, ordered) if descriptor is not None],
        ) as process:
            os.close(high)
            if ordered is not None:
                os.close(ordered)
            reader.start()
            try:
                stdout, stderr = process.communicate(stdin.encode(), timeout=SECONDS)
            finally:
                process.kill()
        reader.join(SECONDS)
        assert received, "something still holds descriptor 3"

        def hide(text: bytes) -> str:
            shown = text.decode(errors="backslashreplace").replace(str(program), "MAIN").replace(str(workspace), "WORK")
            return re.sub(r"\b0x[0-9a-f]{6,}\b|(?<=\(node:)\d+", "NUMBER", shown)

        frames = [json.loads(hide(frame)) for frame in frames_in(received[0])]
        return Outcome(process.returncode, hide(stdout), hide(stderr), frames)


def frames_in(sent: bytes) -> Iterator[bytes]:
    """The frames of ``sent``, which must be whole."""
    while sent:
        size = int.from_bytes(sent[:4], "big")
        assert len(sent) >= 4 + size, "a frame was cut"
        yield sent[4 : 4 + size]
        sent = sent[4 + size :]


def plain(
    folder: Path,
    python: str,
    program: str | bytes,
    *arguments: str,
    stdin: str = "",
    files: Mapping[str, str] | None = None,
) -> Outcome:
    """As a user runs it: the program lies in the working directory."""
    stage = Stage(folder / "plain")
    path = stage.put("workspace/main.py", program)
    for name, content in (files or {}).items():
        stage.put(f"workspace/{name}.py", content)
    env = {"PYTHONDONTWRITEBYTECODE": "1"}
    return stage.run([python, str(path), *arguments], env, path, stdin)


def guest(
    folder: Path,
    python: str,
    program: str | bytes,
    *arguments: str,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> Outcome:
    """As in a cell: the program lies elsewhere and the hook is there."""
    stage = Stage(folder / "guest")
    path = stage.put("program/main.py", program)
    for name, content in (files or {}).items():
        stage.put(f"workspace/{name}.py", content)
    old = subprocess.call([python, "-c", "import sys; sys.exit(sys.version_info >= (3, 11))"]) == 0
    whole = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(HOOK), **(env or {})}
    return stage.run([python, *([] if old else ["-P"]), str(path), *arguments], whole, path, stdin)


_WARM = """
import os, sys
sys.path.remove({here!r})
package = sys.modules["_casemate"] = type(sys)("_casemate")
package.__path__ = [{hook!r}]
from _casemate import channel, displays, process
for name in {preload!r}:
    __import__(name)
sys.path_importer_cache.pop({here!r}, None)
with open({hook!r} + "/sitecustomize.py") as file:
    code = compile(file.read(), file.name, "exec")
{before}
process.take_order(process.read_order(6))
exec(code, {{"__name__": "sitecustomize", "__file__": code.co_filename}})
"""


def warm(
    folder: Path,
    python: str,
    program: str | bytes,
    *arguments: str,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    preload: Iterable[str] = (),
    before: str = "",
    order: bytes | None = None,
) -> Outcome:
    """As from a warm interpreter: modules are loaded (``preload``), code runs ``before``, and the order comes then."""
    stage = Stage(folder / "guest")
    path = stage.put("program/main.py", program)
    for name, content in (files or {}).items():
        stage.put(f"workspace/{name}.py", content)
    here = str(stage.folder / "start")
    stage.put("start/sitecustomize.py", _WARM.format(here=here, hook=str(HOOK), preload=list(preload), before=before))
    wanted = {**BASE_ENV, "HOME": str(stage.folder), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    whole = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": here, "ONLY_BEFORE": "1"}
    sent = framed({"env": wanted, "arguments": list(arguments)}) if order is None else order
    return stage.run([python, "-P", str(path)], whole, path, stdin, order=sent)


def framed(order: object) -> bytes:
    """The order as it is sent to a warm interpreter."""
    body = json.dumps(order).encode()
    return len(body).to_bytes(4, "big") + body


def _pipe_of(data: bytes) -> int:
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    high = fcntl.fcntl(read, fcntl.F_DUPFD, 10)
    os.close(read)
    return high


def _all_of(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()
