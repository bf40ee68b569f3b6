"""The operator's index of Python packages, as the operator's own pip reports it, and never as anything in a cell says.

Source: pip's documentation (Configuration: its files, their order, its variables).
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit, urlunsplit

from casemate.errors import InvalidArgument, Unavailable

PYPI = "https://pypi.org/simple/"
_ASKED_WITHIN = 60.0  # seconds that pip has to tell its configuration
_MOST_INDEXES = 16
_ORDER = ("global", "install", ":env:")  # later ones win


@dataclass(frozen=True, slots=True)
class Index:
    """``url`` ends in a slash and has no credentials in it; ``user`` and ``password``, or ``token``, are for its own
    host; ``scope``: the one of npm whose names alone are asked for there, such as ``@acme``."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    scope: str = ""


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


def given(urls: Sequence[str]) -> tuple[Index, ...]:
    """Indexes that the application has named, in their order. Raises ``InvalidArgument``."""
    if isinstance(urls, str) or len(urls) > _MOST_INDEXES:
        raise InvalidArgument("package_indexes", f"give a list of at most {_MOST_INDEXES} addresses")
    return tuple(index(url) for url in urls)


def index(url: object) -> Index:
    """One index. Raises ``InvalidArgument``, which does not show its credentials."""
    try:
        parts = urlsplit(url) if isinstance(url, str) and url.isprintable() else None
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


def operators(env: Mapping[str, str]) -> Indexes:
    """What the operator's pip has been told: in its files, and in ``env``, this process's variables. Where there are
    any of these pip is started, away from any workspace. Raises ``Unavailable`` for what cannot be used here, and says
    what would help."""
    settings = _settings(env) if _has_been_told(env) else {}
    for name in ("extra-index-url", "find-links"):
        if settings.get(name, "").strip():
            raise Unavailable(
                f"pip's {name} is set: whoever may publish in one of several places could take over a name of another",
                remediation="Give package_indexes, a list in the order in which they are to be asked, or --index on "
                "the command line: the first that knows a name is the only one for it.",
            )
    if settings.get("no-index", "").strip().lower() in ("1", "true", "yes", "on", "t", "y"):
        raise Unavailable("pip's no-index is set: there is no index to install from")
    try:
        found = index(settings.get("index-url") or PYPI)
    except InvalidArgument:
        raise Unavailable(
            "pip's index-url is no https:// address", remediation="Correct it, or give package_indexes."
        ) from None
    return Indexes((found,), settings.get("cert") or None, settings.get("proxy") or None)


def files_of_pip(env: Mapping[str, str]) -> list[str]:
    """Where pip looks for its configuration besides what ``PIP_CONFIG_FILE`` names (pip's documentation, "Configuration
    Files"; XDG Base Directory Specification)."""
    home = env.get("HOME") or os.path.expanduser("~")
    shared = [f"{folder}/pip" for folder in (env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)]
    own = [f"{home}/.pip", f"{env.get('XDG_CONFIG_HOME') or f'{home}/.config'}/pip"]
    return [f"{folder}/pip.conf" for folder in (*shared, "/etc", sys.prefix, *own)]


def _has_been_told(env: Mapping[str, str]) -> bool:
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
