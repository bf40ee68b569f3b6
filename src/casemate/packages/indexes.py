"""The operator's Python index and npm registry, as reported by the operator's own pip and npm, never by a cell.

Sources: pip's documentation (Configuration: its files, their order, its variables); npm's (npmrc: its files, their
order, ``${NAME}``; scope; config). npm reports everything but credentials. Those are read from the files that it names,
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
_ASKED_WITHIN = 60.0  # seconds for pip or npm to report its configuration
_MOST_INDEXES = 16
_ORDER = ("global", "install", ":env:")  # later ones win


@dataclass(frozen=True, slots=True)
class Index:
    """An index. The credentials (``user`` and ``password``, or ``token``) are for its own host only."""

    url: str  # ends in a slash and holds no credentials
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    scope: str = ""  # an npm scope such as ``@acme``, if only its names are looked up here
    folder: str = ""  # a local folder, instead of a host
    is_flat: bool = False  # whether the folder holds all files directly, not in one folder per project


@dataclass(frozen=True, slots=True)
class Indexes:
    """Where packages come from. The first index that knows a name is the only one used for it."""

    indexes: tuple[Index, ...]
    cert: str | None = None  # a file of certificate authorities; None for the default
    proxy: str | None = field(default=None, repr=False)  # None for the environment's
    netrc: bool = True  # whether the operator's ~/.netrc is used


def check_indexes(urls: Sequence[str]) -> tuple[Index, ...]:
    """Parse the indexes that the application names, in order. Raises ``InvalidArgument``."""
    if isinstance(urls, str) or len(urls) > _MOST_INDEXES:
        raise InvalidArgument("package_indexes", f"give a list of at most {_MOST_INDEXES} addresses")
    return tuple(map(index, urls))


def index(url: object) -> Index:
    """Parse one index. Raises ``InvalidArgument``, without its credentials in the message."""
    try:
        parts = urlsplit(url) if isinstance(url, str) and is_plain(url) else None
        host, port = (parts.hostname, parts.port) if parts else (None, None)
    except ValueError:
        parts = host = port = None
    if parts is None or parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise InvalidArgument(
            "package_indexes",
            "an index is not a valid address",
            remediation="Give its https:// address, such as https://pypi.org/simple/.",
        )
    authority = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    path = parts.path if parts.path.endswith("/") else f"{parts.path}/"
    plain = urlunsplit((parts.scheme, authority, path, "", ""))
    return Index(plain, unquote(parts.username or ""), unquote(parts.password or ""))


def read_pip_indexes(env: Mapping[str, str]) -> Indexes:
    """The configuration of the operator's pip: its files, and ``env``, this process's variables. Starts pip, outside
    any workspace, if any of these exist.

    The order is find-links folders, extra-index-url, index-url. pip looks in all of them for the newest version, so
    anyone who may publish in one could take over a name of another. Here, as with uv, the first that knows a name is
    the only one for it. Raises ``Unavailable`` with a remedy for what cannot be used here.
    """
    is_configured = any(name.startswith("PIP_") for name in env) or any(map(os.path.lexists, files_of_pip(env)))
    settings = _settings(env) if is_configured else {}
    found = [_place(text, is_flat=True) for text in settings.get("find-links", "").split()]
    if settings.get("no-index", "").strip().lower() not in ("1", "true", "yes", "on", "t", "y"):
        found += [_place(text) for text in settings.get("extra-index-url", "").split()]
        own = _place(settings.get("index-url") or PYPI)
        if own is None:
            raise Unavailable(
                "pip's index-url is neither an https:// address nor a folder",
                remediation="Correct it, or give package_indexes.",
            )
        found.append(own)
    places = tuple(one for one in found if one is not None)
    if not places:
        raise Unavailable("pip is configured with no index", remediation="Look at 'pip config list'.")
    return Indexes(places, settings.get("cert") or None, settings.get("proxy") or None)


def _place(text: str, *, is_flat: bool = False) -> Index | None:
    """An index, or a folder of packages; None if it cannot be used here, such as a missing folder. Of several places,
    each is judged separately."""
    if folder := folder_of(text):
        return Index(address_of(folder), folder=folder, is_flat=is_flat)
    try:
        return None if is_flat else index(text)
    except InvalidArgument:
        return None


def files_of_pip(env: Mapping[str, str]) -> list[str]:
    """Where pip looks for its configuration, besides ``PIP_CONFIG_FILE`` (pip's documentation, "Configuration Files";
    XDG Base Directory Specification)."""
    home = env.get("HOME") or os.path.expanduser("~")
    shared = [f"{folder}/pip" for folder in (env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)]
    own = [f"{home}/.pip", f"{env.get('XDG_CONFIG_HOME') or f'{home}/.config'}/pip"]
    return [f"{folder}/pip.conf" for folder in (*shared, "/etc", sys.prefix, *own)]


def _settings(env: Mapping[str, str]) -> dict[str, str]:
    """pip's settings for ``install``, by long name."""
    pip = (sys.executable, "-P", "-m", "pip", "--no-input", "--disable-pip-version-check", "config", "list")
    try:
        told = _ask(pip, env, without="PYTHON")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"pip reported no configuration: {error}", remediation="Give package_indexes.") from None
    if told.returncode:
        raise Unavailable("there is no pip to report where packages come from", remediation="Give package_indexes.")
    return settings_in(told.stdout.decode(errors="replace"))


