"""The docker wall, as far as it is not the native one's host side."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from casemate.errors import Fault, RuntimeMissing, WallUnavailable
from casemate.model.limits import Limits
from casemate.model.plan import GUEST, PROGRAMS, PROXY_ADDRESS, Entry, Launch, Plan, ReadyStart, Symlink
from casemate.walls.docker import addresses, engine, refusal, report
from casemate.walls.docker.bridge import Bridge
from casemate.walls.docker.containers import ContainerTerms, Size
from casemate.walls.native import launch
from casemate.walls.native.wall import NativeCell, NativeWall

if TYPE_CHECKING:
    from casemate.model.isolation import IsolationReport, Proof
    from casemate.walls.native.running import RunningSession
    from casemate.walls.native.selftest import LaunchProgram
    from casemate.walls.wall import SessionSink, Sink, Standard

_IMAGE = "casemate"
_KEPT = 2  # started containers besides those that have become ready cells
_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin", PROGRAMS)
_COST = 40 << 20  # bytes that a container with a ready cell holds
_START = f"{GUEST}/start"  # where Python finds what has it wait for its program; see `contained`


class DockerWall(NativeWall):
    """Cells out of containers, one for each. See ``docs/explanation/walls.md``."""

    lays_out = True
    name = "docker"
    host_address = addresses.to_container(PROXY_ADDRESS)
    _leaves_own_files = False

    def __init__(
        self, launch_probe: LaunchProgram, concurrency: int, containers: tuple[str | None, str | None] = (None, None)
    ) -> None:
        """As of `NativeWall`; ``containers``: their image and runtime, where they are named."""
        super().__init__(launch_probe, concurrency)
        image, runtime = (value or "" for value in containers)
        self._terms = ContainerTerms(image or _IMAGE, runtime)
        self._without = report.GVISOR_WITHOUT if self._terms.is_gvisor else frozenset()
        self._programs: dict[str, str] | None = None  # the interpreter of each language, once the image has told

    def system_entries(self) -> tuple[Entry, ...]:
        return ()  # the image has its own

    def _make_report(self, facts: dict[str, Any], proofs: tuple[Proof, ...], proved_at: float) -> IsolationReport:
        return report.make(facts, proofs, proved_at)

    def start(self, plan: Plan, sink: Sink) -> NativeCell:
        return super().start(self._inside(plan), sink)

    def start_piped(self, plan: Plan, standard: Standard) -> NativeCell:
        return super().start_piped(self._inside(plan), standard)

    def open(self, plan: Plan, sink: SessionSink) -> RunningSession:
        return super().open(self._inside(plan), sink)

    def keep_ready(self, plan: Plan) -> None:
        super().keep_ready(self._inside(plan))

    # -- the engine

    async def _facts(self) -> dict[str, Any]:
        import asyncio

        hello = await super()._facts()
        self._programs = hello["interpreters"]
        return {**hello, **await asyncio.to_thread(self._describe_engine)}

    def _start_supervisor(self) -> Bridge:
        found = engine.find(os.environ)
        terms = refusal.check(found, self._terms)
        size = _size_of(Limits())
        keep = min(_KEPT, self._concurrency)
        return Bridge(found, terms, size, keep, self.host_address)

    def _explain(self, stage: str, number: int, detail: str) -> WallUnavailable:  # noqa: ARG002
        return refusal.explain(detail, self._terms)

    def _describe_engine(self) -> dict[str, Any]:
        found = engine.find(os.environ)
        try:
            version = found.call("GET", "/version")
            image = found.call("GET", f"/images/{self._terms.image}/json")
        except (OSError, engine.EngineError) as error:
            raise Fault(f"the container engine gives no answer: {error}") from None
        return {
            "engine": f"{version.get('Version', '')}", "address": found.address, "image": str(image.get("Id")),
            "runtime": self._terms.runtime,
        }  # fmt: skip

    # -- plans

    def place(self, launch: Launch) -> Launch:
        if self._programs is None:
            return launch
        program = self._programs.get(launch.language, "")
        if not program:
            raise RuntimeMissing(
                launch.language,
                f"the image {self._terms.image} has none",
                remediation="Install it there, or name another image.",
            )
        folders = [*dict.fromkeys((os.path.dirname(program), *_FOLDERS))]
        env = {**launch.env, "PATH": ":".join(folders)}
        links = tuple(entry for entry in launch.entries if isinstance(entry, Symlink) and _is_own(entry))
        return replace(launch, argv=(program, *launch.argv[1:]), env=env, entries=links)

    def _inside(self, plan: Plan) -> Plan:
        """``plan`` as a container has it: its ready cells are not forked from a zygote, but each is one by itself."""
        waiting = plan.waiting
        if not isinstance(waiting, str):
            waiting = _alone(plan, waiting)
        return replace(plan, waiting=waiting)


def _alone(plan: Plan, waiting: ReadyStart) -> ReadyStart | str:
    if plan.limits != waiting.limits:
        return "a container has the limits that it was made with"
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
