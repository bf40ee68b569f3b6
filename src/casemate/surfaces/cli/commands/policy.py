"""``casemate policy``: what is in force, and from which line; whether a file is sound."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from cyclopts import App

from casemate.api.policy_options import policy_in
from casemate.api.settings import settings_of
from casemate.model.approval import Kind
from casemate.model.limits import Limits, format_size
from casemate.policy.policy import Policy
from casemate.policy.rules import DEFAULTS, Rule, Rules
from casemate.surfaces.cli.answers import print_json, print_sound
from casemate.surfaces.cli.parameters import AsJson, Output

_BUILT_IN = "built in"
_EVER = float("inf")
_SIZES = ("limits.memory", "limits.output", "limits.full_output", "limits.disk")

policy = App(name="policy", help="Show what a policy permits, and from which line.", result_action="return_value")


@policy.command
def show(*, file: str | None = None, output: Output = "text", as_json: AsJson = False) -> int:
    """Print what is in force: each setting, each rule and each default, with the line that it comes from.

    Parameters
    ----------
    file
        The policy file. Unless given, what is configured: that of CASEMATE_POLICY, or of the user's configuration file;
        else what is built in.
    output
        text (unless given), or json: the same as one JSON object.
    """
    found = policy_in(file) if file else settings_of(os.environ).policy
    if as_json or output == "json":
        print_json(_document(found))
    else:
        sys.stdout.write("\n".join(_lines(found)) + "\n")
    return 0


@policy.command
def check(file: str, /, *, output: Output = "text") -> int:
    """Read a policy file and say whether it is sound; nothing runs.

    Parameters
    ----------
    file
        The policy file.
    output
        text (unless given), or json: how many settings and rules it has, and its warnings.
    """
    found = policy_in(file)
    return print_sound(len(found.settings), len(found.rules.written), found.warnings, is_json=output == "json")


def _lines(found: Policy) -> Iterator[str]:
    from casemate.surfaces.cli.answers import aligned
    from casemate.surfaces.cli.terminal.inert import visible

    yield "settings"
    yield from aligned((name, _shown(name, value), where) for name, value, where in _settings(found))
    if found.rules.written:
        yield "\nrules: deny wins over ask, and ask over allow"
        yield from aligned((one.effect, one.kind, _about(one), _bounds(one), one.where) for one in found.rules.written)
    yield "\nwithout a rule"
    yield from aligned((kind, *_default(found.rules, kind)) for kind in DEFAULTS)
    if found.warnings:
        yield "\nwarnings"
        yield from (f"  {visible(warning)}" for warning in found.warnings)


def _settings(found: Policy) -> Iterator[tuple[str, Any, str]]:
    named = {setting.name for setting in found.settings}
    yield from ((setting.name, setting.value, setting.where) for setting in found.settings)
    if "network" not in named:
        yield "network", "listed", _BUILT_IN
    limits = Limits()
    for name in Limits.__dataclass_fields__:
        if f"limits.{name}" not in named:
            yield f"limits.{name}", getattr(limits, name), _BUILT_IN


def _default(rules: Rules, kind: Kind) -> tuple[str, str]:
    effect, where = rules.default(kind)
    return effect, _BUILT_IN if where == "default" else where


def _about(one: Rule) -> str:
    """What a rule is about, on one line."""
    named = (
        ("server", one.server), ("tool", one.tool), ("schema", one.schema[:12]), ("host", one.host),
        ("at", ", ".join(map(str, one.addresses))),
        ("package", one.package), ("command", one.command), ("namespace", one.namespace),
    )  # fmt: skip
    parts = [f"{name} {value}" for name, value in named if value]
    if one.arguments is not None:
        each = ", ".join(f"{name}: {pattern}" for name, pattern in one.arguments.items())
        parts.append(f"arguments {each or 'none'}")
    elif one.kind == "tool":
        parts.append("arguments any")
    return "; ".join(parts) or "all"


def _bounds(one: Rule) -> str:
    """A rule's budget and end, on one line."""
    parts = [] if one.uses is None else [f"{one.uses} times"]
    if one.lasts < _EVER:
        parts.append(f"for {one.lasts:g} s")
    if one.until < _EVER:
        from datetime import UTC, datetime

        parts.append(f"until {datetime.fromtimestamp(one.until, UTC).isoformat()}")
    return ", ".join(parts)


def _shown(name: str, value: Any) -> str:
    if name in _SIZES and isinstance(value, int):
        return format_size(value)
    return "none" if value is None else str(value)


def _document(found: Policy) -> dict[str, Any]:
    return {
        "settings": [{"name": name, "value": value, "where": where} for name, value, where in _settings(found)],
        "rules": [
            {"effect": one.effect, "kind": one.kind, "about": _about(one), "bounds": _bounds(one), "where": one.where}
            for one in found.rules.written
        ],
        "defaults": {
            kind: dict(zip(("effect", "where"), _default(found.rules, kind), strict=True)) for kind in DEFAULTS
        },
        "warnings": list(found.warnings),
    }
