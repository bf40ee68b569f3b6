"""A sandbox's arguments, narrowed by its policy. A policy file is read once, and checked."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from casemate.api.arguments import checked_path
from casemate.api.options import SandboxOptions
from casemate.errors import InvalidArgument
from casemate.execution.request import domains_of
from casemate.languages.places import is_system
from casemate.model.limits import Limits
from casemate.model.options import defaults_of
from casemate.model.plan import OUTPUT_NAME, Bind, Network
from casemate.policy.globs import is_pattern
from casemate.policy.hosts import LOCAL_NAME, MOST_PORT, HostRule, HostRules, exact_rule, host_rule
from casemate.policy.policy import NO_POLICY, Policy

if TYPE_CHECKING:
    from casemate.audit.log import AuditLog
    from casemate.model.plan import Entry
    from casemate.policy.document import PolicyDocument
    from casemate.policy.rules import Rule, Rulebook
    from casemate.walls.wall import Wall
    from casemate.workspace.guarding import Guard

_NETWORKS = get_args(Network)  # from the narrowest
_MODES = ("review", "overlay", "direct")  # from the narrowest
_OF_NO_WORKSPACE = "Give the workspace that contains it: a run without one has its own empty folder."
_NOT_OF_WORKSPACE = (
    "Relative paths start at the current folder. Name a file of the workspace, or copy the file there; casemate wrap "
    "can show it to a command."
)


class Bounded(NamedTuple):
    """Arguments of a sandbox, narrowed by a policy."""

    policy: Policy
    hosts: HostRules | None  # reachable from cells; None without a network
    network: Network
    limits: Limits
    workspace: str | os.PathLike[str] | None
    workspace_mode: Literal["overlay", "direct", "review"]
    isolation: str
    intercept: tuple[HostRule, ...] = ()
    trust: str | None = None
    seen: tuple[str, ...] = ()  # absolute paths that programs may read despite their usually hidden names
    denied: str = ""  # why no changes are applied to the caller's folder; empty if they are

    def guard(self, *, is_wrapped: bool = False) -> Guard:
        """What is hidden, protected and writable in folders, on every surface and behind every wall."""
        from casemate.files.protected import PROTECTED
        from casemate.workspace.guarding import HIDDEN, Guard

        is_direct = self.workspace_mode == "direct"
        return Guard(
            tuple(path for path, _ in self.policy.hidden), self.policy.unwritable,
            PROTECTED if is_wrapped and is_direct else None, HIDDEN, self.seen,
            writable=self.policy.writable, denied=self.denied, output="" if is_wrapped or is_direct else OUTPUT_NAME,
        )  # fmt: skip


def bound_by_policy(options: Mapping[str, Any], *, wraps: bool = False) -> Bounded:
    """The arguments in force for these options of a sandbox: the policy is the most that is permitted, and arguments
    only narrow it.

    An argument that is not given comes from the policy, or else is the default. Of two limits the tighter one holds. A
    value beyond the policy raises ``InvalidArgument`` naming both. ``wraps``: for a wrapped command, for which each
    path of the policy is applied separately.
    """
    values = {**defaults_of(SandboxOptions), **options}
    most, isolation = policy_from(values["policy"], values["workspace"]), values["isolation"]
    hosts: HostRules | None
    open_to, hosts = _hosts(most, values["network"], values["allowed_domains"])
    folder = _workspace(most, values["workspace"])
    visible_paths = () if wraps else _readable_names(most, folder, values["allow_read"])
    mode = values["workspace_mode"] or most.workspace_mode or ("direct" if wraps else "overlay")
    if mode not in _MODES or (wraps and mode == "review"):
        known = _MODES[1:] if wraps else _MODES
        raise InvalidArgument("workspace_mode", f"{mode!r} is not known here; choose one of {str(known)[1:-1]}")
    if most.workspace_mode is not None and _MODES.index(mode) > _MODES.index(most.workspace_mode):
        raise _beyond(most, "workspace_mode", repr(mode), repr(most.workspace_mode))
    if mode == "direct" and most.unwritable and not wraps:
        raise InvalidArgument("workspace_mode", f"'direct' protects no file, and {most.unwritable[0][1]} protects some")
    denied = _why_denied(most, folder, values["namespace"])
    if mode == "direct" and denied:
        raise InvalidArgument("workspace_mode", f"'direct' changes files at once, and {denied}")
    if most.isolation not in (None, "auto", isolation) and isolation != "auto":
        raise _beyond(most, "isolation", repr(isolation), repr(most.isolation))
    wall = isolation if isolation != "auto" else most.isolation or "auto"
    local = tuple(HostRule(LOCAL_NAME, port) for port in _local_ports(most, values["allow_local"]))
    hosts = hosts._replace(allowed=(*hosts.allowed, *local)) if open_to != "none" else None
    interceptions = _interceptions(most, values["intercept"]), _trust(most, values["trust"])
    return Bounded(
        most,
        hosts,
        open_to,
        _limits(most, values["limits"]),
        folder,
        mode,
        wall,
        *interceptions,
        visible_paths,
        denied,
    )


def rulebook(policy: Policy, log: AuditLog, namespace: str) -> Rulebook:
    """The current rules of ``policy``. The record keeps the tool definition that each rule is bound to."""
    from casemate.policy.rules import Rulebook

    def bind(rule: str, schema: str) -> None:
        log.append_if_possible("definition", "", namespace, {"rule": rule, "schema": schema})

    def read_bound() -> dict[str, str]:
        noted = [json.loads(row.detail) for row in log.rows("definition", namespace)]
        return {one["rule"]: one["schema"] for one in noted}

    return Rulebook(policy.rules, time.monotonic(), time.time, read_bound, bind)


def policy_from(policy: object, workspace: object = None) -> Policy:
    """The policy of a path, a mapping (relative paths are relative to the working folder) or None. ``workspace``: the
    folder that programs work in, if it is known, which "." is in srt's keys.

    Raises ``InvalidArgument`` that names file, line and key.
    """
    if policy is None:
        return NO_POLICY
    if isinstance(policy, Policy):
        return policy
    from casemate.policy import document, reading, srt

    if isinstance(policy, Mapping):
        return reading.policy_of(document.of_mapping(policy), os.getcwd(), home())
    if not isinstance(policy, str | os.PathLike):
        raise InvalidArgument("policy", f"{policy!r} is neither a path nor a mapping")
    read, folder = document_in(policy, "policy")
    if srt.is_srt(read):  # its paths are relative to the working folder
        folder = os.getcwd()
        if isinstance(workspace, str | os.PathLike) and workspace:
            folder = str(Path(workspace).expanduser().absolute())
    return reading.policy_of(read, folder, home())


def document_in(path: str | os.PathLike[str], argument: str) -> tuple[PolicyDocument, str]:
    """A file's document, and the file's folder. Raises ``InvalidArgument`` for ``argument``."""
    from casemate.policy import document

    if not os.fspath(path) or "\0" in str(os.fspath(path)):
        raise InvalidArgument(argument, f"{path!r} is not a path")
    place = Path(path).expanduser().absolute()
    form = document.format_of(place.name)
    return document.read_document(_content(place, argument, document.MOST_BYTES), place.name, form), str(place.parent)


def _content(place: Path, argument: str, most: int) -> bytes:
    """A file's bytes, at most one more than ``most``. Never waits for a device or a pipe."""
    try:
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise InvalidArgument(argument, f"cannot read {str(place)!r}: {getattr(error, 'strerror', error)}") from None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise InvalidArgument(argument, f"{str(place)!r} is not a regular file")
        return file.read(most + 1)


