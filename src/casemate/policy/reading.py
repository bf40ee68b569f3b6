"""A document into the policy that it says: every value checked, and each with where it is written. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from typing import Any, NoReturn

from casemate.errors import InvalidArgument
from casemate.model.approval import Effect, Kind
from casemate.model.limits import Limits
from casemate.policy.document import Document, Path
from casemate.policy.hosts import LOCAL_NAME, HostRule, HostRules, denied_rule, exact_rule, host_rule
from casemate.policy.keys import ARGUMENTS_ONLY, SandboxKeys, checked_keys
from casemate.policy.policy import Policy, Setting
from casemate.policy.requests import RequestRule, RequestRules
from casemate.policy.rules import DEFAULTS, Rules
from casemate.policy.srt import Translation, is_srt, translated
from casemate.policy.unasked import passed_over
from casemate.policy.written import KINDS, rule

_RELATIVE = ("workspace", "output_dir", "environment", "audit", "trust", "tools")  # arguments that may be paths


def policy_of(document: Document, folder: str, home: str, *, arguments: bool = False) -> Policy:
    """The policy that ``document`` says, in casemate's keys or srt's.

    ``folder``: absolute, what relative paths are relative to; ``home``: what ``~`` is; ``arguments``: the further
    arguments of a ``Sandbox`` may be there, too. Raises ``InvalidArgument`` that names file, line and key.
    """
    translation = translated(document, folder, home) if is_srt(document) else None
    if translation is not None:
        document = Document(document.name, translation.values, translation.lines)
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
        limits=_limits(document, keys),
        workspace=paths.get("workspace"),
        workspace_mode=keys.workspace_mode,
        isolation=keys.isolation,
        hidden=tuple(translation.hidden) if translation else (),
        unwritable=tuple(translation.unwritable) if translation else (),
        shown=(*(translation.shown if translation else ()), *_readable(document, keys, folder, home)),
        read_only=translation.read_only if translation else "",
        written=rules,
        arguments={**given, **{name: path for name, path in paths.items() if name in given}},
        settings=tuple(_settings(document, paths, translation)),
        warnings=tuple(translation.warnings) if translation else (),
    )


def _rules(document: Document, keys: SandboxKeys) -> Rules:
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
    network = ip_network(text, strict=False)
    for one in rules.written:
        if any(network.version == named.version and network.overlaps(named) for named in one.addresses):
            raise InvalidArgument("policy", f"{one.where}: addresses: {text} is refused by the same file ({where})")


def _hosts(
    document: Document, keys: SandboxKeys, rules: Rules
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


def _requests(document: Document, keys: SandboxKeys) -> RequestRules:
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


def _host(document: Document, path: Path, text: Any, reader: Callable[[object, str], HostRule] = host_rule) -> HostRule:
    try:
        return reader(text, str(path[0]))
    except InvalidArgument as error:
        _refuse(document, path, error.problem)


def _limits(document: Document, keys: SandboxKeys) -> dict[str, Any]:
    """The limits that are named, as numbers."""
    given = keys.limits.model_dump(exclude_none=True) if keys.limits else {}
    try:
        checked = Limits(**given)
    except InvalidArgument as error:
        _refuse(document, tuple(error.argument.split(".")), error.problem)
    return {name: getattr(checked, name) for name in given}


def _readable(document: Document, keys: SandboxKeys, folder: str, home: str) -> Iterator[tuple[str, str]]:
    """What is to be seen, each with where it is written."""
    for place, text in enumerate(keys.allow_read or ()):
        path: Path = ("allow_read", place)
        yield _absolute(document, path, text, folder, home), document.where(path)


def _path(document: Document, name: str, folder: str, home: str) -> str:
    return _absolute(document, (name,), document.values[name], folder, home)


def _absolute(document: Document, path: Path, text: str, folder: str, home: str) -> str:
    if not text or "\0" in text:
        _refuse(document, path, f"{text!r} is no path")
    if text == "~" or text.startswith("~/"):
        text = home + text[1:]
    return posixpath.normpath(posixpath.join(folder, text))


def _settings(document: Document, paths: dict[str, str], translation: Translation | None) -> Iterator[Setting]:
    for name, value in document.values.items():
        if name in ("rules", "limits", "defaults", "requests", "tools") or value is None:
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
    for name, value in (document.values.get("limits") or {}).items():
        yield Setting(f"limits.{name}", value, document.where(("limits", name)))
    for path, where in (*translation.hidden,) if translation else ():
        yield Setting("hidden", path, where)
    for path, where in (*translation.unwritable,) if translation else ():
        yield Setting("not writable", path, where)
    for path, where in (*translation.shown,) if translation else ():
        yield Setting("shown", path, where)


def _refuse(document: Document, path: Path, problem: str) -> NoReturn:
    name = ".".join(str(part) for part in path)
    raise InvalidArgument("policy", f"{document.where(path)}: {name}: {problem}")
