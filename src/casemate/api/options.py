"""The options of each call, defined once: names, types, bounds, defaults and meanings. Those of a sandbox are in
``casemate.model.sandbox_options``.

To add a keyword to ``run``: add a field to `ProgramOptions` here (or to `StepOptions`, if steps of sessions take it,
too), its consumer (``execution/request.py`` makes the request from it), and a test. A method takes ``**options:
Unpack[RunOptions]`` under ``@takes_options(RunOptions)``, and completes them with ``complete(RunOptions, options,
"run")``. The catalogue of operations makes its models from the same methods. A surface that must start fast reads
``defaults_of`` and ``docs_of`` of ``model.options``, which do not load pydantic.

Annotations here are evaluated at import, for ``model.options`` reads them: no ``from __future__ import annotations``.
"""

from typing import Annotated, TypedDict

from casemate.languages.catalogue import LANGUAGE_NAMES
from casemate.model.call_options import RecordOptions, Seconds, StepOptions
from casemate.model.kinds import Files, Name, Names, Path, Variables
from casemate.model.limits import Limits
from casemate.model.operation import OneOf
from casemate.model.options import Default
from casemate.model.sandbox_options import SandboxOptions as SandboxOptions  # noqa: PLC0414 - one of them, too

Language = Annotated[str, OneOf(LANGUAGE_NAMES)]


class CellOptions(TypedDict, total=False):
    """Options of a cell, for runs and sessions."""

    limits: Annotated[Limits | None, Default(None)]
    """Its limits, which only narrow the sandbox's."""
    allowed_domains: Annotated[Names | None, Default(None)]
    """Hosts that it may reach, among those that the sandbox allows; all of those unless given. Another host is
    `InvalidArgument`, unless an approver can allow it."""
    secrets: Annotated[Names, Default(())]
    """Names of secrets in the vault, which programs get as variables; their values are removed from all output. An
    unknown name is `InvalidArgument`."""
    env: Annotated[Variables | None, Default(None)]
    """Environment variables of its programs; they get none of the host's."""
    files: Annotated[Files | None, Default(None)]
    """Files to put into the workspace first, by name: content, or the path of a file to copy. Existing files are an
    error."""


class ProgramOptions(CellOptions, StepOptions, total=False):
    """Options of a program, in a cell or in a session."""

    program_name: Annotated[Name | None, Default(None)]
    """The file name that tracebacks show."""
    arguments: Annotated[Names, Default(())]
    """The program's command-line arguments."""


class RunOptions(ProgramOptions, total=False):
    """Options of ``run``, ``stream``, ``start``, ``plan`` and ``explain``."""

    language: Annotated[Language, Default("python")]
    """The program's language: `"python"`, `"node"` (`"ts"` for TypeScript) or `"shell"`."""


class SessionOptions(CellOptions, RecordOptions, total=False):
    """Options of ``session``."""

    name: Annotated[Name | None, Default(None)]
    """A second name for it, unique among the open sessions."""
    cwd: Annotated[Path | None, Default(None)]
    """The folder of the workspace in which its first step starts."""
    restore_cwd: Annotated[bool, Default(False)]
    """Whether each step starts in `cwd`; without `cwd`, in the workspace."""
    idle_timeout: Annotated[Seconds | None, Default(None)]
    """Seconds without use after which it ends."""
    lifetime: Annotated[Seconds | None, Default(None)]
    """Seconds after which it ends in any case."""
