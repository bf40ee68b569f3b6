"""``casemate config``: each value and where it came from; whether a file is sound; what there is to configure."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from cyclopts import App

from casemate.api.keys import KEYS, SECTIONS, Key
from casemate.api.keys_page import shown, without_secrets
from casemate.api.settings import Settings, settings_in_file, settings_of
from casemate.errors import InvalidArgument
from casemate.policy.policy import Setting
from casemate.surfaces.cli.answers import print_json, print_sound
from casemate.surfaces.cli.parameters import Output
from casemate.surfaces.cli.terminal.words import say

app = App(name="config", help="Show what is configured, and where each value came from.", result_action="return_value")


@app.default
def show(key: str | None = None, /, *, output: Output = "text") -> int:
    """Print each value that is in force, and where it came from: the default, a line of a file, or a variable.

    casemate config limits.memory

    Parameters
    ----------
    key
        One key, whose value alone is printed, or a section: policy, limits, sandbox, service or serve.
    output
        text (unless given), or json: one JSON object.
    """
    settings = settings_of(os.environ)
    for warning in settings.policy.warnings:
        say(warning)
    found = list(settings.in_force())
    if key is not None:
        found = _chosen(found, key)
    if output == "json":
        print_json(_document(settings, found))
    elif key in KEYS:
        from casemate.surfaces.cli.terminal.inert import visible

        sys.stdout.write(visible(shown(*_pair(found[0]))) + "\n")
    else:
        sys.stdout.write("\n".join(_lines(settings, found)) + "\n")
    return 0


@app.command
def check(file: str, /, *, output: Output = "text") -> int:
    """Read a configuration file and say whether it is sound; nothing runs.

    Parameters
    ----------
    file
        The file: YAML, TOML or JSON, by its ending.
    output
        text (unless given), or json: how many settings and rules it has, and its warnings.
    """
    settings = settings_in_file(file)
    list(settings.in_force())
    told = len(settings.given) + len(settings.policy.settings) - _both(settings)
    found = settings.policy
    return print_sound(told, len(found.rules.written), found.warnings, is_json=output == "json")


@app.command
def reference() -> int:
    """Print everything that can be configured, as Markdown: keys, their values, defaults and variables."""
    from casemate.api.keys_page import tables

    sys.stdout.write(tables())
    return 0


def _both(settings: Settings) -> int:
    """Values that are counted among the policy's and by themselves."""
    return sum(one.name in settings.given for one in settings.policy.settings)


def _pair(found: tuple[Key, Setting]) -> tuple[Key, Any]:
    return found[0], found[1].value


def _chosen(found: list[tuple[Key, Setting]], name: str) -> list[tuple[Key, Setting]]:
    """The key, or those of the section, of that name. Raises ``InvalidArgument``."""
    names = {name} if name in KEYS else {key.name for key in SECTIONS.get(name, ())}
    if not names:
        from casemate.model.foreign import suggest

        raise InvalidArgument(
            "key",
            f"{name!r} is no key that casemate knows{suggest(name, [*KEYS, *SECTIONS])}",
            remediation="`casemate config` lists them.",
        )
    return [(key, setting) for key, setting in found if key.name in names]


def _lines(settings: Settings, found: list[tuple[Key, Setting]]) -> Iterator[str]:
    from casemate.surfaces.cli.answers import aligned
    from casemate.surfaces.cli.terminal.inert import visible

    yield f"file  {visible(settings.file or 'none')}"
    for section, keys in SECTIONS.items():
        if rows := [(one.name, shown(key, one.value), one.where) for key, one in found if key in keys]:
            yield f"\n{section}"
            yield from aligned(rows)


def _document(settings: Settings, found: list[tuple[Key, Setting]]) -> dict[str, Any]:
    values = {key.name: {"value": without_secrets(key.name, one.value), "source": one.where} for key, one in found}
    return {"file": settings.file, "values": values}
