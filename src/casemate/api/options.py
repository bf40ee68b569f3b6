"""The options of each call, defined once: names, types, bounds, defaults and what they mean.

Everything that takes them reads these definitions. To add a keyword to ``run``: a field of `ProgramOptions` here (or
of `StepOptions`, where steps of sessions take it, too), its consumer (``execution/request.py`` makes the request from
it), and a test.

- A method takes ``**options: Unpack[RunOptions]`` under ``@takes_options(RunOptions)``: editors and mypy check and
  complete its keywords, ``inspect.signature`` and ``help`` show them with their defaults.
- ``complete(RunOptions, options, "run")`` fills in the defaults and names all unknown keywords.
- The catalogue of operations makes the fields of its models from the same methods. So ``catalogue()["run"].params``
  (names, defaults, descriptions, bounds; ``params_schema()`` for JSON) is what a command line and MCP schemas read. A
  surface that must stay fast reads ``defaults_of`` and ``docs_of`` of ``model.options``, which load no pydantic.
- ``casemate.sync`` and ``Sandbox.connect`` pass the options on as they are.

Annotations here are evaluated at import, for the mechanism reads them: no ``from __future__ import annotations``.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from casemate.execution.request import MAX_CODE, Content
from casemate.languages.catalogue import LANGUAGE_NAMES
from casemate.model.call_options import RecordOptions, Seconds, StepOptions
from casemate.model.limits import Limits
from casemate.model.operation import Between, Most, OneOf
from casemate.model.options import ConfigNote, Default

MOST_PAGE = 1_000_000  # characters, or bytes, of one answer

# Kinds of values with their bounds, which operations use for their further arguments, too.
Language = Annotated[str, OneOf(LANGUAGE_NAMES)]
Code = Annotated[str, Most(MAX_CODE)]
Name = Annotated[str, Most(200)]
Path = Annotated[str, Most(1024)]
Wait = Annotated[float, Between(0.0, 3600.0)]
Cursor = Annotated[int, Between(0, 2**53)]
Page = Annotated[int, Between(1, MOST_PAGE)]
Files = Annotated[Mapping[str, Content], Most(10_000)]
Variables = Annotated[Mapping[str, str], Most(10_000)]
Names = Annotated[Sequence[str], Most(1000)]
FilePath = str | os.PathLike[str]  # on this machine


class CellOptions(TypedDict, total=False):
    """What a cell is made with: options of a run and of a session."""

    limits: Annotated[Limits | None, Default(None)]
    """How much it may use; it only narrows the limits of the sandbox."""
    allowed_domains: Annotated[Names | None, Default(None)]
    """Hosts that it may reach, of those that the sandbox allows, which are all of them unless given; another one is
    `InvalidArgument`, unless somebody can be asked for it."""
    secrets: Annotated[Names, Default(())]
    """Names of secrets in the vault, which programs get as variables; their values are in nothing that comes out. An
    unknown name is `InvalidArgument`."""
    env: Annotated[Variables | None, Default(None)]
    """Variables of its programs; nothing of the host's environment is passed on."""
    files: Annotated[Files | None, Default(None)]
    """Put into the workspace first, by name: content, or the path of a file to copy. Over an existing file it is an
    error."""


class ProgramOptions(CellOptions, StepOptions, total=False):
    """Options of a program, wherever it runs."""

    program_name: Annotated[Name | None, Default(None)]
    """The file name that tracebacks show."""
    arguments: Annotated[Names, Default(())]
    """The program's command line."""


class RunOptions(ProgramOptions, total=False):
    """Options of ``run``, ``stream``, ``start``, ``plan`` and ``explain``."""

    language: Annotated[Language, Default("python")]
    """The language that the program is written in: `"python"`, `"node"` (`"ts"` for TypeScript) or `"shell"`."""


class SessionOptions(CellOptions, RecordOptions, total=False):
    """Options of ``session``."""

    name: Annotated[Name | None, Default(None)]
    """A name by which it can be found, too; unique among the open sessions."""
    cwd: Annotated[Path | None, Default(None)]
    """The folder of the workspace where its first step begins."""
    restore_cwd: Annotated[bool, Default(False)]
    """Whether each step begins in `cwd`; without `cwd`, in the workspace."""
    idle_timeout: Annotated[Seconds | None, Default(None)]
    """Seconds without use after which it ends."""
    lifetime: Annotated[Seconds | None, Default(None)]
    """Seconds after which it ends in any case."""


