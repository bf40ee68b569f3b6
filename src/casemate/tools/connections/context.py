"""What connections are handed: where values come from, and who is told. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from casemate.tools.connections.answers import ServerTools


class SecretStore(Protocol):
    """The vault of one namespace, as far as connections need it. Called from threads, and may block."""

    def get(self, name: str) -> str | None:
        """The value, or None where there is none. Raises ``CasemateError`` only."""

    def set(self, name: str, value: str) -> None:
        """Keep the value. Raises ``CasemateError`` where nothing can be kept."""

    def delete(self, name: str) -> bool:
        """Forget it; whether there was one. Raises ``CasemateError``."""


@dataclass(frozen=True, slots=True)
class SignInPrompt:
    """Where a person has to go so that ``server`` can be used. ``url``: http or https; ``code``: to be entered there,
    "" where the page knows it. Show both, and the server's name: only who asked for it may go there."""

    server: str
    url: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """``environ``: the host's variables; ``secrets``: the vault's; ``on_tools``: is told of each list of tools that
    a server gave, in the thread of the connections, and must neither block nor raise; ``on_sign_in``: shows somebody
    where to sign in, in a thread of its own, and may raise where nobody can sign in; ``wall``: options of ``casemate
    wrap`` that hold for each server behind a wall."""

    environ: Mapping[str, str]
    secrets: SecretStore
    on_tools: Callable[[ServerTools], None]
    on_sign_in: Callable[[SignInPrompt], None]
    wall: tuple[str, ...] = ()
