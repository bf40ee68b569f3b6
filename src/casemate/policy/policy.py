"""What is in force: a policy as data, each part with where it is written. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from casemate.policy.hosts import HostRule, HostRules, RequestRules

if TYPE_CHECKING:
    from ipaddress import IPv4Network

    from casemate.model.isolation import Strength
    from casemate.model.plan import Network
    from casemate.policy.host import HostTerms
    from casemate.policy.rules import Rules


class Setting(NamedTuple):
    """One value in force: ``name`` as the file has it, and ``where`` it is written."""

    name: str
    value: Any
    where: str


class Writable(NamedTuple):
    """The only folders of the caller's that are written in, by absolute paths, and ``where`` that is written."""

    folders: tuple[str, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Policy:
    """The upper bound of what a sandbox permits; None, or a name that is missing, is no bound.

    ``allowed``: hosts that may be reached without asking, None where the file does not say; ``denied`` wins over them.
    ``private``: the private networks in which hosts are. ``local_ports``: ports of this machine's own loopback.
    ``requests``: what may be asked of hosts. ``intercept``: hosts whose TLS ends at the egress proxy; ``trust``: an
    absolute path, of authorities that servers may have. ``limits``: those that are named, as numbers. ``workspace``: an
    absolute path. ``web``: who is asked in searches. ``hidden``, ``unwritable``: absolute paths and patterns that a
    cell must not see, or change, each with where it is written; ``shown``: what it is to see besides the workspace,
    which `casemate wrap` alone can do; ``writable``: None where nothing bounds what is written. ``host``: what of the
    host is open. ``previews``: servers in cells may be shown. ``written``: the rules. ``arguments``: further ones of a
    ``Sandbox``, in a file for ``Sandbox.from_file``. ``settings``: everything with where it is written, for people;
    ``warnings``: what holds otherwise than is written. ``at_least``: the weakest wall that will do.
    """

    network: Network | None = None
    allowed: tuple[HostRule, ...] | None = None
    denied: tuple[HostRule, ...] = ()
    private: tuple[tuple[HostRule, tuple[IPv4Network, ...]], ...] = ()
    local_ports: tuple[int, ...] = ()
    requests: RequestRules = field(default_factory=RequestRules)
    intercept: tuple[HostRule, ...] = ()
    trust: str | None = None
    web: Mapping[str, Any] | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    workspace: str | None = None
    workspace_mode: Literal["overlay", "direct", "review"] | None = None
    isolation: str | None = None
    at_least: Strength | None = None
    hidden: tuple[tuple[str, str], ...] = ()
    unwritable: tuple[tuple[str, str], ...] = ()
    shown: tuple[tuple[str, str], ...] = ()
    writable: Writable | None = None
    host: HostTerms | None = None
    previews: bool = True
    written: Rules | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[Setting, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def rules(self) -> Rules:
        """The rules and defaults, none where the file has none; loaded only where something is asked."""
        from casemate.policy.rules import Rules

        return self.written or Rules()

    @property
    def hosts(self) -> HostRules:
        """The hosts that may be reached where nothing narrows them."""
        if self.network == "none":
            return HostRules(denied=self.denied)
        return HostRules(self.allowed or (), self.denied, everything=self.network == "public", private=self.private)

    def where(self, name: str) -> str:
        """Where the setting ``name`` is written."""
        return next((setting.where for setting in self.settings if setting.name == name), "the policy")


NO_POLICY = Policy()
