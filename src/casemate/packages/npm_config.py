"""The operator's registries of npm, as the operator's own npm reports them, and never as anything in a cell says.

npm reports everything but credentials: those are read from the files that it names, by their keys (such as
``//host/:_authToken``). Source: npm's documentation (npmrc: its files, their order, ``${NAME}``; scope; config).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from casemate.errors import InvalidArgument, Unavailable
from casemate.packages.indexes import Index, Indexes, index

_ASKED_WITHIN = 60.0  # seconds that npm has to tell its configuration
_MOST_FILE = 1 << 20
_VARIABLE = re.compile(r"(?<!\\)(\\*)\$\{([^${}?]+)(\?)?\}")
_CREDENTIAL = re.compile(r"(//[^=\s]+/):(_authToken|_auth|username|_password)")


def npm_operators(npm: tuple[str, ...], env: Mapping[str, str]) -> Indexes:
    """What the operator's npm has been told: in its files, and in ``env``, this process's variables. ``npm``: what
    starts it.

    Starts npm, away from any workspace. Raises ``Unavailable`` for what cannot be used here, and says what would help.
    """
    settings = _settings(npm, env)
    kept = _credentials(settings, env)
    named = {"": settings.get("registry")}
    named |= {key.removesuffix(":registry"): url for key, url in settings.items() if key.endswith(":registry")}
    found = tuple(_registry(scope, url, kept) for scope, url in named.items())
    secure = urlsplit(found[0].url).scheme == "https"
    proxy = settings.get("https-proxy") if secure else settings.get("proxy")
    return Indexes(found, settings.get("cafile") or None, proxy or None, netrc=False)


def registry_for(name: str, indexes: tuple[Index, ...]) -> Index:
    """The registry that a name is asked for at: its scope's, else the one for all."""
    scope = name.partition("/")[0]
    return next((one for one in indexes if one.scope and one.scope == scope), indexes[0])


def _registry(scope: str, url: object, kept: Mapping[str, Mapping[str, str]]) -> Index:
    try:
        found = replace(index(url), scope=scope)
    except InvalidArgument:
        raise Unavailable(
            f"npm's {scope + ':' if scope else ''}registry is no https:// address",
            remediation="Look at 'npm config get registry'.",
        ) from None
    nerfed = found.url.partition(":")[2]
    places = [place for place in kept if nerfed.startswith(place)]
    said = kept[max(places, key=len)] if places else {}
    if "_authToken" in said:
        return replace(found, token=said["_authToken"])
    user, password = _basic(said)
    return replace(found, user=user, password=password) if user else found


def _basic(said: Mapping[str, str]) -> tuple[str, str]:
    """User and password: ``_auth`` is both, and ``_password`` is in base64, too."""
    try:
        if "_auth" in said:
            user, _, password = base64.b64decode(said["_auth"]).decode().partition(":")
            return user, password
        return said.get("username", ""), base64.b64decode(said.get("_password", "")).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise Unavailable("npm's credentials of its registry cannot be read: they are no base64") from None


def _settings(npm: tuple[str, ...], env: Mapping[str, str]) -> dict[str, Any]:
    try:
        told = subprocess.run(
            [*npm, "config", "list", "--json"],
            cwd="/",
            env={name: value for name, value in env.items() if not name.startswith("NODE_")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASKED_WITHIN,
            check=False,
        )
        found = json.loads(told.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise Unavailable(
            f"npm did not tell its configuration: {type(error).__name__}", remediation="Look at 'npm config list'."
        ) from None
    if not isinstance(found, dict):
        raise Unavailable("npm did not tell its configuration", remediation="Look at 'npm config list'.")
    return found


def _credentials(settings: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """By ``//host/path/``: what npm's own files and variables say of it; the user's win."""
    kept: dict[str, dict[str, str]] = {}
    for key in ("globalconfig", "userconfig"):
        for name, value in _lines_of(settings.get(key)):
            _keep(kept, name, _expanded(value, env))
    for variable, value in env.items():
        if variable.lower().startswith("npm_config_//"):
            _keep(kept, variable[len("npm_config_") :], value)
    return kept


def _keep(kept: dict[str, dict[str, str]], name: str, value: str) -> None:
    found = _CREDENTIAL.fullmatch(name)
    if found:
        kept.setdefault(found[1], {})[found[2]] = value


def _lines_of(path: object) -> list[tuple[str, str]]:
    try:
        text = Path(str(path)).read_text("utf-8")[:_MOST_FILE] if path else ""
    except (OSError, UnicodeDecodeError):
        return []
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.partition("=")[::2] for line in lines if line and line[0] not in "#;["]
    return [(name.strip(), value.strip().strip("\"'")) for name, value in pairs]


def _expanded(value: str, env: Mapping[str, str]) -> str:
    """``${NAME}`` as npm puts it in: of a variable that is not there, it stays, and ``${NAME?}`` is nothing."""

    def one(found: re.Match[str]) -> str:
        if len(found[1]) % 2:
            return found[0]
        return env.get(found[2], "" if found[3] else found[0])

    return _VARIABLE.sub(one, value)
