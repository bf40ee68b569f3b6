"""The overview of a session, with secrets masked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from casemate.errors import CasemateError
from casemate.execution.plan import listed_hosts, network_of
from casemate.model.execution import Usage
from casemate.model.overview import Inspection, VariableInfo
from casemate.model.plan import WORKSPACE

if TYPE_CHECKING:
    from casemate.model.overview import InstalledPackage
    from casemate.sessions.session import Session

MASK = "***REDACTED***"  # replaces a secret's value
_ANSWERS_WITHIN = 5.0  # seconds for the interpreter to list its variables


async def inspect(session: Session, packages: tuple[InstalledPackage, ...]) -> Inspection:
    """Describe a session with its installed ``packages``. ``variables`` is None while it is busy or silent."""
    terms, lifetime, tally = session.steps.terms, session.steps.lifetime, session.tally
    admitted, is_busy = terms.admitted, session.is_busy
    return Inspection(
        id=session.id,
        name=session.name,
        language=session.language,
        is_busy=is_busy,
        age=time.monotonic() - lifetime.began,
        idle=0.0 if is_busy else time.monotonic() - lifetime.last_used,
        idle_timeout=terms.idle_timeout,
        cwd=terms.cwd or WORKSPACE,
        env=_env(session),
        limits=admitted.limits,
        network=network_of(admitted),
        allowed_domains=listed_hosts(admitted),
        packages=packages,
        variables=None if is_busy else await _variables(session),
        runs=tuple(session.runs),
        steps=dict(tally.by_status),
        usage=Usage(tally.cpu_seconds, tally.peak_memory, 0),
    )


def _env(session: Session) -> dict[str, str]:
    request, redaction = session.steps.terms.admitted.request, session.steps.redaction
    visible = {name: redaction.text(value) if redaction else value for name, value in request.env.items()}
    return {**visible, **dict.fromkeys(request.secrets.names, MASK)}


async def _variables(session: Session) -> tuple[VariableInfo, ...] | None:
    if not session.steps.cells.is_alive():
        return None
    with contextlib.suppress(TimeoutError, CasemateError):
        async with asyncio.timeout(_ANSWERS_WITHIN):
            return tuple(VariableInfo(variable.name, variable.type) for variable in await session.variables())
    return None
