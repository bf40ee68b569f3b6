"""Inputs of a command line: variables, a program's text, files, the user's secrets, and the configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from casemate.api.config_files import is_configured
from casemate.errors import InvalidArgument
from casemate.model.limits import LimitOptions

_MAX_CODE = (8 << 20) + 1  # bytes to read of a program: enough to see that it is too long


def configured_arguments(*names: str) -> dict[str, Any]:
    """The configured values of these arguments of a sandbox, or of all. Raises ``InvalidArgument``."""
    if not is_configured(os.environ):
        return {}
    from casemate.api.settings import settings_of

    said = settings_of(os.environ).sandbox_arguments(os.environ)
    return {name: said[name] for name in names or said if name in said}


def program_in(script: str) -> bytes:
    """The program in a file, or on standard input for "-". Raises ``InvalidArgument``."""
    if script == "-":
        if code := read(0, _MAX_CODE):
            return code
        raise InvalidArgument(
            "code",
            "standard input is empty, so there is no program",
            remediation="docker exec, docker run and kubectl exec pass it on with -i.",
        )
    return read_file("code", script, _MAX_CODE)


def language_of(script: str) -> str:
    """The language of a program, by its file's name; Python for standard input. Raises ``InvalidArgument``."""
    from casemate.api.sandbox import Sandbox

    language = "python" if script == "-" else Sandbox.language_of(script)
    if script.endswith(".ipynb"):
        raise InvalidArgument(
            "script",
            f"{script!r} is a notebook, which a kernel runs",
            remediation="casemate kernel install, then jupyter execute --kernel_name=casemate-python NOTEBOOK.",
        )
    if language is None:
        raise InvalidArgument("language", f"is unclear from the name of {script!r}: give python, node or shell")
    return language


def sent_options(options: Mapping[str, Any], **arguments: Any) -> dict[str, Any]:
    """The given options and arguments, in the service's form. Raises ``InvalidArgument``."""
    limits = given_limits(options)
    others = {name: value for name, value in options.items() if name not in limits}
    every = {**others, **arguments, "env": env_of(options.get("env", ())), "limits": limits}
    return {name: value for name, value in every.items() if value not in (None, (), {})}


def given_limits(options: Mapping[str, Any]) -> dict[str, Any]:
    """The limits among the given options."""
    return {name: options[name] for name in LimitOptions.__annotations__ if options.get(name) is not None}


def env_of(variables: Sequence[str]) -> dict[str, str]:
    """Variables from NAME=VALUE, or from NAME with its value here. Raises ``InvalidArgument``."""
    env: dict[str, str] = {}
    for variable in variables:
        name, equals, value = variable.partition("=")
        if not equals:
            if name not in os.environ:
                raise InvalidArgument("env", f"{name!r} is not set here; give NAME=VALUE")
            value = os.environ[name]
        env[name] = value
    return env


def env_beginning(prefix: str | None) -> dict[str, str]:
    """The variables whose names have this prefix, without it; none without a prefix."""
    if not prefix:
        return {}
    return {name[len(prefix) :]: value for name, value in os.environ.items() if name.startswith(prefix)}


def read_file(argument: str, path: str, most: int, *, is_log: bool = False) -> bytes:
    """Up to ``most`` bytes of the file that ``argument`` names, the last lines of a log. Raises ``InvalidArgument``."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise InvalidArgument(argument, f"cannot read {path!r}: {_reason(error)}") from None
    try:
        if is_log and (left_out := os.fstat(fd).st_size - most) > 0:
            os.lseek(fd, left_out, os.SEEK_SET)
            return read(fd, most).partition(b"\n")[2]
        return read(fd, most)
    except OSError as error:
        raise InvalidArgument(argument, f"cannot read {path!r}: {_reason(error)}") from None
    finally:
        os.close(fd)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def read(fd: int, most: int) -> bytes:
    """Up to ``most`` bytes of an open file, until its end. Raises ``OSError``."""
    data = bytearray()
    while len(data) < most and (piece := os.read(fd, min(1 << 20, most - len(data)))):
        data += piece
    return bytes(data)
