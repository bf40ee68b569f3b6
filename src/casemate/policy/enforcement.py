"""For each setting of a policy: the one function that enforces it, and what passes through that function. Pure.

docs/reference/settings.md is generated from this table and from the tests that try every setting on every surface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Enforcement:
    """How a setting binds.

    Attributes:
        by: ``module:function`` below ``casemate``.
        covers: What passes through the function, from whatever surface.
        walls: What differs behind a wall, by its name. A wall that is missing keeps the setting as native does.
    """

    by: str
    covers: str
    walls: Mapping[str, str] = field(default_factory=dict)


_HOSTS = Enforcement(
    "egress.connection:EgressConnection.permit", "each connection of a program, also those that `web` makes for it"
)
_CHANGES = Enforcement(
    "workspace.rules:FolderRules.reason",
    "each change of the caller's folder: by runs, sessions, `session.files`, reviews, `host`, and `wrap`",
    dict.fromkeys(("landlock", "docker"), "the copy changes; your folder does not, and `skipped` says so"),
)
_READS = Enforcement(
    "workspace.guarding:Guard.find",
    "each folder of the caller's that is laid out for a program, and what a review, a diff or `host` shows of it",
)
_DIRECT = dict.fromkeys(("landlock", "docker"), "`direct` is refused: it needs mounts")
_ASKED = Enforcement(
    "approvals.requester:Requester.decide",
    "each question: hosts, tools, packages, secrets, commands, files, commands and files of the host",
)
_INTERCEPTED = Enforcement("execution.network:SandboxNetwork.interception_for", "each cell that has a network")
_CELL_LIMIT = Enforcement("execution.admit:admit", "each program, before its cell is planned; the wall gets the result")
_LOOKED_AT = "looked at now and then, and a program that takes more is ended"
_ROOMS = "for each writable folder by itself, and for all of them as memory"

ENFORCED: Mapping[str, Enforcement] = {
    "network": _HOSTS,
    "allowed_domains": _HOSTS,
    "denied_domains": _HOSTS,
    "allow_local": _HOSTS,
    "requests": Enforcement("policy.hosts:RequestRules.allows", "each request of plain HTTP or `intercept`"),
    "intercept": _INTERCEPTED,
    "trust": _INTERCEPTED,
    "web": Enforcement("web.web:Web.search", "each search"),
    "filesystem.denyRead": _READS,
    "allow_read": _READS,
    "filesystem.denyWrite": _CHANGES,
    "filesystem.allowWrite": _CHANGES,
    "workspace": Enforcement("api.policy_options:bound_by_policy", "each sandbox and each command that is wrapped"),
    "workspace_mode": Enforcement(
        "api.policy_options:bound_by_policy", "each sandbox and each command that is wrapped", _DIRECT
    ),
    **dict.fromkeys([f"limits.{name}" for name in ("memory", "cpus", "cpu_time", "open_files", "wall")], _CELL_LIMIT),
    "limits.processes": Enforcement(
        _CELL_LIMIT.by, _CELL_LIMIT.covers, {"landlock": "as an ordinary user " + _LOOKED_AT}
    ),
    **dict.fromkeys(
        ("limits.disk", "limits.inodes"),
        Enforcement(_CELL_LIMIT.by, _CELL_LIMIT.covers, {"landlock": _LOOKED_AT, "docker": _ROOMS}),
    ),
    "limits.output": Enforcement("execution.capture:Capture.output", "each answer that has the output as one text"),
    "limits.full_output": Enforcement(
        "execution.capture:Capture.output", "all that is printed; `wrap` has a count of its own"
    ),
    "isolation": Enforcement("walls.registry:open_wall", "each sandbox, each wrapped command, each walled tool server"),
    "host": Enforcement("host.host:Host.exec", "each command of this machine; files by `host.files:find_place`"),
    "previews": Enforcement("execution.context:no_previews", "each server that a session would show"),
    "rules": _ASKED,
    "defaults": _ASKED,
}  # fmt: skip
