"""Whether casemate is configured, and in which file. Fast, because every command asks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from casemate.errors import InvalidArgument, Unavailable
from casemate.files import user_folders
from casemate.files.user_folders import user_folder

_NAMES = ("config.yaml", "config.yml", "config.toml", "config.json")
_NO_FILE = "none"
# Variables that are no configuration: secrets and their injections, casemate's tests, the browser's place; and tokens.
LEFT_ALONE = ("CASEMATE_SECRET_", "CASEMATE_INJECT_", "CASEMATE_TESTS_", "CASEMATE_BROWSER")
_TOKENS = ("CASEMATE_TOKEN", "CASEMATE_SERVE_TOKEN")


def named_variables(environ: Mapping[str, str]) -> list[str]:
    """The variables that configure casemate, sorted, known or unknown."""
    own = (name for name in environ if name.startswith("CASEMATE_") and not name.startswith(LEFT_ALONE))
    return sorted(name for name in own if name not in _TOKENS)


def is_configured(environ: Mapping[str, str]) -> bool:
    """Whether there are variables or a file. Raises as :func:`users_file`."""
    return bool(named_variables(environ)) or users_file(environ) is not None


def users_file(environ: Mapping[str, str]) -> Path | None:
    """The user's file: the one that ``CASEMATE_CONFIG`` names (``none`` for no file), else ``casemate/config.yaml`` (or
    .yml, .toml, .json) in the user's configuration folder.

    Never a file in the working folder, which a program may have written. Raises ``InvalidArgument`` if there are two
    files, or if the folder cannot be read.
    """
    path = environ.get("CASEMATE_CONFIG")
    if path == _NO_FILE:
        return None
    if path is not None:
        return named_file(path)
    try:
        return _only_file(user_folder(environ, "config", "no configuration"))
    except Unavailable:
        return None


def why_none(environ: Mapping[str, str]) -> str:
    """Where :func:`users_file` looked for a file, or why it did not."""
    if "CASEMATE_CONFIG" in environ:
        return "CASEMATE_CONFIG is none"
    try:
        return f"it would be {user_folder(environ, 'config', 'no configuration') / _NAMES[0]} (or .yml, .toml, .json)"
    except Unavailable as error:
        return error.message


def named_file(named: str) -> Path:
    """The file that ``CASEMATE_CONFIG`` names. Raises ``InvalidArgument``."""
    if not named or "\0" in named:
        raise InvalidArgument("CASEMATE_CONFIG", f"{named!r} is not a path", remediation="Name a file, or none.")
    return Path(named).expanduser().absolute()


def _only_file(folder: Path) -> Path | None:
    paths = [path for name in _NAMES if _is_there(path := os.path.join(folder, name))]
    if len(paths) > 1:
        raise InvalidArgument("config", f"{paths[0]} and {paths[1]} both exist; keep one of them")
    return Path(paths[0]) if paths else None


def _is_there(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        remedy = "Set HOME to your own folder, or CASEMATE_CONFIG to the file, or to none."
        problem = f"cannot tell whether {path!r} exists: {error.strerror}"
        raise InvalidArgument("config", problem, remediation=remedy) from None
    return True


def check_config_file(path: Path) -> None:
    """Raises ``InvalidArgument`` for a file that other users can write: it grants permissions."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise InvalidArgument("config", f"cannot read {str(path)!r}: {error.strerror}") from None
    user_folders.check_owned(status, path, "config", "with it your permissions")
