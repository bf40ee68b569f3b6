"""Hosts that are allowed without asking, held against rules that ask about them: both cannot hold. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from casemate.policy.hosts import LOCAL_NAME, HostRule, HostRules

if TYPE_CHECKING:
    from casemate.policy.rules import Rule


def passed_over(rules: Iterable[Rule], hosts: HostRules) -> Rule | None:
    """The first of ``rules`` that asks about a host that ``hosts`` allow, or denies it only at times or to some: nobody
    would be asked, and no rule looked at. None where there is no such rule."""
    return next((one for one in rules if _is_about_some(one, hosts)), None)


def _is_about_some(one: Rule, hosts: HostRules) -> bool:
    if one.kind != "egress" or one.effect == "allow" or (one.effect == "deny" and not one.conditional):
        return False
    if hosts.everything:
        return True
    if one.host is None:  # what is asked about every host is not meant for services of this machine
        return any(other.host != LOCAL_NAME for other in hosts.allowed)
    return any(_meet(one.host, other) for other in hosts.allowed)


def _meet(one: HostRule, other: HostRule) -> bool:
    """Whether some name is meant by both."""
    names = (one.host.removeprefix("*."), other.host.removeprefix("*."))
    return one.host == other.host or one.names(names[1]) or other.names(names[0])
