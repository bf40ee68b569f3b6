"""``egress``: hosts that programs may reach, asked for ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from casemate.api.options import Name
from casemate.execution.egress_request import EgressAnswer
from casemate.model.caller import called_by
from casemate.model.operation import Audience, Between, Most, Principal, operation

if TYPE_CHECKING:
    from casemate.operations.desk import Desk

Port = Annotated[int, Between(1, 65535)]
Reason = Annotated[str, Most(500)]


class Egress:
    """The network of the desk's sandbox."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @operation(audience=Audience.AGENT)
    async def request(
        self, domain: Name, *, port: Port = 443, reason: Reason = "", session: Name | None = None, principal: Principal
    ) -> EgressAnswer:
        """Ask whether programs may connect to a host, wait until somebody decides, and say what was decided.

        ``domain``: the host's name. ``port``: of the connection. ``reason``: shown to whoever decides, as the asker's
        own words. ``session``: the handle or name of the session that alone is to reach it; nothing for all runs and
        sessions.
        """
        of = None if session is None else self._desk.sessions.find(session, principal).session
        with called_by(principal.name):
            return await self._desk.sandbox.egress.request(domain, port=port, reason=reason, session=of)