def _ask(program: tuple[str, ...], env: Mapping[str, str], *, without: str) -> subprocess.CompletedProcess[bytes]:
    """Run a program outside any workspace. ``without``: prefix of variables that it does not get."""
    return subprocess.run(
        program,
        cwd="/",
        env={name: value for name, value in env.items() if not name.startswith(without)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_ASKED_WITHIN,
        check=False,
    )


def settings_in(listing: str) -> dict[str, str]:
    """The settings of ``pip config list`` that apply to ``install``. Later sections win."""
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
    """The configuration of the operator's npm: its files, and ``env``, this process's variables. ``npm``: the command
    that starts it.

    Starts npm, outside any workspace. Raises ``Unavailable`` with a remedy for what cannot be used here.
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
    """The registry for a name: that of its scope, or else the default one."""
    scope = name.partition("/")[0]
    return next((one for one in indexes if one.scope and one.scope == scope), indexes[0])


def _registry(scope: str, url: object, kept: Mapping[str, Mapping[str, str]]) -> Index:
    try:
        found = replace(index(url), scope=scope)
    except InvalidArgument:
        raise Unavailable(
            f"npm's {scope + ':' if scope else ''}registry is not an https:// address",
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
    """User and password. ``_auth`` holds both; ``_password`` is base64, too."""
    try:
        if "_auth" in said:
            user, _, password = base64.b64decode(said["_auth"]).decode().partition(":")
            return user, password
        return said.get("username", ""), base64.b64decode(said.get("_password", "")).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise Unavailable("npm's credentials for its registry cannot be read: they are not base64") from None


def _npm_settings(npm: tuple[str, ...], env: Mapping[str, str]) -> dict[str, Any]:
    try:
        found = json.loads(_ask((*npm, "config", "list", "--json"), env, without="NODE_").stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise Unavailable(
            f"npm reported no configuration: {type(error).__name__}", remediation="Look at 'npm config list'."
        ) from None
    if not isinstance(found, dict):
        raise Unavailable("npm reported no configuration", remediation="Look at 'npm config list'.")
    return found


def _credentials(settings: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Credentials by ``//host/path/``, from npm's files and variables. Later sources win: user file, then variables."""
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
    """Expand ``${NAME}`` as npm does. An unset variable stays as it is; ``${NAME?}`` becomes empty."""

    def one(found: re.Match[str]) -> str:
        if len(found[1]) % 2:
            return found[0]
        return env.get(found[2], "" if found[3] else found[0])

    return _VARIABLE.sub(one, value)