def home() -> str:
    """The user's home folder."""
    return os.path.expanduser("~")


def _hosts(most: Policy, network: Network | None, domains: Sequence[str] | None) -> tuple[Network, HostRules]:
    """The network and hosts in force. Raises ``InvalidArgument`` for those beyond the policy."""
    if network is not None and network not in _NETWORKS:
        raise InvalidArgument("network", f"{network!r} is not known; choose one of 'none', 'listed', 'public'")
    host_rules, is_listed = tuple(map(host_rule, domains_of(domains) or ())), domains is not None
    bound = most.network or ("listed" if most.allowed is not None else None)
    network_in_force: Network = network or ("listed" if is_listed and bound == "public" else bound) or "listed"
    if bound is not None and _NETWORKS.index(network_in_force) > _NETWORKS.index(bound):
        raise _beyond(most, "network", repr(network_in_force), repr(bound))
    if network_in_force == "none":
        if host_rules:
            where = f" ({most.where('network')})" if bound == "none" else ""
            raise InvalidArgument(
                "allowed_domains",
                f"network is none{where}, which permits no hosts",
                remediation="Change network there, or leave the hosts out." if where else "Leave network out.",
            )
        return network_in_force, HostRules(denied=most.denied)
    everything = network_in_force == "public"
    hosts = HostRules(most.allowed or (), most.denied, everything, most.private, is_bound=bound is not None)
    if is_listed and bound is None:
        hosts = hosts._replace(allowed=host_rules, within=(host_rules,))
    elif is_listed:
        hosts = _narrow(most, host_rules)._replace(everything=everything, is_bound=True)
    if most.written:
        _check_asked(most, hosts, "allowed_domains" if is_listed else "network")
    return network_in_force, hosts


