"""Arguments → Request: checks types and bounds before anything starts. Errors name the argument."""

from __future__ import annotations

import codecs
import math
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from casemate.errors import InvalidArgument
from casemate.files.names import LONGEST_NAME, problem
from casemate.languages.catalogue import runtime_for
from casemate.model.call_options import Priority
from casemate.model.kinds import MAX_CODE, Content
from casemate.model.limits import Limits, format_size
from casemate.model.plan import NO_SECRETS, Request, Secrets, TurnTerms
from casemate.visible import brief, hidden_in

if TYPE_CHECKING:
    from casemate.languages.runtime import Runtime
    from casemate.model.execution import Crossing
    from casemate.redaction.redaction import Redaction

_MAX_STDIN = 256 << 20
_MAX_ENV = 1 << 20  # bytes of names and values together; execve(2) allows about 2 MiB
_MAX_ENV_VALUE = 128 << 10  # bytes of one variable (MAX_ARG_STRLEN)
_MAX_FILES = 10_000
_MAX_DOMAINS = 1000
_MAX_PATH = 1024
_MAX_ARGUMENTS = 1000
_MAX_METADATA = 64 << 10  # characters as JSON; every record and result has them
_MAX_METADATA_DEPTH = 50
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def make_request(
    code: str | bytes,
    language: str,
    *,
    namespace: str,
    program_name: str | None = None,
    arguments: Sequence[str] = (),
    timeout: float | None = None,
    limits: Limits | None = None,
    env: Mapping[str, str] | None = None,
    files: Mapping[str, Content] | None = None,
    stdin: str | bytes | None = None,
    metadata: Mapping[str, Any] | None = None,
    allowed_domains: Sequence[str] | None = None,
    secrets: Secrets = NO_SECRETS,
    priority: Priority = "normal",
    start_within: float | None = None,
) -> Request:
    """Make the request for a program. Raises ``InvalidArgument`` that names the argument."""
    runtime = runtime_for(language)
    if limits is not None and not isinstance(limits, Limits):
        raise InvalidArgument("limits", f"{limits!r} is not a casemate.Limits")
    return Request(
        id=new_id(),
        code=code_of(code),
        language=runtime.language,
        program_name=_program_name(program_name, runtime, language),
        arguments=_arguments(arguments),
        timeout=check_timeout(timeout),
        limits=limits,
        env=_env(env or {}, secrets),
        secrets=secrets,
        files=_files(files or {}),
        stdin=stdin_of(stdin),
        namespace=namespace,
        metadata=metadata_of(metadata),
        allowed_domains=domains_of(allowed_domains),
        turn=turn_terms(priority, start_within),
    )


def make_command(
    program: str,
    arguments: Sequence[str],
    *,
    timeout: float | None,
    env: Mapping[str, str],
    secrets: Secrets,
    namespace: str,
) -> Request:
    """Make the request for a host command. Raises ``InvalidArgument`` that names the argument."""
    return Request(
        id=new_id(),
        namespace=namespace,
        language="command",
        program_name=program,
        arguments=_arguments(arguments),
        timeout=check_timeout(timeout),
        env=_env(env, secrets),
        secrets=secrets,
    )


def new_id() -> str:
    """128 random bits."""
    return os.urandom(16).hex()


def domains_of(domains: Sequence[str] | None) -> tuple[str, ...] | None:
    """Check a list of domains. `admit` checks each domain. Raises ``InvalidArgument``."""
    if domains is None:
        return None
    if isinstance(domains, str | bytes) or not isinstance(domains, Sequence) or len(domains) > _MAX_DOMAINS:
        raise InvalidArgument("allowed_domains", f"give a list of at most {_MAX_DOMAINS} domains, not {brief(domains)}")
    return tuple(domains)


def code_of(code: str | bytes) -> bytes:
    """The program without a byte order mark, which not every interpreter accepts. Raises ``InvalidArgument``."""
    if not isinstance(code, str | bytes):
        raise InvalidArgument("code", f"must be str or UTF-8 bytes, not {type(code).__name__}")
    if len(code) > MAX_CODE:
        raise InvalidArgument(
            "code", f"is {format_size(len(code))} long; the most is {format_size(MAX_CODE)}. Give large data as files"
        )
    try:
        data = code.encode() if isinstance(code, str) else code
        data.decode("utf-8")
    except UnicodeError as error:
        raise InvalidArgument("code", f"is not valid UTF-8: {error}") from None
    if b"\0" in data:
        raise InvalidArgument("code", f"has a NUL byte at offset {data.index(0)}; programs are text")
    return data.removeprefix(codecs.BOM_UTF8)


