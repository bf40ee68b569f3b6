"""Every key that can be configured: its form, bounds, default and what it means. Pure.

The one table: files and variables are checked by it, errors suggest from it, ``casemate config`` prints by it, and
docs/reference/configuration.md is written from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from casemate.model.limits import COUNTS, CPUS, SECONDS, SIZES, Limits
from casemate.policy.hosts import MOST_PORT

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


def _limit(name: str, form: Form, says: str) -> Key:
    low, high = {**SIZES, **COUNTS, **SECONDS, "cpus": CPUS}[name]
    return Key(f"limits.{name}", form, says, getattr(Limits(), name), "no limit of its own", low=low, high=high)


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

LIMITS = (
    _limit("memory", "size", "all memory of a run or session together"),
    _limit("cpus", "number", "cores used at once"),
    _limit("cpu_time", "seconds", "seconds of cpu"),
    _limit("processes", "whole", "processes and threads at once"),
    _limit("wall", "seconds", "the most seconds that a run or a step may take"),
    _limit("output", "size", "what is returned of stdout and of stderr"),
    _limit("full_output", "size", "what a program may write to both before it is ended"),
    _limit("disk", "size", "what is written in /workspace, /tmp and /dev/shm together"),
    _limit("inodes", "whole", "files and folders made there"),
    _limit("open_files", "whole", "open files of each process"),
)

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
