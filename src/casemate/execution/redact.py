"""The redaction of a run's secrets, made where it has any: a run without them has none, and loses no time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from casemate.model.execution import Crossing
    from casemate.model.plan import Secrets
    from casemate.redaction.redaction import Redaction


def redaction_of(secrets: Secrets) -> Redaction | None:
    """What takes ``secrets`` out of everything that a run says."""
    if not secrets:
        return None
    from casemate.redaction.redaction import Redaction

    return Redaction(secrets.reveal())


async def prepare(redaction: Redaction | None) -> Redaction | None:
    """``redaction``, ready to be used without holding up the event loop."""
    if redaction is not None:
        await asyncio.to_thread(redaction.prepare)
    return redaction


def redacted_crossings(crossings: Sequence[Crossing], redaction: Redaction | None) -> tuple[Crossing, ...]:
    """The same without secrets: a program may ask for a name that holds one."""
    if redaction is None:
        return tuple(crossings)
    return tuple(replace(one, host=redaction.text(one.host), reason=redaction.text(one.reason)) for one in crossings)
