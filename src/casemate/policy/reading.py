"""A document into the policy that it says: every value checked, and each with where it is written. Pure.

Rules are read as people write them: ``allow: tool`` and what it is about. What is too wide is refused.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn, get_args

from casemate.errors import InvalidArgument
from casemate.model.addresses import overlaps, private_networks
from casemate.model.approval import Effect, Kind
from casemate.model.limits import Limits
from casemate.policy.document import Path, PolicyDocument
from casemate.policy.host import HostRoot, HostTerms
from casemate.policy.hosts import (
    LOCAL_NAME,
    HostRule,
    HostRules,
    RequestRule,
    RequestRules,
    denied_rule,
    exact_rule,
    host_rule,
)
from casemate.policy.keys import ARGUMENTS_ONLY, IsolationKeys, SandboxKeys, checked_keys
from casemate.policy.patterns import Pattern, command, pattern
from casemate.policy.policy import Policy, Setting
from casemate.policy.rules import DEFAULTS, PACKAGE_LANGUAGES, Package, Rule, Rules, package, passed_over
from casemate.policy.srt import Translation, is_srt, translate_settings
from casemate.visible import is_plain

KINDS: tuple[Kind, ...] = get_args(Kind)
_EFFECTS: tuple[Effect, ...] = get_args(Effect)

# What a rule of each kind can be about, beside ``namespace``, ``reason`` and, where it allows, a budget.
_ABOUT: Mapping[Kind, tuple[str, ...]] = {
    "tool": ("server", "tool", "schema", "arguments"),
    "egress": ("host", "addresses"),
    "package": ("package", "language", "with_dependencies"),
    "shell": ("arguments",),
    "process": ("arguments",),
    "host": ("command", "options"),
    "files": ("arguments",),
    "server": ("server", "arguments"),
    "plan": (),
    "elicitation": ("server",),
    "secret": ("arguments",),
}
# What a rule that allows must say: without it, it would allow whatever comes.
_NEEDED: Mapping[Kind, tuple[str, ...]] = {
    "tool": ("server", "tool", "arguments"),
    "egress": ("host",),
    "package": ("package",),
    "host": ("command",),
    "files": ("arguments",),
    "server": ("server", "arguments"),
    "secret": ("arguments",),
}
_FOR_PERSONS = ("plan", "elicitation")
_NO_ANY = ("files", "shell", "process", "server", "secret")  # any file, line, program or secret: not by one word
_KEPT_IN_STEPS: Mapping[Kind, str] = {
    "shell": "holds in steps of Python and Shell sessions alone",
    "process": "holds in steps of Python sessions alone",
}
_ELSEWHERE = "one-shot runs, Node and wrapped commands start programs in their cells all the same"
_ANYWHERE = ("namespace", "reason")
_BUDGET = ("uses", "lasts", "expires")
_AT_TIMES = (*_BUDGET, "namespace")  # not of a rule with addresses: they are looked at where names are dialled
_LASTS = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?) ?(?P<unit>s|m|h|d)\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SCHEMA = re.compile(r"[0-9a-f]{64}\Z")
_MOST_USES = 10**9
_MOST_NAME = 200
_OF_KERNEL = ("proc", "sys", "dev")
_VARIABLE = re.compile(r"(?!LD_|GIT_|PYTHON|NODE_|BASH_|PERL)[A-Z][A-Z0-9_]{0,99}\Z")  # not what loads or starts code


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
        with_dependencies=given.get("with_dependencies", False),
        command=read("command", lambda value: command(value, given.get("options", ()), narrowly=narrowly)),
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
        if key == "with_dependencies" and (effect != "allow" or not isinstance(given[key], bool)):
            raise InvalidArgument("policy", f"{where}: {key}: is true or false, in a rule that allows")
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
    if not sound or not is_plain(value, spaces=True):
        raise ValueError(f"{value!r} is no name of 1 to {_MOST_NAME} characters that show")
    if set(value) & set("*?["):
        raise ValueError(f"{value!r}: names are exact here; write one rule for each")
    return str(value)


def _schema(value: Any) -> str:
    if not isinstance(value, str) or not _SCHEMA.match(value):
        raise ValueError(f"{value!r} is no SHA-256 in hexadecimal")
    return value


def _package(value: Any, language: Any) -> Package:
    if language not in PACKAGE_LANGUAGES:
        raise ValueError(f"language {language!r} is not known; choose {' or '.join(PACKAGE_LANGUAGES)}")
    found = package(value, language)
    if found is None:
        example = "'numpy' or 'numpy==2.1.0'" if language == "python" else "'left-pad' or 'left-pad@1.3.0'"
        raise ValueError(f"{value!r} is no package's exact name; write {example}")
    return found


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


_RELATIVE = ("workspace", "output_dir", "environment", "audit", "trust", "tools")  # arguments that may be paths


def policy_of(document: PolicyDocument, folder: str, home: str, *, arguments: bool = False) -> Policy:
    """The policy that ``document`` says, in casemate's keys or srt's.

    ``folder``: absolute, what relative paths are relative to; ``home``: what ``~`` is; ``arguments``: the further
    arguments of a ``Sandbox`` may be there, too. Raises ``InvalidArgument`` that names file, line and key.
    """
    translation = translate_settings(document, folder, home) if is_srt(document) else None
    if translation is not None:
        document = PolicyDocument(document.name, translation.values, translation.lines)
    keys = checked_keys(document, arguments=arguments)
    rules = _rules(document, keys)
    for text, where in translation.undialled if translation else ():
        _check_not_named(text, where, rules)
    allowed, denied = _hosts(document, keys, rules)
    paths = {
        name: _path(document, name, folder, home) for name in _RELATIVE if isinstance(document.values.get(name), str)
    }
    given = {name: getattr(keys, name) for name in ARGUMENTS_ONLY if getattr(keys, name) is not None}
    return Policy(
        network=keys.network,
        allowed=allowed,
        denied=denied,
        private=tuple((one.host, one.addresses) for one in rules.written if one.host and one.addresses),
        local_ports=tuple(keys.allow_local or ()),
        requests=_requests(document, keys),
        intercept=tuple(
            _host(document, ("intercept", n), text, exact_rule) for n, text in enumerate(keys.intercept or ())
        ),
        trust=paths.get("trust"),
        web=_web(document, keys),
        limits=_limits(document, keys),
        workspace=paths.get("workspace"),
        workspace_mode=keys.workspace_mode,
        isolation=keys.isolation if isinstance(keys.isolation, str) else None,
        at_least=keys.isolation.at_least if isinstance(keys.isolation, IsolationKeys) else None,
        hidden=tuple(translation.hidden) if translation else (),
        unwritable=tuple(translation.unwritable) if translation else (),
        shown=(*(translation.shown if translation else ()), *_readable(document, keys, folder, home)),
        writable=translation.writable if translation else None,
        host=_host_terms(document, keys, folder, home),
        previews=keys.previews is not False,
        written=rules,
        arguments={**given, **{name: path for name, path in paths.items() if name in given}},
        settings=tuple(_settings(document, paths, translation)),
        warnings=(*(translation.warnings if translation else ()), *_denied_in_steps(rules)),
    )


def _denied_in_steps(rules: Rules) -> Iterator[str]:
    """A warning for each rule and default that only steps of sessions keep."""
    defaults = ((kind, effect, where) for kind, (effect, where) in rules.defaults.items())
    for kind, effect, where in (*((one.kind, one.effect, one.where) for one in rules.written), *defaults):
        if effect == "deny" and kind in _KEPT_IN_STEPS:
            yield f"{where}: deny: {kind}: {_KEPT_IN_STEPS[kind]}; {_ELSEWHERE}"


def _rules(document: PolicyDocument, keys: SandboxKeys) -> Rules:
    written = tuple(rule(one, document.where(("rules", place))) for place, one in enumerate(keys.rules or ()))
    defaults: dict[Kind, tuple[Effect, str]] = {}
    for name, effect in (keys.defaults or {}).items():
        path = ("defaults", name)
        kind = next((kind for kind in KINDS if kind == name), None)
        if kind is None:
            _refuse(document, path, f"is no kind; choose one of {', '.join(KINDS)}")
        if effect == "allow" and DEFAULTS[kind] != "allow":
            _refuse(document, path, "allow is too wide for all of a kind; write rules, or ask or deny here")
        defaults[kind] = (effect, document.where(path))
    return Rules(written, defaults)


def _check_not_named(text: str, where: str, rules: Rules) -> None:
    """No rule may name addresses of the network ``text``, which another key refuses."""
    for one in rules.written:
        if overlaps(text, one.addresses):
            raise InvalidArgument("policy", f"{one.where}: addresses: {text} is refused by the same file ({where})")


def _hosts(
    document: PolicyDocument, keys: SandboxKeys, rules: Rules
) -> tuple[tuple[HostRule, ...] | None, tuple[HostRule, ...]]:
    """Hosts that are decided without asking: the two lists, and rules about hosts that hold always and for all."""
    allowed = [_host(document, ("allowed_domains", n), text) for n, text in enumerate(keys.allowed_domains or ())]
    denied = [
        _host(document, ("denied_domains", n), text, denied_rule) for n, text in enumerate(keys.denied_domains or ())
    ]
    hosts = [one for one in rules.written if one.kind == "egress" and one.host is not None]
    allowed += [one.host for one in hosts if one.host and one.effect == "allow" and not one.conditional]
    denied += [one.host for one in hosts if one.host and one.effect == "deny" and not one.conditional]
    any_allowed = any(one.effect == "allow" for one in hosts)
    if keys.network == "none" and (allowed or keys.allow_local or any_allowed):
        _refuse(document, ("network",), "none allows no hosts, and the file names some; leave one of them out")
    local = [HostRule(LOCAL_NAME, port) for port in keys.allow_local or ()]
    if one := passed_over(rules.written, HostRules((*allowed, *local), everything=keys.network == "public")):
        raise InvalidArgument(
            "policy",
            f"{one.where}: {one.effect}: egress: is about a host that is allowed without asking",
            remediation="Leave it out of allowed_domains, allow_local, network: public and the rules that allow it.",
        )
    named = keys.allowed_domains is not None or any_allowed or rules.default("egress")[0] == "deny"
    return (tuple(allowed) if named else None), tuple(denied)


def _requests(document: PolicyDocument, keys: SandboxKeys) -> RequestRules:
    """What may be asked of hosts; those are not allowed by that."""
    return RequestRules(
        tuple(
            RequestRule(
                _host(document, ("requests", n, "host"), one.host, denied_rule),
                ("GET", "HEAD") if one.methods is None else tuple(one.methods),
                one.path,
            )
            for n, one in enumerate(keys.requests or ())
        )
    )


def _host(
    document: PolicyDocument, path: Path, text: Any, reader: Callable[[object, str], HostRule] = host_rule
) -> HostRule:
    try:
        return reader(text, str(path[0]))
    except InvalidArgument as error:
        _refuse(document, path, error.problem)


def _host_terms(document: PolicyDocument, keys: SandboxKeys, folder: str, home: str) -> HostTerms | None:
    """What of the host is open."""
    if (given := keys.host) is None:
        return None
    roots = []
    for place, root in enumerate(given.roots):
        at: Path = ("host", "roots", place, "path")
        path = _absolute(document, at, root.path, folder, home)
        if path == "/" or posixpath.join(home, "").startswith(posixpath.join(path, "")):
            _refuse(document, at, f"{path} holds the home folder, keys and settings in it; name a folder of its own")
        if path.split("/")[1] in _OF_KERNEL:
            _refuse(document, at, f"{path} shows memory and settings of all programs of this machine, not files")
        roots.append(HostRoot(path, root.write))
    programs = tuple(_absolute(document, ("host", "path", n), text, folder, home) for n, text in enumerate(given.path))
    for name in given.env:
        if not _VARIABLE.match(name):
            _refuse(document, ("host", "env", name), "is no variable for a command: it says which code is loaded")
    where = None if given.folder is None else _absolute(document, ("host", "folder"), given.folder, folder, home)
    return HostTerms(
        where, programs, given.env, float(given.timeout), given.output, tuple(roots), document.where(("host",))
    )


_SEARXNG = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")


def _web(document: PolicyDocument, keys: SandboxKeys) -> dict[str, Any] | None:
    """Who is asked in searches; only these reach their hosts."""
    if keys.web is None:
        return None
    if keys.network == "none":
        _refuse(document, ("network",), "none allows no hosts, and web names some; leave one of them out")
    if not (keys.web.searxng or keys.web.engines):
        _refuse(document, ("web",), "names neither a searxng nor engines")
    if keys.web.searxng and not _SEARXNG.fullmatch(keys.web.searxng):
        _refuse(document, ("web", "searxng"), f"{keys.web.searxng!r} is no address such as 'https://searx.example.org'")
    return keys.web.model_dump()


def _limits(document: PolicyDocument, keys: SandboxKeys) -> dict[str, Any]:
    """The limits that are named, as numbers."""
    given = keys.limits.model_dump(exclude_none=True) if keys.limits else {}
    try:
        checked = Limits(**given)
    except InvalidArgument as error:
        _refuse(document, tuple(error.argument.split(".")), error.problem)
    return {name: getattr(checked, name) for name in given}


def _readable(document: PolicyDocument, keys: SandboxKeys, folder: str, home: str) -> Iterator[tuple[str, str]]:
    """What is to be seen, each with where it is written."""
    for place, text in enumerate(keys.allow_read or ()):
        path: Path = ("allow_read", place)
        yield _absolute(document, path, text, folder, home), document.where(path)


def _path(document: PolicyDocument, name: str, folder: str, home: str) -> str:
    return _absolute(document, (name,), document.values[name], folder, home)


def _absolute(document: PolicyDocument, path: Path, text: str, folder: str, home: str) -> str:
    if not text or "\0" in text:
        _refuse(document, path, f"{text!r} is no path")
    if text == "~" or text.startswith("~/"):
        text = home + text[1:]
    return posixpath.normpath(posixpath.join(folder, text))


def _settings(document: PolicyDocument, paths: dict[str, str], translation: Translation | None) -> Iterator[Setting]:
    for name, value in document.values.items():
        if name in ("rules", "limits", "defaults", "requests", "tools", "host", "web") or value is None:
            continue
        if isinstance(value, list):
            for place, one in enumerate(value):
                yield Setting(name, one, document.where((name, place)))
            if not value:
                yield Setting(name, "nothing", document.where((name,)))
        else:
            yield Setting(name, paths.get(name, value), document.where((name,)))
    for place, one in enumerate(document.values.get("requests") or ()):
        methods = " ".join(one.get("methods", ("GET", "HEAD"))) or "every method"
        told = f"{one['host']}: {methods} {one.get('path', '/')}"
        yield Setting("requests", told, document.where(("requests", place)))
    for section in ("limits", "host", "web"):
        for name, value in (document.values.get(section) or {}).items():
            yield Setting(f"{section}.{name}", value, document.where((section, name)))
    for path, where in (*translation.hidden,) if translation else ():
        yield Setting("hidden", path, where)
    for path, where in (*translation.unwritable,) if translation else ():
        yield Setting("not writable", path, where)
    for path, where in (*translation.shown,) if translation else ():
        yield Setting("shown", path, where)


def _refuse(document: PolicyDocument, path: Path, problem: str) -> NoReturn:
    name = ".".join(str(part) for part in path)
    raise InvalidArgument("policy", f"{document.where(path)}: {name}: {problem}")
