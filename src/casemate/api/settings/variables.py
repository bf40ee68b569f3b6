"""What ``CASEMATE_*`` variables configure. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from casemate.api.settings.finding import named_variables
from casemate.api.settings.table import ALIASES, CONFIG, KEYS, VARIABLES, Alias, Key
from casemate.api.settings.values import from_text
from casemate.errors import InvalidArgument
from casemate.policy.policy import Setting

_ALIASES = {alias.variable: alias for alias in ALIASES}


def settings_in(environ: Mapping[str, str]) -> dict[str, Setting]:
    """The values that variables give, by key, each with the variable that it is from.

    Lists have commas between their items. Raises ``InvalidArgument`` naming the variable: for a bad value, for one that
    casemate does not know, and where two say the same.
    """
    found: dict[str, Setting] = {}
    for variable in named_variables(environ):
        if variable == CONFIG:
            continue
        key, value = _read(variable, environ[variable])
        if value is None:
            continue
        if key.name in found:
            raise InvalidArgument(variable, f"says the same as {found[key.name].where}; leave one of them out")
        found[key.name] = Setting(key.name, value, variable)
    return found


def _read(variable: str, text: str) -> tuple[Key, Any]:
    alias = _ALIASES.get(variable)
    key = KEYS[alias.key] if alias else VARIABLES.get(variable)
    if key is None:
        from casemate.model.nearest import meant

        known = [*VARIABLES, *_ALIASES, CONFIG]
        raise InvalidArgument(
            variable,
            f"is no variable that casemate knows{meant(variable, known)}",
            remediation="`casemate config` lists them. CASEMATE_SECRET_* and CASEMATE_INJECT_* are for secrets.",
        )
    try:
        return key, _translated(alias, key, text) if alias else from_text(key, text)
    except ValueError as error:
        raise InvalidArgument(variable, str(error)) from None


def _translated(alias: Alias, key: Key, text: str) -> Any:
    if text in alias.refused:
        raise ValueError(f"{text!r}: {alias.refused[text]}")
    if text in alias.words:
        word = alias.words[text]
        return None if word is None else from_text(key, word)
    return from_text(key, text + alias.unit if alias.unit and text.isascii() and text.isdigit() else text)


def aliases_of(name: str) -> Iterator[str]:
    """Other variables of the key ``name``."""
    yield from (one.variable for one in ALIASES if one.key == name and one.variable != KEYS[name].variable)
