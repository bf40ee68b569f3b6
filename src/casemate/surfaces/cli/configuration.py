"""``casemate config`` and ``policy``: what is in force, where it came from, and whether a file is sound."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from cyclopts import App

from casemate.api.config_files import why_none
from casemate.api.keys import KEYS, SECTIONS, Key, foreign_variables
from casemate.api.keys_page import format_value, without_secrets
from casemate.api.policy_options import policy_from
from casemate.api.settings import Settings, settings_in_file, settings_of
from casemate.errors import InvalidArgument
from casemate.model.approval import Kind
from casemate.model.limits import Limits, format_size
from casemate.policy.policy import Policy, Setting
from casemate.policy.rules import DEFAULTS, Rule, Rules
from casemate.surfaces.cli.answers import print_json, print_sound
from casemate.surfaces.cli.failures import say
from casemate.surfaces.cli.parameters import AsJson, Output

config = App(
    name="config", help="Show the configuration, and where each value came from.", result_action="return_value"
)


@config.default
def show(key: str | None = None, /, *, output: Output = "text") -> int:
    """Print each value in force, and where it came from: the default, a line of a file, or a variable.

    casemate config limits.memory

    Args:
        key: A key, to print only its value, or a section: policy, limits, sandbox, service or serve.
    """
    settings = settings_of(os.environ)
    for warning in (*settings.policy.warnings, *foreign_variables(os.environ)):
        say(warning)
    found = list(settings.in_force())
    if key is not None:
        found = _choose_values(found, key)
    if output == "json":
        print_json(_document(settings, found))
    elif key in KEYS:
        from casemate.surfaces.cli.inert import visible

        sys.stdout.write(visible(format_value(found[0][0], found[0][1].value)) + "\n")
    else:
        sys.stdout.write("\n".join(_lines(settings, found)) + "\n")
    return 0


@config.command
def check(file: str, /, *, output: Output = "text") -> int:
    """Check a configuration file; nothing runs.

    Args:
        file: The file: YAML, TOML or JSON, by its ending.
    """
    settings = settings_in_file(file)
    list(settings.in_force())
    both = sum(one.name in settings.given for one in settings.policy.settings)
    count = len(settings.given) + len(settings.policy.settings) - both
    found = settings.policy
    return print_sound(count, len(found.rules.written), found.warnings, is_json=output == "json")


@config.command
def reference() -> int:
    """Print all configuration keys as Markdown, with their values, defaults and variables."""
    from casemate.api.keys_page import tables

    sys.stdout.write(tables())
    return 0


def _choose_values(found: list[tuple[Key, Setting]], name: str) -> list[tuple[Key, Setting]]:
    names = {name} if name in KEYS else {key.name for key in SECTIONS.get(name, ())}
    if not names:
        from casemate.model.foreign import suggest

        raise InvalidArgument(
            "KEY",
            f"{name!r} is not a known key{suggest(name, [*KEYS, *SECTIONS])}",
            remediation="`casemate config` lists them.",
        )
    return [(key, setting) for key, setting in found if key.name in names]


def _lines(settings: Settings, found: list[tuple[Key, Setting]]) -> Iterator[str]:
    from casemate.surfaces.cli.answers import align_columns
    from casemate.surfaces.cli.inert import visible

    yield f"file  {visible(settings.file or f'none: {why_none(os.environ)}')}"
    for section, keys in SECTIONS.items():
        if rows := [(one.name, format_value(key, one.value), one.where) for key, one in found if key in keys]:
            yield f"\n{section}"
            yield from align_columns(rows)


def _document(settings: Settings, found: list[tuple[Key, Setting]]) -> dict[str, Any]:
    values = {key.name: {"value": without_secrets(key.name, one.value), "source": one.where} for key, one in found}
    return {"file": settings.file, "values": values}


_BUILT_IN = "built in"
_EVER = float("inf")

policy = App(name="policy", help="Show what a policy permits, and from which line.")


@policy.command(name="show")
def show_policy(*, file: str | None = None, output: Output = "text", as_json: AsJson = False) -> int:
    """Print each setting, rule and default in force, with the line that it comes from.

    Args:
        file: The policy file. Default: the configured one, from CASEMATE_POLICY or the user's configuration file, else
            the built-in policy.
    """
    found = policy_from(file) if file else settings_of(os.environ).policy
    if as_json or output == "json":
        print_json(_policy_document(found))
    else:
        sys.stdout.write("\n".join(_policy_lines(found)) + "\n")
    return 0


@policy.command(name="check")
def check_policy(file: str, /, *, output: Output = "text") -> int:
    """Check a policy file; nothing runs.

    casemate policy check policy.yaml
    """
    found = policy_from(file)
    return print_sound(len(found.settings), len(found.rules.written), found.warnings, is_json=output == "json")


def _policy_lines(found: Policy) -> Iterator[str]:
    from casemate.surfaces.cli.answers import align_columns
    from casemate.surfaces.cli.inert import visible

    yield "settings"
    yield from align_columns((name, _format_value(name, value), where) for name, value, where in _settings(found))
    if found.rules.written:
        yield "\nrules: deny wins over ask, and ask over allow"
        yield from align_columns(
            (one.effect, one.kind, _about(one), _bounds(one), one.where) for one in found.rules.written
        )
    yield "\nwithout a rule"
    yield from align_columns((kind, *_default(found.rules, kind)) for kind in DEFAULTS)
    if found.warnings:
        yield "\nwarnings"
        yield from (f"  {visible(warning)}" for warning in found.warnings)


def _settings(found: Policy) -> Iterator[tuple[str, Any, str]]:
    named = {setting.name for setting in found.settings}
    yield from ((one.name, without_secrets(one.name, one.value), one.where) for one in found.settings)
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
    named = (
        ("server", one.server), ("tool", one.tool), ("schema", one.schema[:12]), ("host", one.host),
        ("at", ", ".join(map(str, one.addresses))),
        ("package", one.package), ("with", "what it needs" if one.with_dependencies else ""),
        ("command", one.command), ("namespace", one.namespace),
    )  # fmt: skip
    parts = [f"{name} {value}" for name, value in named if value]
    if one.arguments is not None:
        each = ", ".join(f"{name}: {pattern}" for name, pattern in one.arguments.items())
        parts.append(f"arguments {each or 'none'}")
    elif one.kind == "tool":
        parts.append("arguments any")
    return "; ".join(parts) or "all"


def _bounds(one: Rule) -> str:
    parts = [] if one.uses is None else [f"{one.uses} times"]
    if one.lasts < _EVER:
        parts.append(f"for {one.lasts:g} s")
    if one.until < _EVER:
        from datetime import UTC, datetime

        parts.append(f"until {datetime.fromtimestamp(one.until, UTC).isoformat()}")
    return ", ".join(parts)


def _format_value(name: str, value: Any) -> str:
    if name in KEYS and KEYS[name].form == "size" and isinstance(value, int):
        return format_size(value)
    return "none" if value is None else str(value)


def _policy_document(found: Policy) -> dict[str, Any]:
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
