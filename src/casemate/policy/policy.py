"""The policy in force as data, each part with its place in the file. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from casemate.policy.hosts import HostRule, HostRules, RequestRules

if TYPE_CHECKING:
    from ipaddress import IPv4Network

    from casemate.model.kinds import Strength
    from casemate.model.plan import Network
    from casemate.policy.host import HostTerms
    from casemate.policy.rules import Rules


class Setting(NamedTuple):
    name: str  # as in the file
    value: Any
    where: str  # its place in the file


class Writable(NamedTuple):
    """The caller's only writable folders, as absolute paths."""

    folders: tuple[str, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Policy:
    """The upper bound of what a sandbox permits. None, and a missing name, mean no bound."""

    network: Network | None = None
    allowed: tuple[HostRule, ...] | None = None  # hosts allowed without asking; None if the file has no list
    denied: tuple[HostRule, ...] = ()  # takes precedence over `allowed`
    private: tuple[tuple[HostRule, tuple[IPv4Network, ...]], ...] = ()  # the private networks of hosts
    local_ports: tuple[int, ...] = ()  # of this machine's own loopback
    requests: RequestRules = field(default_factory=RequestRules)
    intercept: tuple[HostRule, ...] = ()  # hosts whose TLS ends at the egress proxy
    trust: str | None = None  # absolute path of further authorities for servers
    web: Mapping[str, Any] | None = None  # search services
    limits: Mapping[str, Any] = field(default_factory=dict)  # those in the file, as numbers
    workspace: str | None = None  # absolute path
    workspace_mode: Literal["overlay", "direct", "review"] | None = None
    isolation: str | None = None
    at_least: Strength | None = None  # the weakest acceptable wall
    # Absolute paths and patterns, each with its place in the file.
    hidden: tuple[tuple[str, str], ...] = ()
    unwritable: tuple[tuple[str, str], ...] = ()
    shown: tuple[tuple[str, str], ...] = ()  # in addition to the workspace, for `casemate wrap` only
    writable: Writable | None = None
    host: HostTerms | None = None  # access to the host
    previews: bool = True
    written: Rules | None = None
    settings: tuple[Setting, ...] = ()  # everything with its place, for people
    warnings: tuple[str, ...] = ()  # settings with another effect than written
    unenforced: tuple[str, ...] = ()  # warnings about denials that some programs can avoid

    @property
    def rules(self) -> Rules:
        """The rules and defaults. Imported on demand."""
        from casemate.policy.rules import Rules

        return self.written or Rules()

    @property
    def hosts(self) -> HostRules:
        """The hosts that may be reached without further narrowing."""
        if self.network == "none":
            return HostRules(denied=self.denied)
        return HostRules(self.allowed or (), self.denied, everything=self.network == "public", private=self.private)

    def where(self, name: str) -> str:
        """Return the place of the setting ``name``."""
        return next((setting.where for setting in self.settings if setting.name == name), "the policy")

    def where_bound(self, name: str, value: float | None) -> str:
        """Return the place where the file sets the limit ``name`` to ``value``; empty if it does not."""
        return self.where(f"limits.{name}") if self.limits.get(name) == value else ""


NO_POLICY = Policy()
