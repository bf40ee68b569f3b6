"""What ``casemate run`` was asked for, read from the command line: files, variables, standard input."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from casemate.api.config_files import is_configured
from casemate.errors import InvalidArgument
from casemate.model.limits import Limits
from casemate.surfaces.cli.given import env_of, program_in, read, read_file, users_vault
from casemate.surfaces.cli.terminal.words import say

if TYPE_CHECKING:
    from casemate.api.settings import Settings
    from casemate.policy.policy import Policy

_MAX_STDIN = (256 << 20) + 1
_PATIENCE = 1.0  # seconds until casemate says what it is waiting for
_DEFAULT_TIMEOUT = 60.0


@dataclass(frozen=True)
class Options:
    """The options of ``casemate run``, as given; ``settings``: what is configured besides."""

    script: str
    arguments: tuple[str, ...] = ()
    language: str | None = None
    timeout: float | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    namespace: str | None = None
    stdin: str | None = None
    output: str | None = None
    workspace: str | None = None
    workspace_mode: str | None = None
    read: tuple[str, ...] = ()
    environment: str | None = None
    isolation: str | None = None
    policy: str | None = None
    allow: tuple[str, ...] = ()
    tool_servers: tuple[str, ...] = ()
    explain: bool = False
    raw: bool = False
    format: Literal["text", "json"] = "text"
    settings: Settings | None = None

    @property
    def seconds(self) -> float:
        """How long the program may run."""
        if self.timeout is not None:
            return self.timeout
        return _DEFAULT_TIMEOUT if self.settings is None else self.settings.timeout


def with_configuration(options: Options) -> Options:
    """The options, with what a file and variables say about the same. Raises ``InvalidArgument``."""
    if not is_configured(os.environ):  # which is the rule, and quick
        return options
    from casemate.api.settings import settings_of

    settings = settings_of(os.environ, arguments={"policy": options.policy})
    return replace(options, settings=settings, output=options.output or settings.value("output_dir"))


def sandbox_arguments(options: Options) -> dict[str, Any]:
    """What the sandbox is made with: what is configured, and the options over it. Raises ``InvalidArgument``."""
    said: dict[str, Any] = {"policy": options.policy}
    wall = max(_DEFAULT_TIMEOUT, options.seconds)
    limits: dict[str, Any] = {}
    if options.settings is not None:
        said, limits = options.settings.sandbox_arguments(os.environ), options.settings.limits
        if options.timeout is not None and "wall" in limits:
            limits["wall"] = max(limits["wall"], options.timeout)
    from casemate.api.policy_options import policy_from

    policy = policy_from(said.get("policy"))
    for warning in policy.warnings:
        say(warning)
    given = {
        "workspace": options.workspace,
        "workspace_mode": options.workspace_mode,
        "allow_read": options.read,
        "output_dir": options.output,
        "environment": options.environment,
        "isolation": options.isolation,
        "namespace": options.namespace,
        "allowed_domains": options.allow,
        "tools": _servers(options.tool_servers),
    }
    return {
        "network": None if _may_reach_some(options, policy, said) else "none",
        "vault": users_vault() if options.secrets or options.tool_servers else None,
        **said,
        **{name: value for name, value in given.items() if value not in (None, ())},
        "limits": Limits(**{"wall": wall, **policy.limits, **limits, **options.limits}),
        "policy": policy,
    }


def _may_reach_some(options: Options, policy: Policy, said: Mapping[str, Any]) -> bool:
    """Whether anybody said which hosts may be reached: else there is no network."""
    if options.policy or options.allow or said.get("allowed_domains") or said.get("allow_local"):
        return True
    asked = policy.written.written if policy.written else ()
    return bool(policy.network or policy.allowed or policy.local_ports) or any(one.kind == "egress" for one in asked)


def run_arguments(options: Options, language: str) -> dict[str, Any]:
    """The program and everything it is run with; reads the files it comes from. Raises ``InvalidArgument``."""
    return {
        "code": program_in(options.script),
        "language": language,
        "timeout": options.seconds,
        "env": env_of(options.env),
        "secrets": options.secrets,
        "files": _files(options.files),
        "stdin": _stdin(options),
        "program_name": None if options.script == "-" else os.path.basename(options.script),
        "arguments": options.arguments,
    }


def _servers(names: tuple[str, ...]) -> dict[str, Any] | None:
    """The definitions of servers that are named. Raises ``InvalidArgument``."""
    if not names:
        return None
    from casemate.tools.files import users_servers

    return users_servers(os.environ, names)


def _files(given: tuple[str, ...]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not equals:
            name, path = os.path.basename(one), one
        if not name or not path:
            raise InvalidArgument("files", f"{one!r} is neither a path nor NAME=PATH")
        if name in files:
            raise InvalidArgument("files", f"{name!r} is given twice; name one of them: --file OTHER={path}")
        files[name] = Path(path)
    return files


def _stdin(options: Options) -> bytes:
    """The program's standard input: the file that was named, else what is piped or redirected into casemate."""
    if options.stdin is None:
        return b"" if options.script == "-" or options.explain else _piped()
    if options.stdin != "-":
        return read_file("stdin", options.stdin, _MAX_STDIN)
    if options.script == "-":
        raise InvalidArgument("stdin", "standard input is the program itself; give a file")
    return read(0, _MAX_STDIN)


def _piped() -> bytes:
    """All of a pipe, a socket or a file; a terminal and /dev/null are not read."""
    mode = os.fstat(0).st_mode
    if stat.S_ISREG(mode):
        return read(0, _MAX_STDIN)
    if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
        return b""
    if not select.select([0], [], [], _PATIENCE)[0]:
        say("waiting for the end of standard input; '--stdin /dev/null' gives the program an empty one")
    return read(0, _MAX_STDIN)
