"""Turns a definition into a transport of the MCP SDK. This is the only place that fills in placeholders."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from casemate.errors import InvalidArgument
from casemate.tools.connections.context import Surroundings
from casemate.tools.connections.definition import (
    Expansion,
    Program,
    RemoteServer,
    ServerDefinition,
    ServerWall,
    SignIn,
    check_url,
    names_secret,
)
from casemate.tools.connections.reports import OutputTail
from casemate.tools.connections.stdio import INHERITED, ServerCommand, stdio
from casemate.tools.connections.streams import Streams

if TYPE_CHECKING:
    from casemate.redaction.redaction import Redaction


_APART = "_CASEMATE_OF_THE_SERVER_"  # prefix of variables that only a server behind a wall may read
_SHORTEST = 8  # bytes of a secret that is redacted; the vault's minimum. Shorter ones would match innocent text.


@dataclass(frozen=True, slots=True)
class ResolvedDefinition:
    """A definition with its values, for one connection. Its repr hides them."""

    command: ServerCommand | None = field(default=None, repr=False)
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    sign_in: SignIn | None = field(default=None, repr=False)
    # The vault's secrets; values in headers, in variables whose names suggest a secret, and for the sign-in.
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def redaction(self) -> Redaction | None:
        """The redaction of `secrets` in the server's output; None if no secret is long enough."""
        known = {name: value for name, value in self.secrets.items() if len(value.encode()) >= _SHORTEST}
        if not known:
            return None
        from casemate.redaction.redaction import Redaction

        return Redaction(known)


def resolve_definition(definition: ServerDefinition, surroundings: Surroundings) -> ResolvedDefinition:
    """Fill in the values. May block. Raises ``VaultUnavailable``, or ``InvalidArgument`` for a name without a value."""
    expansion = Expansion(surroundings.secrets.get, surroundings.environ, definition.variables)
    how, name = definition.how, definition.name
    if isinstance(how, Program):
        own = {key: surroundings.environ[key] for key in INHERITED if key in surroundings.environ}
        env = {key: expansion.private(text, f"{name}.env.{key}") for key, text in how.env.items()}
        args = [expansion.public(text, f"{name}.args") for text in how.args]
        if any("\0" in text for text in (*args, *env.values())):
            raise InvalidArgument(name, "a value that was filled in holds a NUL character")
        named = {key for key, text in how.env.items() if names_secret(key, text)}
        given = {f"env.{key}": env[key] for key in named if not os.path.exists(env[key])}  # a path is not a secret
        if how.wall:  # only its definition configures its wall
            own, env = {**own, "CASEMATE_CONFIG": "none"}, {f"{_APART}{key}": text for key, text in env.items()}
        words = [*_wall_words(how.wall, surroundings.wall, bool(env)), how.command, *args]
        # The descriptor is of the folder that an approver saw. The child still has it when it changes to that folder.
        cwd = how.cwd if how.folder is None else f"/proc/self/fd/{how.folder.fd}"
        command = ServerCommand(words, {**own, **env}, cwd)
        return ResolvedDefinition(command=command, secrets={**expansion.secrets, **given})
    assert isinstance(how, RemoteServer)
    headers = {key: expansion.private(text, f"{name}.headers.{key}") for key, text in how.headers.items()}
    for key, value in headers.items():
        if not value.isascii() or not value.isprintable():
            raise InvalidArgument(f"{name}.headers.{key}", "its value holds characters that no header can hold")
    url = check_url(expansion.public(how.url, f"{name}.url"), f"{name}.url")
    sign_in = None if how.sign_in is None else _fill_in_sign_in(how.sign_in, expansion, f"{name}.auth")
    given = {f"headers.{key}": value.rpartition(" ")[2] for key, value in headers.items()}  # without "Bearer"
    given |= {"auth.client_secret": sign_in.client_secret} if sign_in is not None else {}
    return ResolvedDefinition(url=url, headers=headers, sign_in=sign_in, secrets={**expansion.secrets, **given})


def _wall_words(wall: ServerWall | None, bounds: tuple[str, ...], has_variables: bool) -> list[str]:
    """The words before a command that runs behind a wall, within the ``bounds`` of the sandbox.

    If it ``has_variables``, they have a prefix until the command starts: many (OPENSSL_CONF, GCONV_PATH, HOME) would
    change what is loaded outside of the wall. For the same reason Python takes no modules from the working directory
    (-P) and none of its own variables (-E).
    """
    if wall is None:
        return []
    rules = ["--policy", wall.policy] if wall.policy else ["--settings", wall.settings] if wall.settings else []
    shown = [word for path in wall.read for word in ("--read", path)]
    shown += [word for path in wall.copy for word in ("--copy", path)]
    apart = ["--env-prefix", _APART] if has_variables else []
    return [sys.executable, "-E", "-P", "-m", "casemate", "wrap", *bounds, *rules, *shown, *apart, "--"]


def _fill_in_sign_in(sign_in: SignIn, expansion: Expansion, argument: str) -> SignIn:
    return replace(
        sign_in,
        client_id=expansion.private(sign_in.client_id, f"{argument}.client_id"),
        client_secret=expansion.private(sign_in.client_secret, f"{argument}.client_secret"),
        scope=expansion.public(sign_in.scope, f"{argument}.scope"),
        issuer=expansion.public(sign_in.issuer, f"{argument}.issuer"),
        client_metadata_url=expansion.public(sign_in.client_metadata_url, f"{argument}.client_metadata_url"),
    )


@asynccontextmanager
async def transport(
    definition: ServerDefinition,
    resolved: ResolvedDefinition,
    surroundings: Surroundings,
    words: OutputTail,
    waiting: Callable[[], AbstractContextManager[None]],
) -> AsyncGenerator[Streams]:
    """Connect to the server for this block. ``waiting`` makes a block that waits for a person, without deadlines."""
    if resolved.command is not None:
        async with stdio(resolved.command, words) as streams:
            yield streams
        return
    from casemate.tools.connections.remote import remote

    assert isinstance(definition.how, RemoteServer)
    async with contextlib.AsyncExitStack() as stack:
        auth = None
        if resolved.sign_in is not None:
            from casemate.tools.connections.oauth import signed_in

            auth = await stack.enter_async_context(
                signed_in(
                    definition.name, resolved.url, resolved.sign_in, surroundings, waiting, definition.how.addresses
                )
            )
        yield await stack.enter_async_context(remote(definition.how, resolved.url, resolved.headers, auth, words))
