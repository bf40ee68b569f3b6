"""What connections need from their sandbox: sources of values, and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from casemate.tools.connections.answers import ServerTools


class SecretStore(Protocol):
    """The vault of one namespace. It is called from threads and may block. It raises only ``CasemateError``."""

    def get(self, name: str) -> str | None:
        """The value, or None if there is none."""

    def set(self, name: str, value: str) -> None:
        """Store the value. Raises ``CasemateError`` if it cannot be stored."""


@dataclass(frozen=True, slots=True)
class SignInPrompt:
    """A request to sign in to ``server``. Show all three fields, only to the person who asked for the server."""

    server: str
    url: str  # http or https
    code: str = ""  # to enter on that page; "" if the page knows it


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The sandbox, as its connections see it."""

    environ: Mapping[str, str]  # the host's variables; a server sees only a few of them
    secrets: SecretStore
    # Gets each list of tools, including a changed one, in the connections' thread. It must neither block nor raise.
    on_tools: Callable[[ServerTools], None] = lambda _tools: None
    # Shows a person where to sign in, in a separate thread. It may raise. None: the user's browser, or the terminal.
    on_sign_in: Callable[[SignInPrompt], None] | None = None
    wall: tuple[str, ...] = ()  # options of ``casemate wrap`` for each server behind a wall
