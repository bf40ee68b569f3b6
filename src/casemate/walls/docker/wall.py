"""The docker wall, where it differs from the native wall's host side."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from casemate.errors import RuntimeMissing, WallUnavailable
from casemate.model.limits import Limits
from casemate.model.plan import GUEST, PROGRAMS, Entry, Launch, Plan, ReadyStart, Symlink
from casemate.walls.docker import engine, refusal, report
from casemate.walls.docker.bridge import Bridge
from casemate.walls.docker.containers import NAME_SERVER, ContainerTerms, Size
from casemate.walls.native import launch
from casemate.walls.native.wall import NativeWall

if TYPE_CHECKING:
    from casemate.walls.native.selftest import LaunchProgram

_IMAGE = "casemate"
_KEPT = 2  # started containers without a cell
_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin", PROGRAMS)
_COST = 40 << 20  # bytes that a container with a ready cell holds
_START = f"{GUEST}/start"  # holds the Python code that waits for the program; see `contained`


class DockerWall(NativeWall):
    """Isolates each cell in its own container. See ``docs/explanation/walls.md``."""

    lays_out = True
    name = "docker"
    host_address = NAME_SERVER
    _leaves_own_files = False
    _make_report = staticmethod(report.make)

    def __init__(
        self, launch_probe: LaunchProgram, concurrency: int, containers: tuple[str | None, str | None] = (None, None)
    ) -> None:
        """``containers``: image and runtime, or None for the default."""
        super().__init__(launch_probe, concurrency)
        image, runtime = (value or "" for value in containers)
        self._terms = ContainerTerms(image or _IMAGE, runtime)
        self._address = ""  # the engine's
        self._without = report.GVISOR_WITHOUT if self._terms.is_gvisor else frozenset()
        self._programs: dict[str, str] | None = None  # the interpreter of each language in the image, once known

    def system_entries(self) -> tuple[Entry, ...]:
        return ()  # the image has its own

    # -- the engine

    async def _facts(self) -> dict[str, Any]:
        hello = await super()._facts()
        self._programs = hello["interpreters"]
        terms = self._terms
        known = {"address": self._address, "engine": terms.engine_version, "runtime": terms.runtime}
        return {**hello, **known, "image": terms.image_id}

    def _start_supervisor(self) -> Bridge:
        found = engine.find(os.environ)
        self._terms, self._address = refusal.check(found, self._terms), found.address
        keep = min(_KEPT, self._concurrency)
        return Bridge(found, self._terms, _size_of(Limits()), keep)

    def _explain(self, stage: str, number: int, detail: str) -> WallUnavailable:  # noqa: ARG002
        return refusal.explain(detail, self._terms)

    # -- plans

    def place(self, launch: Launch) -> Launch:
        if self._programs is None:
            return launch
        program = self._programs.get(launch.language, "")
        if not program:
            raise RuntimeMissing(
                launch.language,
                f"the image {self._terms.image} does not have it",
                remediation="Install it in the image, or choose another image.",
            )
        folders = [*dict.fromkeys((os.path.dirname(program), *_FOLDERS))]
        env = {**launch.env, "PATH": ":".join(folders)}
        links = tuple(entry for entry in launch.entries if isinstance(entry, Symlink) and _is_own(entry))
        return replace(launch, argv=(program, *launch.argv[1:]), env=env, entries=links)

    def _waiting_for(self, plan: Plan) -> ReadyStart | str:
        """Ready cells here wait on their own; they are not forked from a zygote."""
        waiting = plan.waiting
        return waiting if isinstance(waiting, str) else _alone(plan, waiting)


def _alone(plan: Plan, waiting: ReadyStart) -> ReadyStart | str:
    if plan.limits != waiting.limits:
        return "a container's limits are fixed when it is made"
    if waiting.preload is None:
        return replace(waiting, cost=_COST)
    program, *rest = waiting.argv
    argv = (program, "-X", f"casemate={','.join(waiting.preload)}", *rest)
    env = {**waiting.env, "PYTHONPATH": _START}
    return replace(waiting, argv=argv, env=env, preload=None, fuller=(), cost=_COST)


def _size_of(limits: Limits) -> Size:
    counted = {name: getattr(limits, name) for name in ("memory", "disk", "inodes", "cpus")}
    return Size.of({"limits": counted, "rlimits": launch.rlimits(limits, 0)})


def _is_own(entry: Symlink) -> bool:
    return entry.target.startswith(("/program/", "/tmp/", "/home/user/"))