def _narrow(most: Policy, host_rules: tuple[HostRule, ...]) -> HostRules:
    """The hosts that both ``host_rules`` and the policy allow; rules that apply at times still decide. Raises
    ``InvalidArgument`` for a host that neither the lists nor the rules name."""
    from casemate.policy.hosts import narrow_hosts

    ruled = [one.host for one in _written_rules(most) if one.kind == "egress" and one.effect == "allow" and one.host]
    rules = most.hosts._replace(allowed=tuple(dict.fromkeys((*most.hosts.allowed, *ruled))))
    for one in host_rules:
        try:
            narrow_hosts(rules, [str(one)], can_ask=False)
        except InvalidArgument:
            allowed = "every public host" if most.network == "public" else ", ".join(map(str, rules.allowed))
            raise _beyond(most, "allowed_domains", str(one), allowed or "none") from None
    return narrow_hosts(most.hosts, list(map(str, host_rules)), can_ask=True)


def _check_asked(most: Policy, hosts: HostRules, argument: str) -> None:
    """Raises ``InvalidArgument`` if an argument allows a host that a rule asks about, or denies at times."""
    from casemate.policy.rules import passed_over

    if one := passed_over(_written_rules(most), hosts):
        raise InvalidArgument(
            argument,
            f"it allows without asking what a rule of the policy asks about, or denies at times ({one.where})",
            remediation="Leave it out: arguments only narrow what the policy allows.",
        )


def _written_rules(most: Policy) -> tuple[Rule, ...]:
    return most.written.written if most.written else ()


def _local_ports(most: Policy, ports: Sequence[int] | None) -> tuple[int, ...]:
    if ports is None:
        return most.local_ports
    if isinstance(ports, str | bytes) or not isinstance(ports, Sequence):
        raise InvalidArgument("allow_local", f"{ports!r} is not a list of ports")
    for port in ports:
        if type(port) is not int or not 1 <= port <= MOST_PORT:
            raise InvalidArgument("allow_local", f"{port!r} is not a port from 1 to {MOST_PORT}")
        if most is not NO_POLICY and port not in most.local_ports:
            raise _beyond(most, "allow_local", str(port), ", ".join(map(str, most.local_ports)) or "none")
    return tuple(ports)


def _interceptions(most: Policy, hosts: Sequence[str]) -> tuple[HostRule, ...]:
    """The policy's and the given hosts. Interception needs no permission: it only narrows requests."""
    if isinstance(hosts, str | bytes) or not isinstance(hosts, Sequence):
        raise InvalidArgument("intercept", f"{hosts!r} is not a list of hosts")
    return tuple(dict.fromkeys((*most.intercept, *map(exact_rule, hosts))))


def _trust(most: Policy, path: str | os.PathLike[str] | None) -> str | None:
    if path is None:
        return most.trust
    file = str(Path(path).expanduser().absolute())
    if most.trust not in (None, file):
        raise _beyond(most, "trust", repr(file), repr(most.trust))
    return file


def _limits(most: Policy, limits: Limits | None) -> Limits:
    """The tighter value of each limit that both have; else the one that is given."""
    if limits is not None and not isinstance(limits, Limits):
        raise InvalidArgument("limits", f"{limits!r} is not a casemate.Limits")
    values = {name: getattr(limits, name) for name in limits.given} if limits else {}
    for name, bound in most.limits.items():
        values[name] = bound if values.get(name) is None else min(bound, values[name])
    return Limits(**values)


