"""Every key that can be configured: its form, bounds, default and meaning. Pure.

The one table: files and variables are checked by it, errors suggest from it, ``casemate config`` prints by it, and
docs/reference/configuration.md is written from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from casemate.api.config_files import named_variables
from casemate.errors import InvalidArgument
from casemate.model.limits import LIMIT_BOUNDS, LimitOptions, Limits
from casemate.model.options import docs_of
from casemate.model.sizes import format_size, parse_size
from casemate.policy.hosts import MOST_PORT
from casemate.policy.policy import Setting

Form = Literal["text", "path", "choice", "whole", "number", "seconds", "size", "flag", "texts", "ports", "in file"]

PREFIX = "CASEMATE_"
_WEEK = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class Key:
    """One key. ``name``: as in a file, with a dot below a section; ``says``: what it means; ``default``: None is what
    ``unset`` says; ``low`` and ``high``: bounds of numbers; ``form``: ``"in file"`` has no variable."""

    name: str
    form: Form
    says: str
    default: Any = None
    unset: str = "none"
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None

    @property
    def variable(self) -> str | None:
        """The variable that sets it, or None."""
        return None if self.form == "in file" else PREFIX + self.name.upper().replace(".", "_")


@dataclass(frozen=True, slots=True)
class Alias:
    """A variable of another name for a key. ``unit``: follows a plain number; ``words``: values with another name here,
    None for the default; ``refused``: values that cannot be had, and why."""

    variable: str
    key: str
    unit: str = ""
    words: Mapping[str, str | None] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def _limit_keys() -> Iterator[Key]:
    docs = docs_of(LimitOptions)
    for name, (form, low, high) in LIMIT_BOUNDS.items():
        says = docs[name][0].lower() + docs[name][1:].rstrip(".")
        yield Key(f"limits.{name}", form, says, getattr(Limits(), name), "no limit of its own", low=low, high=high)


POLICY = (
    Key(
        "policy", "path", "a file with the policy, in place of the keys of this section", unset="what this section says"
    ),
    Key("network", "choice", "which hosts programs may reach", "listed", choices=("none", "listed", "public")),
    Key("allowed_domains", "texts", "hosts that they may reach: example.org, *.example.org, example.org:5432"),
    Key("denied_domains", "in file", "hosts that they may not reach, whatever else is said"),
    Key("allow_local", "ports", "ports of this machine's own loopback that they may reach"),
    Key("requests", "in file", "what may be asked of hosts whose requests are seen"),
    Key("intercept", "texts", "hosts whose TLS ends at the door, so that requests are seen"),
    Key("trust", "path", "a PEM file of further authorities that those hosts may have"),
    Key("workspace", "path", "the folder that programs work in", unset="a private one for each run or session"),
    Key(
        "workspace_mode",
        "choice",
        "when what they changed there is written back",
        "overlay",
        choices=("overlay", "direct"),
    ),
    Key("allow_read", "texts", "files in the workspace that programs see though they are called .env"),
    Key("isolation", "text", "the wall; auto is the strongest that proves itself here", "auto"),
    Key("rules", "in file", "what is allowed, asked about or denied"),
    Key(
        "defaults",
        "in file",
        "what holds for a kind of request that no rule is about",
        unset="as docs/how-to/policy.md says",
    ),
)

LIMITS = tuple(_limit_keys())

SANDBOX = (
    Key(
        "timeout",
        "seconds",
        "seconds that a program may run where its caller says nothing",
        60.0,
        low=0.01,
        high=_WEEK,
    ),
    Key("output_dir", "path", "a folder for copies of artifacts"),
    Key(
        "environment",
        "path",
        "a virtual environment or interpreter; in a file also a list of requirements",
        unset="the one that casemate runs on",
    ),
    Key(
        "preload",
        "texts",
        "modules that Python programs find loaded",
        unset="numpy, pandas and matplotlib, where installed",
    ),
    Key("approval_timeout", "seconds", "seconds that somebody has to answer", 300.0, low=0.01, high=_WEEK),
    Key(
        "vault",
        "path",
        "where secrets are: user (that of casemate vault), memory (variables alone), or a file",
        unset="user on the command line, memory in a program of yours",
    ),
    Key("audit", "path", "the file of the record", unset="casemate/audit.db in the user's state folder"),
    Key("namespace", "text", "whose secrets, and the name on each row of the record", "default"),
    Key(
        "concurrency",
        "whole",
        "runs and steps of sessions at once",
        unset="as many as suit the cores",
        low=1,
        high=10_000,
    ),
    Key(
        "package_indexes",
        "texts",
        "addresses of where packages come from, in order",
        unset="those of the operator's pip",
    ),
    Key("tools", "path", "a file of MCP servers for programs; in a file also the definitions"),
)

SERVICE = (
    Key(
        "service.idle_stop",
        "seconds",
        "seconds without sessions, runs and requests after which it ends",
        unset="never; 900 where a command has started it",
        low=1,
        high=_WEEK,
    ),
    Key(
        "service.drain", "seconds", "seconds that what runs has when the service is told to end", 10.0, low=0, high=3600
    ),
    Key("service.listen", "texts", "addresses besides its socket, as HOST:PORT, for those who have a token"),
    Key("service.tls_cert", "path", "the file of a certificate: what listens on TCP then speaks TLS"),
    Key("service.tls_key", "path", "the file of its key"),
    Key("service.plain_http", "flag", "listen without TLS beyond this machine's loopback", False),
    Key("service.host_names", "texts", "further names by which requests may call it"),
    Key("service.allow_origins", "texts", "origins of pages from which browsers may ask, as https://example.org"),
)

SERVE = (
    Key(
        "serve.toolset",
        "choice",
        "which tools there are",
        "default",
        choices=("default", "sandboxmcp", "ipybox", "full"),
    ),
    Key("serve.transport", "choice", "how clients speak to it", "stdio", choices=("stdio", "http", "sse")),
    Key("serve.host", "text", "the address that it listens at, with http and sse", "127.0.0.1"),
    Key("serve.port", "whole", "the port there; 0 is any that is free", 8417, low=0, high=MOST_PORT),
    Key(
        "serve.token_file",
        "path",
        "a file with the token that clients must send there",
        unset="one that is said at start",
    ),
    Key("serve.plain_http", "flag", "listen without TLS beyond this machine's loopback", False),
    Key("serve.may_approve", "flag", "whoever uses a client there may approve what its agent asks for", False),
    Key("serve.embedded", "flag", "run programs in its own process, without the service", False),
    Key(
        "serve.log_level",
        "choice",
        "what it writes to standard error",
        "warning",
        choices=("debug", "info", "warning", "error"),
    ),
)

SECTIONS: Mapping[str, tuple[Key, ...]] = {
    "policy": POLICY,
    "limits": LIMITS,
    "sandbox": SANDBOX,
    "service": SERVICE,
    "serve": SERVE,
}
KEYS: Mapping[str, Key] = {key.name: key for keys in SECTIONS.values() for key in keys}
POLICY_KEYS = (*(key.name for key in POLICY if key.name != "policy"), "limits")

ALIASES = (
    Alias("CASEMATE_BACKEND", "isolation", words={"process": "native", "auto": None}),
    Alias("CASEMATE_MAX_CONCURRENT", "concurrency"),
    Alias("CASEMATE_MAX_RAM_MB", "limits.memory", unit="MiB"),
    Alias("CASEMATE_MAX_CPU_CORES", "limits.cpus"),
    Alias("CASEMATE_MAX_PROCESSES", "limits.processes"),
    Alias("CASEMATE_SQLITE_PATH", "audit"),
    Alias("CASEMATE_VAULT", "vault", words={"env": "memory"}),
    Alias(
        "CASEMATE_AUDIT",
        "audit",
        words={"sqlite": None},
        refused={"memory": "the record is always a file; give its path, or leave the variable out"},
    ),
)
VARIABLES: Mapping[str, Key] = {key.variable: key for key in KEYS.values() if key.variable}
CONFIG = "CASEMATE_CONFIG"  # names the file


_MOST_SHOWN = 80  # characters of a wrong value
_FLAGS = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off"), False)}
WITH_PASSWORDS = "package_indexes"


def from_text(key: Key, text: str) -> Any:
    """The value that a variable's text gives ``key``. Raises ``ValueError`` that says what is wrong with it."""
    if key.form == "texts":
        return checked(key, _items(text))
    if key.form == "ports":
        return checked(key, [_number(int, item, text) for item in _items(text)])
    if key.form == "whole":
        return checked(key, _number(int, text, text))
    if key.form in ("number", "seconds"):
        return checked(key, _number(float, text, text))
    if key.form == "flag":
        if text.lower() not in _FLAGS:
            raise ValueError(f"{_cut(text)} is neither true nor false")
        return _FLAGS[text.lower()]
    if key.form == "size" and text.isascii() and text.isdigit():
        return checked(key, int(text))
    return checked(key, text)


