"""Exactly what is shown of a question, and its hash, to which a decision binds. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from casemate.errors import InvalidArgument
from casemate.model.approval import Question
from casemate.policy.canonical import MOST_BYTES, canonical, fingerprint


class Unshowable(ValueError):
    """The question cannot be shown, so it cannot be answered: the message says why."""


@dataclass(frozen=True, slots=True)
class Shown:
    """``text``: the arguments as canonical JSON, of which everybody who is asked gets a copy of his own; ``hash``."""

    text: str
    hash: str

    @property
    def arguments(self) -> dict[str, Any]:
        """A fresh copy."""
        copy: dict[str, Any] = json.loads(self.text)
        return copy


def shown(question: Question) -> Shown:
    """What is shown of ``question``. Raises :class:`Unshowable`."""
    if not isinstance(question.arguments, dict):
        raise Unshowable("its arguments are not a mapping")
    try:
        text = canonical(question.arguments)
        digest = fingerprint(question, text)
    except InvalidArgument as error:
        raise Unshowable(str(error)) from None
    if len(text) > MOST_BYTES:
        raise Unshowable(f"its arguments take {len(text):,} bytes; {MOST_BYTES:,} are the most")
    return Shown(text.decode(), digest)
