"""Defaults, file, variables, arguments: put together, each value with where it came from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from casemate.api.config import bounded, policy_from
from casemate.api.settings.files import NOTHING, Configured, configured
from casemate.api.settings.finding import check_owned, named_file, users_file
from casemate.api.settings.table import CONFIG, KEYS, LIMITS, SANDBOX, SECTIONS, SERVICE, Key
from casemate.api.settings.values import checked
from casemate.api.settings.variables import settings_in
from casemate.errors import InvalidArgument
from casemate.model.limits import Limits
from casemate.policy.policy import NO_POLICY, Policy, Setting

DEFAULT = "default"
ARGUMENT = "argument"
_LIMIT = "limits."
# Of a Sandbox, by its own names; limits, policy and vault are said otherwise here.
_ARGUMENTS = tuple(
    key.name
    for key in (*SECTIONS["policy"], *SANDBOX)
    if key.name not in ("policy", "vault", "timeout", "denied_domains", "requests", "rules", "defaults")
)
_BOUND = (
    "network", "allowed_domains", "allow_local", "intercept", "trust", "workspace", "workspace_mode", "isolation",
    "allow_read",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """How ``casemate service`` runs (docs/reference/configuration.md); ``idle_stop`` and ``drain`` are seconds."""

    idle_stop: float | None
    drain: float
    listen: tuple[str, ...]
    tls_cert: str | None
    tls_key: str | None
    plain_http: bool
    host_names: tuple[str, ...]
    allow_origins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How ``casemate serve`` runs, as docs/reference/configuration.md has it."""

    toolset: str
    transport: str
    host: str
    port: int
    token_file: str | None
    plain_http: bool
    may_approve: bool
    embedded: bool
    log_level: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What is configured. ``file``: where it was read, or None; ``policy``: the most that is permitted; ``given``: all
    other values that are not the default, by key."""

    file: str | None
    policy: Policy
    given: Mapping[str, Setting]

    def value(self, name: str) -> Any:
        """The value of a key that is no policy's: what was given, else its default."""
        return self.given[name].value if name in self.given else KEYS[name].default

    @property
    def timeout(self) -> float:
        """Seconds that a program may run where its caller says nothing."""
        return float(self.value("timeout"))

    @property
    def limits(self) -> dict[str, Any]:
        """The limits that were given beside the policy's, by name."""
        return {name.removeprefix(_LIMIT): one.value for name, one in self.given.items() if name.startswith(_LIMIT)}

    @property
    def service(self) -> ServiceSettings:
        """Of ``casemate service``."""
        values = {one.name: self.value(f"service.{one.name}") for one in fields(ServiceSettings)}
        lists = {key.name.partition(".")[2] for key in SERVICE if key.form == "texts"}
        return ServiceSettings(**{**values, **{name: tuple(values[name] or ()) for name in lists}})

    @property
    def serve(self) -> ServeSettings:
        """Of ``casemate serve``."""
        return ServeSettings(**{one.name: self.value(f"serve.{one.name}") for one in fields(ServeSettings)})

    def sandbox_arguments(self, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What a ``Sandbox`` is made with: what was given, and nothing else. ``environ``: names the user's folders,
        where ``vault`` is the user's; without it, and where no vault was given, that is left out.

        Raises ``InvalidArgument``, and ``VaultUnavailable``.
        """
        arguments = {name: self.given[name].value for name in _ARGUMENTS if name in self.given}
        if self.policy is not NO_POLICY:
            arguments["policy"] = self.policy
        if self.limits:
            arguments["limits"] = Limits(**{**self.policy.limits, **self.limits})
        if environ is not None and self.value("vault") is not None:
            arguments["vault"] = _vault(self.value("vault"), environ)
        return arguments

    def in_force(self) -> Iterator[tuple[Key, Setting]]:
        """Every key with its value and where that came from, in the order of the table.

        Raises ``InvalidArgument`` where a value lies beyond the policy.
        """
        bound = self._bounded()
        for key in KEYS.values():
            yield key, self._in_force(key, bound.limits)

    def _in_force(self, key: Key, limits: Limits) -> Setting:
        written = [one for one in self.policy.settings if one.name == key.name]
        given = self.given.get(key.name)
        if key in LIMITS:
            value = getattr(limits, key.name.removeprefix(_LIMIT))
            if given is not None and value == getattr(Limits(**self.limits), key.name.removeprefix(_LIMIT)):
                return Setting(key.name, value, given.where)
            return Setting(key.name, value, written[0].where if written else DEFAULT)
        if given is not None:
            return given
        if key.name in ("rules", "defaults"):
            return self._counted(key)
        if len(written) > 1:
            return Setting(key.name, [one.value for one in written], written[0].where)
        return written[0] if written else Setting(key.name, key.default, DEFAULT)

    def _counted(self, key: Key) -> Setting:
        """How many rules there are, or what holds without one: ``casemate policy show`` prints each."""
        rules = self.policy.rules
        if key.name == "rules" and rules.written:
            return Setting(key.name, f"{len(rules.written)}, see casemate policy show", rules.written[0].where)
        if key.name == "defaults" and rules.defaults:
            told = ", ".join(f"{kind}: {effect}" for kind, (effect, _) in rules.defaults.items())
            return Setting(key.name, told, next(iter(rules.defaults.values()))[1])
        return Setting(key.name, key.default, DEFAULT)

    def _bounded(self) -> Any:
        """The policy's and the other values together. Raises ``InvalidArgument`` for what lies beyond the policy."""
        given = {name: self.given[name].value for name in _BOUND if name in self.given}
        plain: dict[str, Any] = {
            "network": None, "allowed_domains": (), "allow_local": (), "intercept": (), "trust": None,
            "workspace": None, "workspace_mode": None, "isolation": "auto", "allow_read": (), **given,
        }  # fmt: skip
        try:
            return bounded(self.policy, limits=self.sandbox_arguments().get("limits"), **plain)
        except InvalidArgument as error:
            if error.argument not in self.given:
                raise
            raise InvalidArgument(
                self.given[error.argument].where, error.problem, remediation=error.remediation
            ) from None


def settings_of(
    environ: Mapping[str, str],
    file: str | os.PathLike[str] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Settings:
    """Everything that is configured: defaults, then a file, then ``CASEMATE_*`` variables, then ``arguments``.

    ``file``: unless given, the user's (see :func:`casemate.api.settings.finding.users_file`). ``arguments``: by key, as
    ``"limits.memory"`` or ``"service.port"``; None is not given. There is one policy: the last that is named in this
    order, else what the file says.

    Raises ``InvalidArgument`` that names file and line, or the variable, or the argument, and the nearest right name.
    """
    if file is not None:
        return _together(configured(os.fspath(file)), environ, arguments or {})
    place = users_file(environ)
    if place is None:
        return _together(NOTHING, environ, arguments or {})
    check_owned(place)
    return _together(configured(place), environ, arguments or {})


def settings_of_variables(environ: Mapping[str, str]) -> Settings:
    """As :func:`settings_of`, without the file in the user's configuration folder: a program's sandbox is what the
    program says. The file that ``CASEMATE_CONFIG`` names is one of the variables."""
    named = environ.get(CONFIG, "none")
    if named == "none":
        return _together(NOTHING, environ, {})
    place = named_file(named)
    check_owned(place)
    return settings_of(environ, place)


def settings_in_file(path: str | os.PathLike[str]) -> Settings:
    """What a file alone configures. Raises as :func:`settings_of`."""
    return _together(configured(os.fspath(path)), {}, {})


def _together(read: Configured, environ: Mapping[str, str], arguments: Mapping[str, Any]) -> Settings:
    given = {**read.settings, **settings_in(environ), **dict(_given(arguments))}
    for name in [name for name in given if name.startswith(_LIMIT)]:
        _check_limit(given[name])
    policy = read.policy
    named = given.get("policy")
    if named is not None and named != read.settings.get("policy"):
        policy = _policy_of(named)
    return Settings(read.path or None, policy, given)


def _given(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Setting]]:
    for name, value in arguments.items():
        if name not in KEYS:
            from casemate.model.nearest import meant

            raise InvalidArgument(name, f"is no key that casemate knows{meant(name, KEYS)}")
        if value is None:
            continue
        try:
            yield name, Setting(name, checked(KEYS[name], value), ARGUMENT)
        except ValueError as error:
            raise InvalidArgument(name, str(error)) from None


def _check_limit(one: Setting) -> None:
    try:
        Limits(**{one.name.removeprefix(_LIMIT): one.value})
    except InvalidArgument as error:
        raise InvalidArgument(one.where if one.where != ARGUMENT else one.name, error.problem) from None


def _policy_of(named: Setting) -> Policy:
    try:
        return policy_from(named.value)
    except InvalidArgument as error:
        if named.where == ARGUMENT:
            raise
        raise InvalidArgument(named.where, error.problem, remediation=error.remediation) from None


def _vault(named: str, environ: Mapping[str, str]) -> object:
    """Where secrets are, as a ``Sandbox`` takes it. Raises ``VaultUnavailable``."""
    if named == "memory":
        return None
    if named != "user":
        return named
    from casemate.vault.vault import users_store

    return users_store(environ)
