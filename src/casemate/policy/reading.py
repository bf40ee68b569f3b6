"""Parses a document into a policy: checks every value and keeps its place in the file. Pure.

A rule is written as ``allow: tool`` with its other keys beside it. Rules that are too wide are refused.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn, get_args

from casemate.errors import InvalidArgument
from casemate.model.addresses import overlaps, private_networks
from casemate.model.approval import Kind
from casemate.model.kinds import Effect
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
from casemate.policy.keys import POLICY_KINDS, SANDBOX_KINDS, check_document
from casemate.policy.patterns import Pattern, command, pattern
from casemate.policy.policy import Policy, Setting
from casemate.policy.rules import DEFAULTS, PACKAGE_LANGUAGES, Package, Rule, Rules, package, passed_over
from casemate.policy.srt import Translation, is_srt, translate_settings
from casemate.visible import is_plain

KINDS: tuple[Kind, ...] = get_args(Kind)
_EFFECTS: tuple[Effect, ...] = get_args(Effect)

# The keys of rules by kind, in addition to ``namespace``, ``reason`` and, in rules that allow, a budget.
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
# The keys that a rule that allows must have; without one it would be too wide.
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
_NO_ANY = ("files", "shell", "process", "server", "secret")  # kinds for which "any" is too wide
_KEPT_IN_STEPS: Mapping[Kind, str] = {
    "shell": "applies only to steps of Python and Shell sessions",
    "process": "applies only to steps of Python sessions",
}
_ELSEWHERE = "one-shot runs, Node and wrapped commands can still start programs in their cells"
_ANYWHERE = ("namespace", "reason")
_BUDGET = ("uses", "lasts", "expires")
_AT_TIMES = (*_BUDGET, "namespace")  # not beside addresses: dialling ignores them
_LASTS = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?) ?(?P<unit>s|m|h|d)\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SCHEMA = re.compile(r"[0-9a-f]{64}\Z")
_MOST_USES = 10**9
_MOST_NAME = 200
_OF_KERNEL = ("proc", "sys", "dev")
_VARIABLE = re.compile(
    r"(?!LD_|GIT_|PYTHON|NODE_|BASH_|PERL)[A-Z][A-Z0-9_]{0,99}\Z"
)  # excludes variables that load or start code


def rule(given: Mapping[str, Any], where: str) -> Rule:
    """Parse a rule of the policy file. ``where`` is its place in the file. Raises ``InvalidArgument`` with ``where``
    and the key for unknown keys, invalid values and rules that are too wide."""
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
    """Parse a duration: a number of seconds, or e.g. ``"10m"`` (s, m, h, d). Raises ``ValueError``."""
    found = _LASTS.match(value) if isinstance(value, str) else None
    number = float(found["number"]) * _SECONDS[found["unit"]] if found else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < 10**10:
        raise ValueError(f"{value!r} is not a length of time; write a number of seconds, or e.g. '10m'")
    return float(number)


def _effect_and_kind(given: Mapping[str, Any], where: str) -> tuple[Effect, Kind]:
    effects = [effect for effect in _EFFECTS if effect in given]
    if len(effects) != 1:
        raise InvalidArgument("policy", f"{where}: a rule needs one of allow, deny and ask, such as 'allow: tool'")
    kind = given[effects[0]]
    if kind not in KINDS:
        raise InvalidArgument(
            "policy", f"{where}: {effects[0]}: {kind!r} is not a kind; choose one of {', '.join(KINDS)}"
        )
    return effects[0], kind


def _check_keys(given: Mapping[str, Any], effect: Effect, kind: Kind, where: str) -> None:
    known = (effect, *_ABOUT[kind], *_ANYWHERE, *(_BUDGET if effect == "allow" else ()))
    for key in given:
        if key in _BUDGET and effect != "allow":
            raise InvalidArgument("policy", f"{where}: {key}: only a rule that allows can have a budget or an end")
        if key not in known:
            raise InvalidArgument(
                "policy", f"{where}: {key!r} is not for rules of kind {kind}; they know {', '.join(known[1:])}"
            )
        if key == "addresses" and effect != "allow":
            raise InvalidArgument("policy", f"{where}: {key}: only a rule that allows a host can have addresses")
        if key == "with_dependencies" and (effect != "allow" or not isinstance(given[key], bool)):
            raise InvalidArgument("policy", f"{where}: {key}: must be true or false, in a rule that allows")
        if key in _AT_TIMES and "addresses" in given:
            raise InvalidArgument("policy", f"{where}: {key}: a rule with addresses always applies, to everyone")
    if effect != "allow":
        if kind == "egress" and "host" not in given and effect == "deny":
            raise InvalidArgument("policy", f"{where}: denies every host; write 'network: none'")
        return
    if kind in _FOR_PERSONS:
        raise InvalidArgument("policy", f"{where}: a rule cannot answer a {kind}; only a person can")
    for key in _NEEDED.get(kind, ()):
        if key not in given:
            hint = " (arguments: any, or {} for none)" if (kind, key) == ("tool", "arguments") else ""
            raise InvalidArgument("policy", f"{where}: too wide: 'allow: {kind}' needs {key}{hint}")


def _arguments(value: Any, kind: Kind, narrowly: bool) -> Mapping[str, Pattern] | None:
    if value == "any":
        if narrowly and kind in _NO_ANY:
            raise ValueError(f"any is too wide for 'allow: {kind}'; give a pattern for each argument")
        return None
    if not isinstance(value, Mapping):
        raise ValueError("write 'any', {} for no arguments, or a value or pattern for each name")
    return {name: _argument(name, one, narrowly) for name, one in value.items()}


def _argument(name: str, value: Any, narrowly: bool) -> Pattern:
    try:
        return pattern(value, narrowly=narrowly)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _name(value: Any) -> str:
    sound = isinstance(value, str) and value == value.strip() and 0 < len(value) <= _MOST_NAME
    if not sound or not is_plain(value, spaces=True):
        raise ValueError(f"{value!r} is not a name of 1 to {_MOST_NAME} printable characters")
    if set(value) & set("*?["):
        raise ValueError(f"{value!r}: names are exact here; write one rule for each")
    return str(value)


def _schema(value: Any) -> str:
    if not isinstance(value, str) or not _SCHEMA.match(value):
        raise ValueError(f"{value!r} is not a SHA-256 in hexadecimal")
    return value


def _package(value: Any, language: Any) -> Package:
    if language not in PACKAGE_LANGUAGES:
        raise ValueError(f"language {language!r} is not known; choose {' or '.join(PACKAGE_LANGUAGES)}")
    found = package(value, language)
    if found is None:
        example = "'numpy' or 'numpy==2.1.0'" if language == "python" else "'left-pad' or 'left-pad@1.3.0'"
        raise ValueError(f"{value!r} is not a package's exact name; write {example}")
    return found


def _uses(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_USES:
        raise ValueError(f"{value!r} must be an integer from 1 on")
    return value


def _moment(value: Any) -> float:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a time; write one such as '2026-01-31T18:00:00Z' (RFC 3339)") from None
    if moment.tzinfo is None:
        raise ValueError(f"{value!s} has no time zone; write one such as '2026-01-31T18:00:00Z'")
    return moment.timestamp()


def _reason(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 1000:
        raise ValueError("is a text of at most 1000 characters")
    return value


_RELATIVE = ("workspace", "output_dir", "environment", "audit", "trust", "tools")  # arguments that may be paths


def policy_of(document: PolicyDocument, folder: str, home: str, kinds: Mapping[str, Any] = POLICY_KINDS) -> Policy:
    """Parse ``document``, in casemate's keys or srt's. ``folder`` is the absolute base of relative paths, ``home``
    replaces ``~``, and ``kinds`` are the allowed keys. Raises ``InvalidArgument`` with file, line and key."""
    translation = translate_settings(document, folder, home) if is_srt(document) else None
    if translation is not None:
        document = PolicyDocument(document.name, translation.values, translation.lines)
    keys = check_document(document, kinds)
    rules = _rules(document, keys)
    for text, where in translation.undialled if translation else ():
        _check_not_named(text, where, rules)
    allowed, denied = _hosts(document, keys, rules)
    named = {name: document.values.get(name) for name in _RELATIVE}
    paths = {
        name: absolute(document, (name,), one, folder, home) for name, one in named.items() if isinstance(one, str)
    }
    isolation = keys.get("isolation")
    unenforced = tuple(_denied_in_steps(rules))
    return Policy(
        network=keys.get("network"),
        allowed=allowed,
        denied=denied,
        private=tuple((one.host, one.addresses) for one in rules.written if one.host and one.addresses),
        local_ports=tuple(keys.get("allow_local", ())),
        requests=_requests(document, keys),
        intercept=tuple(
            _host(document, ("intercept", n), text, exact_rule) for n, text in enumerate(keys.get("intercept", ()))
        ),
        trust=paths.get("trust"),
        web=_web(document, keys),
        limits=_limits(document, keys),
        workspace=paths.get("workspace"),
        workspace_mode=keys.get("workspace_mode"),
        isolation=isolation if isinstance(isolation, str) else None,
        at_least=isolation["at_least"] if isinstance(isolation, Mapping) else None,
        hidden=tuple(translation.hidden) if translation else (),
        unwritable=tuple(translation.unwritable) if translation else (),
        shown=(*(translation.shown if translation else ()), *_readable(document, keys, folder, home)),
        writable=translation.writable if translation else None,
        host=_host_terms(document, keys, folder, home),
        previews=keys.get("previews") is not False,
        written=rules,
        settings=tuple(_settings(document, paths, translation)),
        warnings=(*(translation.warnings if translation else ()), *unenforced),
        unenforced=unenforced,
    )


def _denied_in_steps(rules: Rules) -> Iterator[str]:
    """Yield a warning for each rule and default that applies only to steps of sessions."""
    defaults = ((kind, effect, where) for kind, (effect, where) in rules.defaults.items())
    for kind, effect, where in (*((one.kind, one.effect, one.where) for one in rules.written), *defaults):
        if effect == "deny" and kind in _KEPT_IN_STEPS:
            yield f"{where}: deny: {kind}: {_KEPT_IN_STEPS[kind]}; {_ELSEWHERE}"


def _rules(document: PolicyDocument, keys: Mapping[str, Any]) -> Rules:
    written = tuple(rule(one, document.where(("rules", place))) for place, one in enumerate(keys.get("rules", ())))
    defaults: dict[Kind, tuple[Effect, str]] = {}
    for name, effect in keys.get("defaults", {}).items():
        path = ("defaults", name)
        kind = next((kind for kind in KINDS if kind == name), None)
        if kind is None:
            _refuse(document, path, f"is not a kind; choose one of {', '.join(KINDS)}")
        if effect == "allow" and DEFAULTS[kind] != "allow":
            _refuse(document, path, "allow is too wide for a whole kind; write rules, or ask or deny here")
        defaults[kind] = (effect, document.where(path))
    return Rules(written, defaults)


def _check_not_named(text: str, where: str, rules: Rules) -> None:
    """Refuse rules with addresses in the network ``text``, which another key denies."""
    for one in rules.written:
        if overlaps(text, one.addresses):
            raise InvalidArgument("policy", f"{one.where}: addresses: {text} is refused by the same file ({where})")


def _hosts(
    document: PolicyDocument, keys: Mapping[str, Any], rules: Rules
) -> tuple[tuple[HostRule, ...] | None, tuple[HostRule, ...]]:
    """Return the hosts to allow and to deny without asking: the two lists, and unconditional rules."""
    allowed = [_host(document, ("allowed_domains", n), text) for n, text in enumerate(keys.get("allowed_domains", ()))]
    denied = [
        _host(document, ("denied_domains", n), text, denied_rule)
        for n, text in enumerate(keys.get("denied_domains", ()))
    ]
    hosts = [one for one in rules.written if one.kind == "egress" and one.host is not None]
    allowed += [one.host for one in hosts if one.host and one.effect == "allow" and not one.conditional]
    denied += [one.host for one in hosts if one.host and one.effect == "deny" and not one.conditional]
    any_allowed = any(one.effect == "allow" for one in hosts)
    if keys.get("network") == "none" and (allowed or keys.get("allow_local") or any_allowed):
        _refuse(document, ("network",), "none allows no hosts, but the file names some; omit one of them")
    local = [HostRule(LOCAL_NAME, port) for port in keys.get("allow_local", ())]
    if one := passed_over(rules.written, HostRules((*allowed, *local), everything=keys.get("network") == "public")):
        raise InvalidArgument(
            "policy",
            f"{one.where}: {one.effect}: egress: is about a host that is allowed without asking",
            remediation="Remove it from allowed_domains, allow_local, network: public and the rules that allow it.",
        )
    named = "allowed_domains" in keys or any_allowed or rules.default("egress")[0] == "deny"
    return (tuple(allowed) if named else None), tuple(denied)


def _requests(document: PolicyDocument, keys: Mapping[str, Any]) -> RequestRules:
    """Return the rules for requests. They do not allow their hosts."""
    made = []
    for place, one in enumerate(keys.get("requests", ())):
        host = _host(document, ("requests", place, "host"), one["host"], denied_rule)
        made.append(RequestRule(host, *_request(one)))
    return RequestRules(tuple(made))


def _request(one: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    methods, path = one.get("methods"), one.get("path")
    return ("GET", "HEAD") if methods is None else tuple(methods), "/" if path is None else path


def _host(
    document: PolicyDocument, path: Path, text: Any, reader: Callable[[object, str], HostRule] = host_rule
) -> HostRule:
    try:
        return reader(text, str(path[0]))
    except InvalidArgument as error:
        _refuse(document, path, error.problem)


def _host_terms(document: PolicyDocument, keys: Mapping[str, Any], folder: str, home: str) -> HostTerms | None:
    if "host" not in keys:
        return None
    given = {name: one for name, one in keys["host"].items() if one is not None}
    roots = []
    for place, root in enumerate(given.get("roots", ())):
        at: Path = ("host", "roots", place, "path")
        path = absolute(document, at, root["path"], folder, home)
        if path == "/" or posixpath.join(home, "").startswith(posixpath.join(path, "")):
            _refuse(document, at, f"{path} contains the home folder with its keys and settings; use a separate folder")
        if path.split("/")[1] in _OF_KERNEL:
            _refuse(document, at, f"{path} exposes memory and settings of all programs of this machine, not files")
        roots.append(HostRoot(path, bool(root.get("write"))))
    for name in given.get("env", ()):
        if not _VARIABLE.match(name):
            _refuse(
                document,
                ("host", "env", name),
                "must be in capitals, and must not select code (LD_, GIT_, PYTHON, ...)",
            )
    if "path" in given:
        if not given["path"]:
            _refuse(document, ("host", "path"), "is empty; name a folder of programs, or omit it")
        places = enumerate(given["path"])
        given["path"] = tuple(absolute(document, ("host", "path", n), one, folder, home) for n, one in places)
    if "folder" in given:
        given["folder"] = absolute(document, ("host", "folder"), given["folder"], folder, home)
    return HostTerms(**{**given, "roots": tuple(roots), "where": document.where(("host",))})


_SEARXNG = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")


def _web(document: PolicyDocument, keys: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the search services. Only searches may reach their hosts."""
    if "web" not in keys:
        return None
    searxng, engines = keys["web"].get("searxng"), keys["web"].get("engines") or []
    if keys.get("network") == "none":
        _refuse(document, ("network",), "none allows no hosts, but web names some; omit one of them")
    if not (searxng or engines):
        _refuse(document, ("web",), "needs searxng or engines")
    if searxng and not _SEARXNG.fullmatch(searxng):
        _refuse(document, ("web", "searxng"), f"{searxng!r} is not an address such as 'https://searx.example.org'")
    return {"searxng": searxng, "engines": list(engines)}