def checked(key: Key, value: Any) -> Any:
    """``value`` where it is one that ``key`` may have. Raises ``ValueError`` that says what is wrong with it."""
    _CHECKS[key.form](key, value)
    return value


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _number(kind: Callable[[str], Any], item: str, text: str) -> Any:
    try:
        return kind(item)
    except ValueError:
        raise ValueError(f"{_cut(text)} is no {'whole ' if kind is int else ''}number") from None


def _text(_: Key, value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{_cut(value)} is no text")
    if not value:
        raise ValueError("is empty; give a value, or leave it out")
    if "\0" in value:
        raise ValueError("holds a NUL character")


def _choice(key: Key, value: Any) -> None:
    if value not in key.choices:
        from casemate.model.nearest import suggest

        likely = suggest(value, key.choices) if isinstance(value, str) else ""
        raise ValueError(f"{_cut(value)} is not known{likely or ';'} choose one of {', '.join(key.choices)}")


def _whole(key: Key, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{_cut(value)} is no whole number")
    _within(key, value)


def _real(key: Key, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{_cut(value)} is no number")
    _within(key, value)


def _size(key: Key, value: Any) -> None:
    size = parse_size(value)
    low, high = key.low or 0, key.high or math.inf
    if not low <= size <= high:
        raise ValueError(f"{_cut(value)} is out of range; give {format_size(int(low))} to {format_size(int(high))}")


def _flag(_: Key, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{_cut(value)} is neither true nor false")


def _texts(key: Key, value: Any) -> None:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        told = "" if key.name == WITH_PASSWORDS else f"{_cut(value)} "
        raise ValueError(f"{told}is no list of texts")


def _ports(_: Key, value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{_cut(value)} is no list of ports")
    for port in value:
        if type(port) is not int or not 1 <= port <= MOST_PORT:
            raise ValueError(f"{_cut(port)} is not a port from 1 to {MOST_PORT}")


def _anything(_: Key, __: Any) -> None:
    """A value that others check."""


_CHECKS: Mapping[Form, Callable[[Key, Any], None]] = {
    "text": _text, "path": _text, "choice": _choice, "whole": _whole, "number": _real, "seconds": _real,
    "size": _size, "flag": _flag, "texts": _texts, "ports": _ports, "in file": _anything,
}  # fmt: skip


def _within(key: Key, value: float) -> None:
    if (key.low is not None and value < key.low) or (key.high is not None and value > key.high):
        raise ValueError(f"{_cut(value)} is out of range; give {key.low:g} to {key.high:g}")


def _cut(value: object) -> str:
    told = repr(value) if not isinstance(value, int) or abs(value) < 2**64 else "a much larger number"
    return told if len(told) <= _MOST_SHOWN else f"{told[:_MOST_SHOWN]}…"


_ALIASES = {alias.variable: alias for alias in ALIASES}


def settings_in(environ: Mapping[str, str]) -> dict[str, Setting]:
    """The values that variables give, by key, each with the variable that it is from.

    Lists have commas between their items. Raises ``InvalidArgument`` naming the variable: for a bad value, for one that
    casemate does not know, and where two say the same.
    """
    found: dict[str, Setting] = {}
    for variable in named_variables(environ):
        if variable == CONFIG:
            continue
        key, value = _read(variable, environ[variable])
        if value is None:
            continue
        if key.name in found:
            raise InvalidArgument(variable, f"says the same as {found[key.name].where}; leave one of them out")
        found[key.name] = Setting(key.name, value, variable)
    return found


def _read(variable: str, text: str) -> tuple[Key, Any]:
    alias = _ALIASES.get(variable)
    key = KEYS[alias.key] if alias else VARIABLES.get(variable)
    if key is None:
        from casemate.model.nearest import suggest

        known = [*VARIABLES, *_ALIASES, CONFIG]
        raise InvalidArgument(
            variable,
            f"is no variable that casemate knows{suggest(variable, known)}",
            remediation="`casemate config` lists them. CASEMATE_SECRET_* and CASEMATE_INJECT_* are for secrets.",
        )
    try:
        return key, _translated(alias, key, text) if alias else from_text(key, text)
    except ValueError as error:
        raise InvalidArgument(variable, str(error)) from None


def _translated(alias: Alias, key: Key, text: str) -> Any:
    if text in alias.refused:
        raise ValueError(f"{text!r}: {alias.refused[text]}")
    if text in alias.words:
        word = alias.words[text]
        return None if word is None else from_text(key, word)
    return from_text(key, text + alias.unit if alias.unit and text.isascii() and text.isdigit() else text)


def aliases_of(name: str) -> Iterator[str]:
    """Other variables of the key ``name``."""
    yield from (one.variable for one in ALIASES if one.key == name and one.variable != KEYS[name].variable)
