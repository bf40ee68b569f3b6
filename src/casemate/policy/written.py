"""Rules as people write them: ``allow: tool`` and what it is about. What is too wide is refused. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, get_args

from casemate.errors import InvalidArgument
from casemate.model.approval import Effect, Kind
from casemate.policy.commands import Command, command
from casemate.policy.hosts import denied_rule, host_rule
from casemate.policy.networks import private_networks
from casemate.policy.packages import Package, package
from casemate.policy.patterns import Pattern, is_plain_text, pattern
from casemate.policy.rules import Rule

KINDS: tuple[Kind, ...] = get_args(Kind)
_EFFECTS: tuple[Effect, ...] = get_args(Effect)

# What a rule of each kind can be about, beside ``namespace``, ``reason`` and, where it allows, a budget.
_ABOUT: Mapping[Kind, tuple[str, ...]] = {
    "tool": ("server", "tool", "schema", "arguments"),
    "egress": ("host", "addresses"),
    "package": ("package", "language"),
    "shell": ("arguments",),
    "host": ("command",),
    "files": ("arguments",),
    "server": ("server", "arguments"),
    "plan": (),
    "elicitation": ("server",),
}
# What a rule that allows must say: without it, it would allow whatever comes.
_NEEDED: Mapping[Kind, tuple[str, ...]] = {
    "tool": ("server", "tool", "arguments"),
    "egress": ("host",),
    "package": ("package",),
    "host": ("command",),
    "files": ("arguments",),
    "server": ("server", "arguments"),
}
_FOR_PERSONS = ("plan", "elicitation")
_NO_ANY = ("files", "shell", "server")  # any file, any line, any way to start it: not by one word
_ANYWHERE = ("namespace", "reason")
_BUDGET = ("uses", "lasts", "expires")
_AT_TIMES = (*_BUDGET, "namespace")  # not of a rule with addresses: they are looked at where names are dialled
_LASTS = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?) ?(?P<unit>s|m|h|d)\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SCHEMA = re.compile(r"[0-9a-f]{64}\Z")
_MOST_USES = 10**9
_MOST_NAME = 200


def rule(given: Mapping[str, Any], where: str) -> Rule:
    """The rule that ``given`` (of the policy file) says; ``where`` it stands.

    Raises ``InvalidArgument`` that begins with ``where`` and names the key: for keys that are not of such a rule,
    values that are none, and a rule that allows and says less than it must, or anything.
    """
    effect, kind = _effect_and_kind(given, where)
    narrowly = effect == "allow"
    _check_keys(given, effect, kind, where)

    def read(key: str, reader: Callable[[Any], Any]) -> Any:
        if key not in given:
            return None
        try:
            return reader(given[key])
        except InvalidArgument as error:
            raise InvalidArgument("policy", f"{where}: {key}: {error.problem}") from None
        except ValueError as error:
            raise InvalidArgument("policy", f"{where}: {key}: {error}") from None

    language = given.get("language", "python")
    return Rule(
        effect=effect,
        kind=kind,
        server=read("server", _name) or "",
        tool=read("tool", _name) or "",
        schema=read("schema", _schema) or "",
        host=read("host", lambda value: host_rule(value, "host") if narrowly else denied_rule(value, "host")),
        addresses=read("addresses", private_networks) or (),
        package=read("package", lambda value: _package(value, language)),
        command=read("command", lambda value: _command(value, narrowly)),
        arguments=read("arguments", lambda value: _arguments(value, kind, narrowly)),
        namespace=read("namespace", _name),
        uses=read("uses", _uses),
        lasts=read("lasts", seconds) or float("inf"),
        until=read("expires", _moment) or float("inf"),
        reason=read("reason", _reason) or "",
        where=where,
    )


def seconds(value: Any) -> float:
    """A length of time: a number of seconds, or e.g. ``"10m"`` (s, m, h, d). Raises ``ValueError``."""
    found = _LASTS.match(value) if isinstance(value, str) else None
    number = float(found["number"]) * _SECONDS[found["unit"]] if found else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < 10**10:
        raise ValueError(f"{value!r} is no length of time; write a number of seconds, or e.g. '10m'")
    return float(number)


def _effect_and_kind(given: Mapping[str, Any], where: str) -> tuple[Effect, Kind]:
    effects = [effect for effect in _EFFECTS if effect in given]
    if len(effects) != 1:
        raise InvalidArgument("policy", f"{where}: a rule has one of allow, deny and ask, such as 'allow: tool'")
    kind = given[effects[0]]
    if kind not in KINDS:
        raise InvalidArgument("policy", f"{where}: {effects[0]}: {kind!r} is no kind; choose one of {', '.join(KINDS)}")
    return effects[0], kind


def _check_keys(given: Mapping[str, Any], effect: Effect, kind: Kind, where: str) -> None:
    known = (effect, *_ABOUT[kind], *_ANYWHERE, *(_BUDGET if effect == "allow" else ()))
    for key in given:
        if key in _BUDGET and effect != "allow":
            raise InvalidArgument("policy", f"{where}: {key}: only a rule that allows has a budget or an end")
        if key not in known:
            raise InvalidArgument(
                "policy", f"{where}: {key!r} is not for rules of kind {kind}; they know {', '.join(known[1:])}"
            )
        if key == "addresses" and effect != "allow":
            raise InvalidArgument("policy", f"{where}: {key}: only a rule that allows a host says where it is")
        if key in _AT_TIMES and "addresses" in given:
            raise InvalidArgument("policy", f"{where}: {key}: a rule with addresses holds always, and for all")
    if effect != "allow":
        if kind == "egress" and "host" not in given and effect == "deny":
            raise InvalidArgument("policy", f"{where}: denies every host; write 'network: none'")
        return
    if kind in _FOR_PERSONS:
        raise InvalidArgument("policy", f"{where}: a rule cannot answer a {kind}; only a person can")
    for key in _NEEDED.get(kind, ()):
        if key not in given:
            hint = " (arguments: any, or {} for none)" if (kind, key) == ("tool", "arguments") else ""
            raise InvalidArgument("policy", f"{where}: too wide: 'allow: {kind}' must say {key}{hint}")


def _arguments(value: Any, kind: Kind, narrowly: bool) -> Mapping[str, Pattern] | None:
    if value == "any":
        if narrowly and kind in _NO_ANY:
            raise ValueError(f"any is too wide for 'allow: {kind}'; give a pattern for each argument")
        return None
    if not isinstance(value, Mapping):
        raise ValueError("write 'any', {} for none at all, or a value or pattern for each by its name")
    return {name: _argument(name, one, narrowly) for name, one in value.items()}


def _argument(name: str, value: Any, narrowly: bool) -> Pattern:
    try:
        return pattern(value, narrowly=narrowly)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _name(value: Any) -> str:
    """An exact name: of a server, a tool, a namespace."""
    sound = isinstance(value, str) and value == value.strip() and 0 < len(value) <= _MOST_NAME
    if not sound or not is_plain_text(value):
        raise ValueError(f"{value!r} is no name of 1 to {_MOST_NAME} characters that show")
    if set(value) & set("*?["):
        raise ValueError(f"{value!r}: names are exact here; write one rule for each")
    return str(value)


def _schema(value: Any) -> str:
    if not isinstance(value, str) or not _SCHEMA.match(value):
        raise ValueError(f"{value!r} is no SHA-256 in hexadecimal")
    return value


def _package(value: Any, language: Any) -> Package:
    if language not in ("python", "node"):
        raise ValueError(f"language {language!r} is not known; choose python or node")
    found = package(value, language)
    if found is None:
        example = "'numpy' or 'numpy==2.1.0'" if language == "python" else "'left-pad' or 'left-pad@1.3.0'"
        raise ValueError(f"{value!r} is no package's exact name; write {example}")
    return found


def _command(value: Any, narrowly: bool) -> Command:
    return command(value, narrowly=narrowly)


def _uses(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_USES:
        raise ValueError(f"{value!r} is no whole number from 1 on")
    return value


def _moment(value: Any) -> float:
    """A time as seconds since 1970 (Unix time)."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is no time; write one such as '2026-01-31T18:00:00Z' (RFC 3339)") from None
    if moment.tzinfo is None:
        raise ValueError(f"{value!s} has no time zone; write one such as '2026-01-31T18:00:00Z'")
    return moment.timestamp()


def _reason(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 1000:
        raise ValueError("is a text of at most 1000 characters")
    return value