def _workspace(most: Policy, workspace: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    if workspace is None or most.workspace is None or not isinstance(workspace, str | os.PathLike):
        return workspace if workspace is not None else most.workspace
    folder, widest = Path(workspace).expanduser().resolve(), Path(most.workspace).resolve()
    reads_more = most.writable is not None and most.workspace in most.writable.folders and widest.is_relative_to(folder)
    if not (folder.is_relative_to(widest) or reads_more):
        raise _beyond(most, "workspace", repr(str(workspace)), repr(most.workspace))
    return workspace


def check_seen(most: Policy, wall: Wall, needed: Iterable[Entry]) -> None:
    """Raises ``InvalidArgument`` if the policy hides what all cells of ``wall`` see, or an interpreter ``needed``."""
    from casemate.workspace.guarding import Guard

    if shown := wall.shown_paths():  # empty if its cells have their own system files
        own = [one.source for one in needed if isinstance(one, Bind) and not (one.device or is_system(one.source))]
        for text, where in most.hidden:
            if path := Guard(hidden=(text,)).find_seen(shown, own):
                why = "every cell sees some of the system, and the packages of its interpreter, whole"
                raise InvalidArgument("policy", f"{where}: {text} cannot be hidden from programs: {why} ({path})")


def _why_denied(most: Policy, workspace: str | os.PathLike[str] | None, namespace: str) -> str:
    """The rule or default about files that denies changes of the caller's folder; empty if none does."""
    if most is NO_POLICY:
        return ""
    from casemate.model.approval import Question

    question = Question("files", "", {"folder": str(workspace)}, namespace)
    found = {rule.effect: rule.where for rule in _written_rules(most) if rule.covers(question)}
    effect, where = most.rules.default("files") if most.written and not found else ("deny", found.get("deny", ""))
    return f"the policy denies changes of files ({where})" if effect == "deny" and where else ""


def _readable_names(
    most: Policy, workspace: str | os.PathLike[str] | None, paths: Sequence[str | os.PathLike[str]] | None
) -> tuple[str, ...]:
    """Files of the workspace that programs may read despite their usually hidden names: ``paths``, or the policy's if
    that is None. Raises ``InvalidArgument`` for files elsewhere or beyond the policy."""
    if isinstance(paths, str | bytes) or not isinstance(paths, Sequence | None):
        raise InvalidArgument("allow_read", f"{paths!r} is not a list of paths")
    named_paths = [checked_path("allow_read", path) for path in paths or ()]
    policy_paths = {os.path.realpath(path) for path, _ in most.shown}
    for path in named_paths:
        if policy_paths and os.path.realpath(path) not in policy_paths:
            raise _beyond(most, "allow_read", repr(str(path)), ", ".join(path for path, _ in most.shown))
    outer = most.workspace  # the given workspace may be a folder in it
    entries = [
        ("policy", path, f"{where}: ")
        for path, where in most.shown
        if workspace is None or _is_in(path, workspace) or outer is None or not _is_in(path, outer)
    ]
    entries += [("allow_read", str(path), "") for path in named_paths]
    for argument, text, where in entries:
        if is_pattern(text):
            raise InvalidArgument(argument, f"{where}{text}: a pattern cannot be shown; name the file")
        if workspace is None or not _is_in(text, workspace):
            raise InvalidArgument(
                argument,
                f"{where}{text}: files outside the workspace cannot be shown to a program",
                remediation=_OF_NO_WORKSPACE if workspace is None else _NOT_OF_WORKSPACE,
            )
    return tuple(text for _, text, _ in entries) if paths is None else tuple(map(str, named_paths))


def _is_in(path: str, folder: str | os.PathLike[str]) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(Path(folder).expanduser().resolve())


def _beyond(most: Policy, argument: str, value: str, bound: str) -> InvalidArgument:
    return InvalidArgument(
        argument,
        f"{value} is beyond the policy, which allows {bound} ({most.where(argument)})",
        remediation="Arguments only narrow what the policy allows: change the policy, or leave the argument out.",
    )