def _program_name(name: str | None, runtime: Runtime, language: str) -> str:
    """The file name for tracebacks, with the language's ending if its interpreter needs one."""
    usual = runtime.default_names.get(language.lower(), runtime.default_name)
    if not name:
        return usual
    if why := problem(name.encode("utf-8", "surrogatepass")):
        raise InvalidArgument("program_name", f"{brief(name)} names no program: {why}")
    is_kept = not runtime.goes_by_endings or name.endswith(runtime.extensions)
    return name if is_kept else name + os.path.splitext(usual)[1]


def _arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    if isinstance(arguments, str) or not isinstance(arguments, Sequence):
        raise InvalidArgument("arguments", f"{brief(arguments)} is not a list of strings")
    total = 0
    for argument in arguments:
        size = _encoded_size("arguments", argument)
        total += size
        if "\0" in argument or size > _MAX_ENV_VALUE:
            raise InvalidArgument(
                "arguments", f"give strings without NUL of at most {format_size(_MAX_ENV_VALUE)} each"
            )
    if len(arguments) > _MAX_ARGUMENTS or total > _MAX_ENV:
        most = f"{_MAX_ARGUMENTS} strings of {format_size(_MAX_ENV)} in all"
        raise InvalidArgument("arguments", f"give at most {most}; give large data as files")
    return tuple(arguments)


def _encoded_size(argument: str, text: object) -> int:
    """The size of ``text`` in bytes as the program gets it. Raises ``InvalidArgument`` that names ``argument``."""
    if not isinstance(text, str):
        raise InvalidArgument(argument, f"{brief(text)} must be a str")
    try:
        return len(os.fsencode(text))
    except UnicodeError:
        raise InvalidArgument(argument, f"{brief(text)} cannot be encoded as UTF-8") from None


def check_timeout(timeout: float | None, name: str = "timeout") -> float | None:
    """``timeout`` as seconds. Raises ``InvalidArgument``."""
    if timeout is None:
        return None
    try:
        seconds = math.nan if isinstance(timeout, bool) or not isinstance(timeout, int | float) else float(timeout)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds) or seconds <= 0:
        raise InvalidArgument(name, f"{brief(timeout)} is not a positive number of seconds (or None)")
    return seconds


def turn_terms(priority: Priority = "normal", start_within: float | None = None) -> TurnTerms:
    """Check how a request waits in the queue. Raises ``InvalidArgument``."""
    if priority not in get_args(Priority):
        raise InvalidArgument("priority", f"{brief(priority)} is not one of {', '.join(get_args(Priority))}")
    return TurnTerms(priority, check_timeout(start_within, "start_within"))


def _env(env: Mapping[str, str], secrets: Secrets) -> dict[str, str]:
    if not isinstance(env, Mapping):
        raise InvalidArgument("env", f"{brief(env)} is not a mapping of names to values")
    if twice := set(env).intersection(secrets.names):
        raise InvalidArgument("secrets", f"{min(twice)} is given in env, too; give it once")
    total = sum(len(name) + len(value.encode()) for name, value in secrets.for_program().reveal().items())
    if total > _MAX_ENV:
        raise InvalidArgument("secrets", "are too large together; give large data as files")
    for name, value in env.items():
        if not isinstance(name, str) or not _ENV_NAME.match(name):
            raise InvalidArgument("env", f"{name!r} is not a name of a variable: letters, digits and _ only")
        if not isinstance(value, str) or "\0" in value:
            raise InvalidArgument("env", f"the value of {name} must be a str without NUL")
        size = _encoded_size("env", value)
        total += size + len(name)
        if size > _MAX_ENV_VALUE or total > _MAX_ENV:
            raise InvalidArgument("env", f"{name} makes it too large; give large data as files")
    return dict(env)


