"""Whether anything is configured, and in which file: quick to ask, since every command asks."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from casemate.errors import InvalidArgument, Unavailable
from casemate.files.user_folders import user_folder

_NAMES = ("config.yaml", "config.yml", "config.toml", "config.json")
_NO_FILE = "none"
# Variables for other things: secrets and where they go, the project's own tests, where a machine has its browser; and
# secrets that others read.
LEFT_ALONE = ("CASEMATE_SECRET_", "CASEMATE_INJECT_", "CASEMATE_TESTS_", "CASEMATE_BROWSER")
_TOKENS = ("CASEMATE_TOKEN", "CASEMATE_SERVE_TOKEN")


def named_variables(environ: Mapping[str, str]) -> list[str]:
    """The variables that configure something, in order, known or not."""
    own = (name for name in environ if name.startswith("CASEMATE_") and not name.startswith(LEFT_ALONE))
    return sorted(name for name in own if name not in _TOKENS)


def is_configured(environ: Mapping[str, str]) -> bool:
    """Whether there is a variable or a file. Raises as :func:`users_file`."""
    return bool(named_variables(environ)) or users_file(environ) is not None


def users_file(environ: Mapping[str, str]) -> Path | None:
    """The file of whoever runs casemate: the one that ``CASEMATE_CONFIG`` names (``none`` is no file), else
    ``casemate/config.yaml`` (or .yml, .toml, .json) in the folder of the user's configuration.

    Never one of the working folder, which a program may have written. Raises ``InvalidArgument`` where there are two,
    and where it cannot be told.
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


def named_file(named: str) -> Path:
    """The file that ``CASEMATE_CONFIG`` names. Raises ``InvalidArgument``."""
    if not named or "\0" in named:
        raise InvalidArgument("CASEMATE_CONFIG", f"{named!r} is no path", remediation="Name a file, or none.")
    return Path(named).expanduser().absolute()


def _only_file(folder: Path) -> Path | None:
    paths = [path for name in _NAMES if _is_there(path := os.path.join(folder, name))]
    if len(paths) > 1:
        raise InvalidArgument("config", f"{paths[0]} and {paths[1]} are both there; keep one of them")
    return Path(paths[0]) if paths else None


def _is_there(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        remedy = "Set HOME to a folder of your own, or CASEMATE_CONFIG to the file, or to none."
        problem = f"cannot tell whether there is {path!r}: {error.strerror}"
        raise InvalidArgument("config", problem, remediation=remedy) from None
    return True


def check_owned(path: Path) -> None:
    """Raises ``InvalidArgument`` for a file that others may write: it says what is permitted, and what is started."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise InvalidArgument("config", f"cannot read {str(path)!r}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgument("config", f"{str(path)!r} is not a regular file")
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        raise InvalidArgument(
            "config",
            f"{str(path)!r} can be changed by others, who would say what is permitted here",
            remediation=f"Make it your own: chown $(id -un) {path}; chmod go-w {path}",
        )
