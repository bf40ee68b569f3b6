"""A run's own list of hosts within the sandbox's: it narrows, and never widens."""

from __future__ import annotations

from collections.abc import Sequence

from casemate.errors import InvalidArgument
from casemate.policy.hosts import LOCAL_NAME, USUAL_PORTS, HostRule, HostRules, may_be_public, narrowing_rule


def narrowed(hosts: HostRules, wanted: Sequence[str] | None, *, can_ask: bool) -> HostRules:
    """What a run that names the domains ``wanted`` may reach of ``hosts``; None is all of it.

    Raises ``InvalidArgument`` for a domain that ``hosts`` do not allow, unless somebody ``can_ask`` for it. About
    services of this machine nobody is asked.
    """
    if wanted is None:
        return hosts
    rules = [narrowing_rule(text) for text in wanted]
    found = [part for rule in rules for part in _parts(hosts, rule)]
    missing = [rule for rule in rules if not _parts(hosts, rule)]
    refused = [rule for rule in missing if rule.host == LOCAL_NAME or not can_ask]
    if refused:
        first = refused[0]
        wider = f"allow_local=[{first.port}]" if first.host == LOCAL_NAME else f"allowed_domains=[{str(first)!r}]"
        raise InvalidArgument(
            "allowed_domains",
            f"{str(first)!r} is not among the domains of the sandbox; a run's own list only narrows that",
            remediation=f"Allow it where the sandbox is made: Sandbox({wider}).",
        )
    return hosts._replace(allowed=tuple(dict.fromkeys(found)), everything=False, within=(*hosts.within, tuple(rules)))


def _parts(hosts: HostRules, wanted: HostRule) -> list[HostRule]:
    """The rules that are in both: the narrower host, the narrower port."""
    public = hosts.everything and may_be_public(wanted.host.removeprefix("*."))
    allowed = (*hosts.allowed, *((HostRule(wanted.host),) if public else ()))
    both = ((_narrower_host(rule.host, wanted.host), _narrower_port(rule.port, wanted.port)) for rule in allowed)
    return [HostRule(host, port or None) for host, port in both if host and port is not None]


def _narrower_host(one: str, other: str) -> str:
    """Empty where they have no name in common."""
    for narrow, wide in ((one, other), (other, one)):
        if narrow == wide or (
            wide.startswith("*.") and narrow.removeprefix("*").endswith(wide[1:]) and narrow != wide[2:]
        ):
            return narrow
    return ""


def _narrower_port(one: int | None, other: int | None) -> int | None:
    """0 for the usual ports, None where they have none in common."""
    if one == other:
        return one or 0
    given = one if other is None else other
    return given if None in (one, other) and given in USUAL_PORTS else None
