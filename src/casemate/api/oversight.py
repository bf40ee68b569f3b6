"""What can be asked about a sandbox itself, and set for it: the facade's other half, beside running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from casemate.model.operation import Audience, operation

if TYPE_CHECKING:
    from casemate.api.wiring import Rooms
    from casemate.artifacts.kept import Artifacts
    from casemate.audit.reading import Audit
    from casemate.execution.egress_request import Egress
    from casemate.model.limits import Limits
    from casemate.model.overview import Inspection, RuntimeInfo, Stats
    from casemate.model.validation import Validation
    from casemate.sessions.session import Session


class Oversight:
    """Of a :class:`casemate.Sandbox`."""

    _rooms: Rooms

    @operation(audience=Audience.AGENT)
    async def validate(
        self, code: str | bytes, language: str = "python", fix: bool = False, *, session: bool = False
    ) -> Validation:
        """Whether ``code`` is a program, and what in it is doubtful; it is parsed in a cell and never run.

        ``code``: the program. ``language``: ``"python"``, ``"node"`` or ``"shell"``. ``fix``: also give the program
        with the fixes in it. ``session``: it is a step of a session, so that top-level await is right, and in Python
        %magics and !commands.

        Whatever cannot be read within 512 MiB and 10 s is rejected, which says so. Raises ``InvalidArgument``,
        ``RuntimeMissing``, ``WallUnavailable``, ``RecordUnavailable``, ``SandboxClosed`` or ``Fault``.
        """
        from casemate.execution.validate import validate

        self._rooms.check_open()
        async with self._rooms.slot():
            self._rooms.check_open()
            return await validate(
                code, language, self._rooms.house, self._rooms.namespace, fix=fix is True, session=session is True
            )

    @operation(audience=Audience.AGENT)
    async def runtimes(self) -> list[RuntimeInfo]:
        """The languages that programs may be in, with what this machine has for each, and the wall that is in force.

        Interpreters are started to find that out once at most, and again when they are replaced. Raises
        ``SandboxClosed`` and ``Fault``; what is missing is told.
        """
        from casemate.execution.overview import runtimes

        self._rooms.check_open()
        return await runtimes(self._rooms.house)

    @operation(audience=Audience.AGENT)
    async def stats(self) -> Stats:
        """What goes on now: executions that run and wait, cells and what they use, sessions, approvals, and totals
        since the sandbox was made. Nothing is started for that. Raises ``SandboxClosed``."""
        from casemate.execution.overview import stats

        self._rooms.check_open()
        return await stats(self._rooms.wall, await self._rooms.load())

    async def inspect(self, session: str | Session) -> Inspection:
        """What a session is and has, without its secrets' values.

        ``session``: one that is open, or its id or name. Its interpreter is asked for the names of variables where it
        has nothing else to do. Raises ``InvalidArgument`` where there is none, and ``SandboxClosed``.
        """
        from casemate.sessions.inspection import inspect

        self._rooms.check_open()
        found = await self._rooms.sessions.get(session if isinstance(session, str) else session.id)
        return await inspect(found, await self._rooms.packages_of(found))

    async def set_limits(
        self,
        *,
        memory: str | int | None = None,
        cpus: float | None = None,
        cpu_time: float | None = None,
        processes: int | None = None,
        wall: float | None = None,
        output: str | int | None = None,
        full_output: str | int | None = None,
        disk: str | int | None = None,
        inodes: int | None = None,
        open_files: int | None = None,
    ) -> Limits:
        """Change the limits of later runs and sessions, and give those that are in force now; None leaves one as it is.

        ``memory``, ``output``, ``full_output``, ``disk``: bytes, or text such as "512MiB". ``cpus``: cores.
        ``cpu_time``, ``wall``: seconds; 0 for no limit of its own on cpu time. ``processes``, ``inodes``,
        ``open_files``: how many. The most is what the sandbox was made with, within its policy: beyond it nothing is
        changed and ``InvalidArgument`` names that. What runs, and sessions that are open, keep the limits that they
        began with.
        """
        given = {
            "memory": memory, "cpus": cpus, "cpu_time": cpu_time, "processes": processes, "wall": wall,
            "output": output, "full_output": full_output, "disk": disk, "inodes": inodes, "open_files": open_files,
        }  # fmt: skip
        self._rooms.check_open()
        return self._rooms.set_limits({name: value for name, value in given.items() if value is not None})

    @property
    def artifacts(self) -> Artifacts:
        """Files that the last runs left, by a run's id: ``await`` ``list(run)`` and ``read(run, name)``."""
        return self._rooms.artifacts

    @property
    def audit(self) -> Audit:
        """The record of its namespace: ``await`` ``tail(limit)`` and ``verify()``."""
        return self._rooms.audit

    @property
    def egress(self) -> Egress:
        """Hosts that programs may reach, asked for ahead: ``await request(domain)``."""
        return self._rooms.egress
