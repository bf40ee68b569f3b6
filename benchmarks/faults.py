"""Ten minutes of SIGKILL for zygotes, supervisors, inits of cells and the host, at random moments.

A host process runs programs in sixteen tasks all the time. This process kills, and starts a new host after killing one.
Every run must end: "ok" with exactly its own output, "killed" (its init was), "failed" by SIGKILL (its own process
was), or with an error that says that the supervisor died. A dead host must leave nothing behind, and runs must succeed
again after each death. Otherwise the exit code is 1.

    python benchmarks/faults.py [--quick] [--seconds 600]
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import looking

_TASKS = 16
_SECONDS, _QUICK = 600.0, 20.0
_PAUSES = (0.05, 1.5)  # seconds between two kills
_GONE_WITHIN = 10.0  # seconds, also under heavy load
_ALIVE_WITHIN = 20.0  # seconds from a death to the next success
_BY_SIGKILL = 128 + signal.SIGKILL
_VICTIMS = ("zygote", "supervisor", "supervisor's parent", "init", "init", "init", "host")
_PROGRAMS = {
    "python": "import time\nprint({n}, flush=True)\ntime.sleep({t})\nprint('end')",
    "shell": "echo {n}\nsleep {t}\necho end",
    "node": "console.log({n}); setTimeout(() => console.log('end'), {t} * 1000)",
}


def main() -> None:
    if "--host" in sys.argv:
        asyncio.run(_host(sys.argv[-1]))
        return
    seconds = float(sys.argv[sys.argv.index("--seconds") + 1]) if "--seconds" in sys.argv else _SECONDS
    seconds = _QUICK if "--quick" in sys.argv else seconds
    with tempfile.TemporaryDirectory(prefix="casemate-faults-") as folder:
        problems = _Trial(folder, seconds).run()
    for problem in problems:
        print("PROBLEM", problem)
    sys.exit(1 if problems else 0)


# -- the host process


async def _host(audit: str) -> None:
    from casemate import CasemateError, Sandbox

    async with Sandbox(audit=audit, concurrency=_TASKS) as sandbox:

        async def worker(number: int) -> None:
            chance = random.Random()
            for turn in range(1 << 30):
                n = turn * _TASKS + number
                language = chance.choice(("python", "python", "python", "shell", "node"))
                code = _PROGRAMS[language].format(n=n, t=chance.choice((0, 0, 0, 0.05, 0.3)))
                try:
                    execution = await sandbox.run(code, language=language, timeout=30)
                    right = execution.stdout == f"{n}\nend\n"
                    how, detail = (
                        str(execution.status),
                        execution.cause.message if execution.cause else execution.stderr,
                    )
                    start, exit_code = execution.isolation.start, execution.exit_code
                except CasemateError as error:
                    how, detail, right, start = f"error {error.kind}", error.message, False, ""
                    exit_code = None
                told = {
                    "how": how,
                    "right": right,
                    "start": start,
                    "detail": detail[:300],
                    "exit_code": exit_code,
                    "at": time.monotonic(),
                }
                os.write(1, (json.dumps(told) + "\n").encode())

        async with asyncio.TaskGroup() as group:
            for number in range(_TASKS):
                group.create_task(worker(number))


# -- the process that kills


class _Trial:
    def __init__(self, folder: str, seconds: float) -> None:
        self._folder = folder
        self._until = time.monotonic() + seconds
        self._counts: collections.Counter[str] = collections.Counter()
        self._kills: collections.Counter[str] = collections.Counter()
        self._problems: list[str] = []
        self._last_success = 0.0
        self._worst = 0.0
        self._rest = b""
        self._chance = random.Random()

    def run(self) -> list[str]:
        groups_before = set(looking.groups())
        host = self._start()
        last_death = 0.0
        while time.monotonic() < self._until and len(self._problems) < 20:
            self._read(host, self._chance.uniform(*_PAUSES))
            if last_death and self._last_success < last_death:
                if time.monotonic() - last_death > _ALIVE_WITHIN:
                    self._problems.append(f"no run has succeeded for {_ALIVE_WITHIN:g} s after a death")
                    break
                continue  # it must recover first
            if last_death:
                self._worst = max(self._worst, self._last_success - last_death)
            victim = self._chance.choice(_VICTIMS)
            if victim == "host":
                self._end_and_look(host, groups_before)
                host = self._start()
                self._kills[victim] += 1
            elif self._kill(host, victim):
                self._kills[victim] += 1
            else:
                continue
            last_death = time.monotonic()
        self._end_and_look(host, groups_before)
        self._tell()
        return self._problems

    def _start(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, __file__, "--host", f"{self._folder}/audit.db"]
        host = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert host.stdout is not None
        os.set_blocking(host.stdout.fileno(), False)
        return host

    def _kill(self, host: subprocess.Popen[bytes], victim: str) -> bool:
        """Kill one of the host's processes of kind ``victim``. False if there was none."""
        processes = looking.below(host.pid)
        supervisors = [one for one in processes if one.is_supervisor]
        chosen = {
            "zygote": [one for one in processes if one.is_zygote],
            "supervisor": [one for one in supervisors if one.parent != host.pid],
            "supervisor's parent": [one for one in supervisors if one.parent == host.pid],
            "init": [one for one in processes if one.is_init],
        }[victim]
        if not chosen:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._chance.choice(chosen).pid, signal.SIGKILL)
        return True

    def _end_and_look(self, host: subprocess.Popen[bytes], groups_before: set[str]) -> None:
        """Kill the host and check that all its descendants end."""
        held = [fd for one in looking.below(host.pid) if (fd := _pidfd(one.pid)) is not None]
        host.kill()
        host.wait()
        self._take(host.stdout)
        deadline = time.monotonic() + _GONE_WITHIN
        living = list(held)
        while living and time.monotonic() < deadline:
            ended = select.select(living, [], [], 0.1)[0]
            living = [fd for fd in living if fd not in ended]
        if living:
            self._problems.append(f"{len(living)} of {len(held)} processes live on after their host")
        for fd in held:
            os.close(fd)
        stale = set(looking.groups()) - groups_before
        self._counts["cgroups left to the next supervisor"] = max(
            self._counts["cgroups left to the next supervisor"], len(stale)
        )

    def _read(self, host: subprocess.Popen[bytes], seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._take(host.stdout)
            time.sleep(0.01)
        if host.poll() is not None:
            self._problems.append(f"the host ended by itself with {host.returncode}")
            self._until = 0

    def _take(self, pipe: IO[bytes] | None) -> None:
        assert pipe is not None
        with contextlib.suppress(BlockingIOError):
            while data := os.read(pipe.fileno(), 1 << 16):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._judge(json.loads(line))
            self._rest = b""  # the host died in the middle of a line

    def _judge(self, told: dict[str, object]) -> None:
        how = str(told["how"])
        self._counts[f"{how} {told['start']}".strip()] += 1
        if how == "ok":
            self._last_success = max(self._last_success, float(str(told["at"])))
            if not told["right"]:
                self._problems.append(f"ok with another output: {told}")
        elif how not in ("killed", "error fault") and not (how == "failed" and told["exit_code"] == _BY_SIGKILL):
            self._problems.append(f"an untrue status: {told}")

    def _tell(self) -> None:
        print("killed:", dict(self._kills))
        print("runs:", dict(self._counts.most_common()))
        print(f"the longest from a death to the next success: {self._worst:.2f} s")


def _pidfd(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None


if __name__ == "__main__":
    main()