class SandboxOptions(TypedDict, total=False):
    """Options of ``Sandbox``."""

    workspace: Annotated[FilePath | None, Default(None), ConfigNote("a private one for each run or session")]
    """The folder that programs work in; None gives each run a private one. It is seen through an overlay, and what a
    run changed is written back when it ends."""
    workspace_mode: Annotated[
        Literal["overlay", "direct", "review"] | None, Default(None), ConfigNote(default="overlay")
    ]
    """`"overlay"` (unless given) writes at the end, `"direct"` at once, `"review"` if allowed."""
    output_dir: Annotated[FilePath | None, Default(None)]
    """A folder for copies of artifacts."""
    environment: Annotated[FilePath | Sequence[str] | None, Default(None), ConfigNote("the one that casemate runs on")]
    """Interpreter and packages: None for casemate's, the path of others, or a list of requirements."""
    preload: Annotated[Sequence[str] | None, Default(None), ConfigNote("numpy, pandas and matplotlib, where installed")]
    """Modules that Python programs find loaded; None for the usual ones."""
    isolation: Annotated[str, Default("auto")]
    """The wall, by name; `"auto"` is the strongest that proves itself here."""
    image: Annotated[str | None, Default(None), ConfigNote("casemate")]
    """The image of containers that are cells; for `isolation="docker"` alone."""
    runtime: Annotated[str | None, Default(None), ConfigNote("the engine's usual one")]
    """The engine's runtime for them, such as `"runsc"`, gVisor's."""
    policy: Annotated[Any, Default(None)]
    """A file or mapping: the most that is permitted, which other options narrow."""
    network: Annotated[Literal["none", "listed", "public"] | None, Default(None), ConfigNote(default="listed")]
    """Hosts that there are: `"none"`, `"public"`, or `"listed"` (unless given) in `allowed_domains`. An approver
    may allow others of a list."""
    allowed_domains: Annotated[Sequence[str] | None, Default(None)]
    """Hosts that programs may reach: `example.org`, `*.example.org`, `example.org:5432`."""
    allow_local: Annotated[Sequence[int] | None, Default(None)]
    """Ports of this machine's loopback that programs may reach."""
    intercept: Annotated[Sequence[str], Default(())]
    """Hosts whose TLS ends at the egress proxy, so that their requests are seen."""
    trust: Annotated[FilePath | None, Default(None)]
    """A PEM file of authorities that intercepted hosts may have besides those of the system."""
    limits: Annotated[Limits | None, Default(None)]
    """The most that any run may use."""
    approve: Annotated[Callable[..., Any] | None, Default(None)]
    """Called with each `ApprovalRequest`; only True or a `Decision` that allows lets it cross."""
    approval_timeout: Annotated[Seconds | None, Default(300.0)]
    """Seconds that somebody has to answer; None for no bound."""
    vault: Annotated[object, Default(None)]
    """Where secrets are kept: None for memory, the path of an encrypted file, or a store."""
    audit: Annotated[FilePath | None, Default(None), ConfigNote("casemate/audit.db in the user's state folder")]
    """Path of the record; by default in the user's state folder."""
    audit_sync: Annotated[Literal["grouped", "row"], Default("grouped")]
    """When a row is on the disk: `"grouped"`, a moment later with others, or `"row"`, at once."""
    audit_anchors: Annotated[Sequence[str], Default(())]
    """Where signed heads go besides: an absolute path, `|command`, a time stamp server's address."""
    audit_max_age: Annotated[Seconds | None, Default(None), ConfigNote("without end")]
    """Seconds after which rows of the record are dropped."""
    audit_max_size: Annotated[int | str | None, Default(None), ConfigNote("without end", form="size")]
    """Bytes, or `"1GiB"`, beyond which the oldest rows of the record are dropped."""
    namespace: Annotated[str, Default("default")]
    """Whose secrets there are, and what each row of the record carries."""
    concurrency: Annotated[int | None, Between(1, 10_000), Default(None), ConfigNote("16")]
    """Runs and steps of sessions at once, from 1 to 10000; None for 16. Others wait."""
    package_indexes: Annotated[Sequence[str], Default(()), ConfigNote("those of the operator's pip")]
    """Where packages come from; those of the operator's pip unless given."""
    tools: Annotated[FilePath | Mapping[str, Any] | None, Default(None)]
    """MCP servers from the start: names and definitions, or the path of a file with `mcpServers`."""
    allow_read: Annotated[Sequence[FilePath] | None, Default(None)]
    """Files called `.env` in the workspace that programs may read and change; others are hidden."""
