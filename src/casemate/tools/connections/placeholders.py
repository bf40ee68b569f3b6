"""``${NAME}`` in the definition of a server: found when it is read, filled in on the host when it is connected. Pure.

A value comes from the vault first, then from a variable of the host that the definition allows by name, then from the
default in ``${NAME:-default}``. Nothing else of the host's environment can be reached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from casemate.errors import InvalidArgument

_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]{0,199})(?::-([^{}$]*))?\}")
_SHOWN = 80  # characters of a wrong text in an error

Look = Callable[[str], str | None]  # a name to the value in the vault, or None


@dataclass(frozen=True, slots=True)
class Sources:
    """Where values come from. ``secret``: the vault's values by name; ``variables``: the host's environment, of which
    only the names in ``allowed`` are looked at."""

    secret: Look
    variables: Mapping[str, str]
    allowed: Collection[str] = ()


class Expansion:
    """Fills in the texts of one definition, and remembers which secrets that took."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.secrets: dict[str, str] = {}

    def public(self, text: str, argument: str) -> str:
        """``text`` with its values, where others can read it: arguments of a process, a URL.

        Raises ``InvalidArgument`` for a name without value, and for a secret of the vault, which would be seen there.
        """
        return _PLACEHOLDER.sub(lambda found: self._value(found, argument, is_private=False), text)

    def private(self, text: str, argument: str) -> str:
        """``text`` with its values, for a variable or a header. Raises ``InvalidArgument`` for a name without value."""
        return _PLACEHOLDER.sub(lambda found: self._value(found, argument, is_private=True), text)

    def _value(self, found: re.Match[str], argument: str, *, is_private: bool) -> str:
        name, default = found[1], found[2]
        secret = self._sources.secret(name)
        if secret is not None:
            if not is_private:
                raise InvalidArgument(
                    argument,
                    f"${{{name}}} is a secret, and everybody on this machine or on the way can read it there",
                    remediation="Give it to the server as a variable in 'env', or in 'headers'.",
                )
            self.secrets[name] = secret
            return secret
        if name in self._sources.allowed and name in self._sources.variables:
            return self._sources.variables[name]
        if default is not None:
            return default
        advice = (
            f'Put it into the vault (casemate vault set {name}), or allow the variable with "variables": ["{name}"].'
        )
        raise InvalidArgument(argument, f"${{{name}}} has no value", remediation=advice)


def check_placeholders(text: str, argument: str) -> str:
    """``text`` when every ``${`` in it begins a placeholder. Raises ``InvalidArgument``."""
    if "${" in _PLACEHOLDER.sub("", text):
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise InvalidArgument(argument, f"{shown!r} holds a '${{' that is neither ${{NAME}} nor ${{NAME:-default}}")
    return text


def has_placeholder(text: str) -> bool:
    """Whether something of it is filled in later."""
    return "${" in text
