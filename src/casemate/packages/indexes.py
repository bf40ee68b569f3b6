"""The operator's index of Python packages and registry of npm, as the operator's own pip and npm report them, and never
as anything in a cell says.

Sources: pip's documentation (Configuration: its files, their order, its variables); npm's (npmrc: its files, their
order, ``${NAME}``; scope; config). npm reports everything but credentials: those are read from the files that it names,
by their keys (such as ``//host/:_authToken``).
"""

from __future__ import annotations

import ast
import base64
import binascii
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from casemate.errors import InvalidArgument, Unavailable
from casemate.packages.local import address_of, folder_of
from casemate.visible import is_plain

PYPI = "https://pypi.org/simple/"
_ASKED_WITHIN = 60.0  # seconds that pip and npm have to tell their configuration
_MOST_INDEXES = 16
_ORDER = ("global", "install", ":env:")  # later ones win


@dataclass(frozen=True, slots=True)
class Index:
    """``url`` ends in a slash and has no credentials in it; ``user`` and ``password``, or ``token``, are for its own
    host; ``scope``: the one of npm whose names alone are asked for there, such as ``@acme``. ``folder``: of the
    operator's own, in place of a host; ``is_flat``: its files lie beside each other, and not in a folder for each
    project."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    scope: str = ""
    folder: str = ""
    is_flat: bool = False


@dataclass(frozen=True, slots=True)
class Indexes:
    """Where packages come from: the first index that knows a name is the only one that is asked for it.

    ``cert``: a file of authorities, None for the usual; ``proxy``: None for what the environment says; ``netrc``:
    whether the operator's ~/.netrc counts.
    """

    indexes: tuple[Index, ...]
    cert: str | None = None
    proxy: str | None = field(default=None, repr=False)
    netrc: bool = True


def check_indexes(urls: Sequence[str]) -> tuple[Index, ...]:
    """Indexes that the application has named, in their order. Raises ``InvalidArgument``."""
    if isinstance(urls, str) or len(urls) > _MOST_INDEXES:
        raise InvalidArgument("package_indexes", f"give a list of at most {_MOST_INDEXES} addresses")
    return tuple(index(url) for url in urls)


def index(url: object) -> Index:
    """One index. Raises ``InvalidArgument``, which does not show its credentials."""
    try:
        parts = urlsplit(url) if isinstance(url, str) and is_plain(url) else None
        host, port = (parts.hostname, parts.port) if parts else (None, None)
    except ValueError:
        parts = host = port = None
    if parts is None or parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise InvalidArgument(
            "package_indexes",
            "an index is none",
            remediation="Give its https:// address, such as https://pypi.org/simple/.",
        )
    authority = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    path = parts.path if parts.path.endswith("/") else f"{parts.path}/"
    plain = urlunsplit((parts.scheme, authority, path, "", ""))
    return Index(plain, unquote(parts.username or ""), unquote(parts.password or ""))


def read_pip_indexes(env: Mapping[str, str]) -> Indexes:
    """What the operator's pip has been told: in its files, and in ``env``, this process's variables. Where there are
    any of these pip is started, away from any workspace.

    Folders of find-links come first, then extra-index-url in its order, then index-url: pip looks in all of them for
    the newest version, so that whoever may publish in one could take over a name of another, and here the first that
    knows a name is the only one for it, as uv has it. Raises ``Unavailable`` for what cannot be used here, and says
    what would help."""
    settings = _settings(env) if _has_settings(env) else {}
    found = [_place(text, is_flat=True) for text in settings.get("find-links", "").split()]
    if settings.get("no-index", "").strip().lower() not in ("1", "true", "yes", "on", "t", "y"):
        found += [_place(text) for text in settings.get("extra-index-url", "").split()]
        own = _place(settings.get("index-url") or PYPI)
        if own is None:
            raise Unavailable(
                "pip's index-url is no https:// address and no folder",
                remediation="Correct it, or give package_indexes.",
            )
        found.append(own)
    places = tuple(one for one in found if one is not None)
    if not places:
        raise Unavailable("pip is configured to look nowhere", remediation="Look at 'pip config list'.")
    return Indexes(places, settings.get("cert") or None, settings.get("proxy") or None)


def _place(text: str, *, is_flat: bool = False) -> Index | None:
    """An index, or a folder of packages; None for what is none that can be used here, such as a folder that is not
    there: of several places each is judged by itself."""
    if folder := folder_of(text):
        return Index(address_of(folder), folder=folder, is_flat=is_flat)
    try:
        return None if is_flat else index(text)
    except InvalidArgument:
        return None


def files_of_pip(env: Mapping[str, str]) -> list[str]:
    """Where pip looks for its configuration besides what ``PIP_CONFIG_FILE`` names (pip's documentation, "Configuration
    Files"; XDG Base Directory Specification)."""
    home = env.get("HOME") or os.path.expanduser("~")
    shared = [f"{folder}/pip" for folder in (env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)]
    own = [f"{home}/.pip", f"{env.get('XDG_CONFIG_HOME') or f'{home}/.config'}/pip"]
    return [f"{folder}/pip.conf" for folder in (*shared, "/etc", sys.prefix, *own)]


def _has_settings(env: Mapping[str, str]) -> bool:
    return any(name.startswith("PIP_") for name in env) or any(map(os.path.lexists, files_of_pip(env)))


def _settings(env: Mapping[str, str]) -> dict[str, str]:
    """pip's settings for ``install``, by their long names."""
    try:
        told = subprocess.run(
            [sys.executable, "-P", "-m", "pip", "--no-input", "--disable-pip-version-check", "config", "list"],
            cwd="/",
            env={name: value for name, value in env.items() if not name.startswith("PYTHON")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASKED_WITHIN,
            check=False,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"pip did not tell its configuration: {error}", remediation="Give package_indexes.") from None
    if told.returncode:
        raise Unavailable("there is no pip to tell where packages come from", remediation="Give package_indexes.")
    return settings_in(told.stdout)


def settings_in(listing: str) -> dict[str, str]:
    """What ``pip config list`` says about ``install``; of a setting in several sections, the one that wins."""
    found: dict[str, dict[str, str]] = {}
    for line in listing.splitlines():
        key, is_setting, value = line.partition("=")
        section, _, name = key.partition(".")
        if is_setting and section in _ORDER:
            try:
                text = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                continue
            found.setdefault(section, {})[name] = str(text)
    return {name: value for section in _ORDER for name, value in found.get(section, {}).items()}


_MOST_FILE = 1 << 20
_VARIABLE = re.compile(r"(?<!\\)(\\*)\$\{([^${}?]+)(\?)?\}")
_CREDENTIAL = re.compile(r"(//[^=\s]+/):(_authToken|_auth|username|_password)")


def read_npm_registries(npm: tuple[str, ...], env: Mapping[str, str]) -> Indexes:
    """What the operator's npm has been told: in its files, and in ``env``, this process's variables. ``npm``: what
    starts it.

    Starts npm, away from any workspace. Raises ``Unavailable`` for what cannot be used here, and says what would help.
    """
    settings = _npm_settings(npm, env)
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


def _npm_settings(npm: tuple[str, ...], env: Mapping[str, str]) -> dict[str, Any]:
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
            _keep(kept, name, _expand(value, env))
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


def _expand(value: str, env: Mapping[str, str]) -> str:
    """``${NAME}`` as npm puts it in: of a variable that is not there, it stays, and ``${NAME?}`` is nothing."""

    def one(found: re.Match[str]) -> str:
        if len(found[1]) % 2:
            return found[0]
        return env.get(found[2], "" if found[3] else found[0])

    return _VARIABLE.sub(one, value)