def _files(files: Mapping[str, Content]) -> dict[str, bytes | Path]:
    if not isinstance(files, Mapping):
        raise InvalidArgument("files", f"{brief(files)} is not a mapping of names to contents")
    if len(files) > _MAX_FILES:
        raise InvalidArgument("files", f"{len(files)} files; the most is {_MAX_FILES}")
    checked: dict[str, bytes | Path] = {}
    for name, content in files.items():
        check_name(name)
        checked[name] = _content(name, content)
    folders = {parent for name in checked for parent in _parents(name)}
    for name in checked:
        if name in folders:
            raise InvalidArgument("files", f"{name!r} is given as a file and as a folder")
    return checked


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def check_name(name: str, argument: str = "files") -> None:
    """Raise ``InvalidArgument`` unless ``name`` is a relative path beneath the workspace."""
    if not isinstance(name, str) or not name or len(name.encode("utf-8", "surrogatepass")) > _MAX_PATH:
        raise InvalidArgument(
            argument, f"{name!r} is not a usable name; give a relative path of at most {_MAX_PATH} bytes"
        )
    for part in name.split("/"):
        if part in ("", ".", "..") or len(part.encode("utf-8", "surrogatepass")) > LONGEST_NAME:
            raise InvalidArgument(argument, f"{name!r} is not a plain relative path beneath the workspace")
    if "\\" in name:
        raise InvalidArgument(argument, f"{name!r} holds a backslash; folders are separated by /")
    if bad := hidden_in(name):
        raise InvalidArgument(argument, f"{name!r} holds the character U+{ord(bad):04X}; use printable ones")


def _content(name: str, content: Content) -> bytes | Path:
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    if isinstance(content, str):
        _encoded_size("files", content)
        return os.fsencode(content)
    if not isinstance(content, os.PathLike):
        raise InvalidArgument(
            "files", f"{name!r}: give bytes, str (the content) or a Path, not {type(content).__name__}"
        )
    path = Path(content)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InvalidArgument("files", f"{name!r}: cannot read {str(path)!r}: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise InvalidArgument("files", f"{name!r}: {str(path)!r} is not a regular file")
    if not os.access(path, os.R_OK):
        raise InvalidArgument("files", f"{name!r}: {str(path)!r} may not be read")
    return path


def stdin_of(stdin: str | bytes | None, most: int = _MAX_STDIN) -> bytes:
    """Standard input of at most ``most`` bytes. Raises ``InvalidArgument``."""
    if stdin is None:
        return b""
    if not isinstance(stdin, str | bytes):
        raise InvalidArgument("stdin", f"must be str or bytes, not {type(stdin).__name__}")
    if len(stdin) > most:
        raise InvalidArgument("stdin", f"is longer than {format_size(most)}; give large data as files")
    if isinstance(stdin, bytes):
        return stdin
    _encoded_size("stdin", stdin)
    return os.fsencode(stdin)


def metadata_of(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Check the caller's metadata for the result and the record. Raises ``InvalidArgument``."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        raise InvalidArgument("metadata", "must be a mapping with str keys")
    import json  # only for callers who give metadata

    try:
        size = len(json.dumps(dict(metadata), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument("metadata", f"must hold JSON values: {error}") from None
    if size > _MAX_METADATA:
        raise InvalidArgument("metadata", f"takes {size:,} characters as JSON; the limit is {_MAX_METADATA:,}")
    if _depth(metadata) > _MAX_METADATA_DEPTH:
        raise InvalidArgument("metadata", f"is nested deeper than {_MAX_METADATA_DEPTH} levels")
    return dict(metadata)


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        inner = [list(one.values()) if isinstance(one, Mapping) else one for one in level]
        level = [one for some in inner if isinstance(some, list | tuple) for one in some]
    return depth


def redaction_of(secrets: Secrets) -> Redaction | None:
    """The redaction of ``secrets`` in a run's output; None without secrets."""
    if not secrets:
        return None
    from casemate.redaction.redaction import Redaction

    return Redaction(secrets.reveal())


async def prepare(redaction: Redaction | None) -> Redaction | None:
    """Prepare ``redaction`` in a thread, so that its use does not block the event loop."""
    import asyncio  # not at the top: a sandbox is made before it is loaded

    if redaction is not None:
        await asyncio.to_thread(redaction.prepare)
    return redaction


def redacted_crossings(crossings: Sequence[Crossing], redaction: Redaction | None) -> tuple[Crossing, ...]:
    """Redact crossings: a program may request a host name that contains a secret."""
    if redaction is None:
        return tuple(crossings)
    return tuple(replace(one, host=redaction.text(one.host), reason=redaction.text(one.reason)) for one in crossings)
