"""The options of a sandbox, in calls, files and variables.

Annotations here are evaluated at import, for ``model.options`` reads them: no ``from __future__ import annotations``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from casemate.model.call_options import DAY
from casemate.model.kinds import FilePath, Names, Port
from casemate.model.limits import Limits
from casemate.model.operation import Between, Most
from casemate.model.options import ConfigNote, Default

Time = Annotated[float, Between(0.01, 36_500 * DAY)]  # seconds, for approvals and for rows of the record


class SandboxOptions(TypedDict, total=False):
    """Options of ``Sandbox``."""

    workspace: Annotated[FilePath | None, Default(None), ConfigNote("a private one for each run or session")]
    """The folder that programs work in; None gives each run a private one. Programs see it through an overlay, and
    their changes are written back when the run ends."""
    workspace_mode: Annotated[
        Literal["overlay", "direct", "review"] | None, Default(None), ConfigNote(default="overlay")
    ]
    """`"overlay"` (the default) writes back at the end, `"direct"` at once, `"review"` once the changes are applied."""
    output_dir: Annotated[FilePath | None, Default(None)]
    """A folder for copies of artifacts."""
    environment: Annotated[FilePath | Names | None, Default(None), ConfigNote("the one that casemate runs on")]
    """Interpreter and packages: None for casemate's, the path of another one, or a list of requirements."""
    preload: Annotated[Names | None, Default(None), ConfigNote("numpy, pandas and matplotlib, where installed")]
    """Modules that are loaded before Python programs start; None for the usual ones."""
    isolation: Annotated[str, Default("auto")]
    """The wall, by name; `"auto"` for the strongest that passes its self-tests here."""
    image: Annotated[str | None, Default(None), ConfigNote("casemate")]
    """The image of cells' containers; only for `isolation="docker"`."""
    runtime: Annotated[str | None, Default(None), ConfigNote("the engine's usual one")]
    """The container runtime, such as `"runsc"` for gVisor."""
    policy: Annotated[Any, Default(None)]
    """The most that is permitted, as a file or mapping; other options only narrow it."""
    network: Annotated[Literal["none", "listed", "public"] | None, Default(None), ConfigNote(default="listed")]
    """Hosts that programs may reach: `"none"`, `"public"` ones, or those `"listed"` (the default) in
    `allowed_domains`. An approver may allow unlisted hosts."""
    allowed_domains: Annotated[Names | None, Default(None)]
    """Hosts that programs may reach: `example.org`, `*.example.org`, `example.org:5432`."""
    allow_local: Annotated[Annotated[Sequence[Port], Most(100)] | None, Default(None)]
    """Ports of this machine's loopback that programs may reach."""
    intercept: Annotated[Sequence[str], Most(100), Default(())]
    """Hosts whose TLS ends at the egress proxy, so that it sees their requests."""
    trust: Annotated[FilePath | None, Default(None)]
    """A PEM file of more certificate authorities for intercepted hosts, in addition to the system's."""
    limits: Annotated[Limits | None, Default(None)]
    """The limits of each run."""
    approve: Annotated[Callable[..., Any] | None, Default(None)]
    """The approver, called with each `ApprovalRequest`; only True or a `Decision` that allows lets it cross."""
    approval_timeout: Annotated[Time | None, Default(300.0)]
    """Seconds that the approver has to answer; None for no bound."""
    vault: Annotated[object, Default(None)]
    """The store of secrets: None for memory, the path of an encrypted file, or a store object."""
    audit: Annotated[FilePath | None, Default(None), ConfigNote("casemate/audit.db in the user's state folder")]
    """Path of the record; by default in the user's state folder."""
    audit_sync: Annotated[Literal["grouped", "row"], Default("grouped")]
    """When a row is on disk: `"grouped"`, a moment later in a group, or `"row"`, at once."""
    audit_anchors: Annotated[Names, Default(())]
    """More places for signed heads: an absolute path, `|command`, or the address of a time stamp server."""
    audit_max_age: Annotated[Time | None, Default(None), ConfigNote("without end")]
    """Seconds after which rows of the record are dropped."""
    audit_max_size: Annotated[int | str | None, Default(None), ConfigNote("without end", form="size")]
    """Bytes, or `"1GiB"`, beyond which the oldest rows of the record are dropped."""
    namespace: Annotated[str, Default("default")]
    """The owner of its secrets, named in each row of the record."""
    concurrency: Annotated[int | None, Between(1, 10_000), Default(None), ConfigNote("16")]
    """How many runs and steps run at once, from 1 to 10000; None for 16. More of them wait."""
    package_indexes: Annotated[Names, Default(()), ConfigNote("those of the operator's pip")]
    """Package indexes; those of the operator's pip unless given."""
    tools: Annotated[FilePath | Mapping[str, Any] | None, Default(None)]
    """MCP servers: names and definitions, or the path of a file with `mcpServers`."""
    allow_read: Annotated[Annotated[Sequence[FilePath], Most(1000)] | None, Default(None)]
    """Files named `.env` in the workspace that programs may read and change; all other ones are hidden."""