def _limits(document: PolicyDocument, keys: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in keys.get("limits", {}).items() if value is not None}
    try:
        checked = Limits(**given)
    except InvalidArgument as error:
        _refuse(document, tuple(error.argument.split(".")), error.problem)
    return {name: getattr(checked, name) for name in given}


def _readable(document: PolicyDocument, keys: Mapping[str, Any], folder: str, home: str) -> Iterator[tuple[str, str]]:
    for place, text in enumerate(keys.get("allow_read", ())):
        path: Path = ("allow_read", place)
        yield absolute(document, path, text, folder, home), document.where(path)


def absolute(document: PolicyDocument, path: Path, text: str, folder: str, home: str) -> str:
    """Return the path ``text``, the value at ``path``, as an absolute path. Raises ``InvalidArgument``."""
    if not text or "\0" in text:
        _refuse(document, path, f"{text!r} is not a path")
    if text == "~" or text.startswith("~/"):
        text = home + text[1:]
    return posixpath.normpath(posixpath.join(folder, text))


_LISTED = {*SANDBOX_KINDS} - {"rules", "limits", "defaults", "requests", "tools", "host", "web"}  # shown as written


def _settings(document: PolicyDocument, paths: dict[str, str], translation: Translation | None) -> Iterator[Setting]:
    for name, value in document.values.items():
        if value is None or name not in _LISTED:
            continue
        if isinstance(value, list):
            for place, one in enumerate(value):
                yield Setting(name, one, document.where((name, place)))
            if not value:
                yield Setting(name, "nothing", document.where((name,)))
        else:
            yield Setting(name, paths.get(name, value), document.where((name,)))
    for place, one in enumerate(document.values.get("requests") or ()):
        methods, path = _request(one)
        shown = f"{one['host']}: {' '.join(methods) or 'every method'} {path}"
        yield Setting("requests", shown, document.where(("requests", place)))
    for section in ("limits", "host", "web"):
        for name, value in (document.values.get(section) or {}).items():
            yield Setting(f"{section}.{name}", value, document.where((section, name)))
    if translation is None:
        return
    of_srt = {
        "hidden": translation.hidden, "not writable": translation.unwritable, "shown": translation.shown,
        "never dialled": translation.undialled,
    }  # fmt: skip
    if listed := translation.writable:
        of_srt["writable"] = [(folder, listed.where) for folder in listed.folders or ("nothing",)]
    for name, entries in of_srt.items():
        yield from (Setting(name, value, where) for value, where in entries)


def _refuse(document: PolicyDocument, path: Path, problem: str) -> NoReturn:
    name = ".".join(str(part) for part in path)
    raise InvalidArgument("policy", f"{document.where(path)}: {name}: {problem}")
