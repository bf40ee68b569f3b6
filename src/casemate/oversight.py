"""What can be asked about a sandbox itself, and set for it: the facade's other half, beside running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from casemate.model.operation import Audience, operation

if TYPE_CHECKING:
    from casemate.model.validation import Validation
    from casemate.rooms import Rooms


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
