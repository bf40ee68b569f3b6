"""What is configured: defaults, a file, variables and arguments, each value with where it came from.

A file holds the keys of a policy, of a sandbox, of the service and of ``casemate serve``.
"""

from __future__ import annotations

import os
import posixpath
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from casemate.api.config_files import check_owned, users_file
from casemate.api.keys import (
    CONFIG,
    KEYS,
    LIMITS,
    POLICY_KEYS,
    SANDBOX,
    SECTIONS,
    SERVICE,
    Key,
    ServeSettings,
    ServiceSettings,
    check_value,
    foreign_variables,
    settings_in,
)
from casemate.api.policy_options import bound_by_policy, document_in, home, policy_from
from casemate.errors import InvalidArgument
from casemate.model.limits import Limits
from casemate.policy.policy import NO_POLICY, Policy, Setting

if TYPE_CHECKING:
    from casemate.policy.document import PolicyDocument


DEFAULT = "default"
ARGUMENT = "argument"
_LIMIT = "limits."
# Of a Sandbox, by its own names; limits, policy and vault are said otherwise here.
_ARGUMENTS = tuple(
    key.name
    for key in (*SECTIONS["policy"], *SANDBOX)
    if key.form != "in file" and key.name not in ("policy", "vault", "timeout")
)


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
        bound = self._bind_to_policy()
        for key in KEYS.values():
            yield key, self._in_force(key, bound.limits)

    def _in_force(self, key: Key, limits: Limits) -> Setting:
        policy_settings = [one for one in self.policy.settings if one.name == key.name]
        setting = self.given.get(key.name)
        if key in LIMITS:
            value = getattr(limits, key.name.removeprefix(_LIMIT))
            if setting is not None and value == getattr(Limits(**self.limits), key.name.removeprefix(_LIMIT)):
                return Setting(key.name, value, setting.where)
            return Setting(key.name, value, policy_settings[0].where if policy_settings else DEFAULT)
        if setting is not None:
            return setting
        if key.name in ("rules", "defaults"):
            return self._count_rules(key)
        if len(policy_settings) > 1:
            return Setting(key.name, [one.value for one in policy_settings], policy_settings[0].where)
        return policy_settings[0] if policy_settings else Setting(key.name, key.default, DEFAULT)

    def _count_rules(self, key: Key) -> Setting:
        """How many rules there are, or what holds without one: ``casemate policy show`` prints each."""
        rules = self.policy.rules
        if key.name == "rules" and rules.written:
            return Setting(key.name, f"{len(rules.written)}, see casemate policy show", rules.written[0].where)
        if key.name == "defaults" and rules.defaults:
            effects = ", ".join(f"{kind}: {effect}" for kind, (effect, _) in rules.defaults.items())
            return Setting(key.name, effects, next(iter(rules.defaults.values()))[1])
        return Setting(key.name, key.default, DEFAULT)

    def _bind_to_policy(self) -> Any:
        """The policy's and the other values together. Raises ``InvalidArgument`` for what lies beyond the policy."""
        try:
            return bound_by_policy({**self.sandbox_arguments(), "policy": self.policy})
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

    ``file``: unless given, the user's (see :func:`casemate.api.config_files.users_file`). ``arguments``: by key, as
    ``"limits.memory"`` or ``"service.port"``; None is not given. There is one policy: the last that is named in this
    order, else what the file says.

    Raises ``InvalidArgument`` that names file and line, or the variable, or the argument, and the nearest right name.
    """
    place = users_file(environ) if file is None else file
    if file is None and place is not None:
        check_owned(Path(place))
    return _join_settings(NOTHING if place is None else read_configuration(place), environ, arguments or {})


def settings_of_variables(environ: Mapping[str, str]) -> Settings:
    """As :func:`settings_of`, without the file in the user's configuration folder: a program's sandbox is what the
    program says. The file that ``CASEMATE_CONFIG`` names is one of the variables."""
    is_named = environ.get(CONFIG, "none") != "none"
    return settings_of(environ) if is_named else _join_settings(NOTHING, environ, {})


def settings_in_file(path: str | os.PathLike[str]) -> Settings:
    """What a file alone configures. Raises as :func:`settings_of`."""
    return _join_settings(read_configuration(path), {}, {})


def _join_settings(read: Configured, environ: Mapping[str, str], arguments: Mapping[str, Any]) -> Settings:
    settings = {**read.settings, **settings_in(environ), **dict(_given_settings(arguments))}
    policy = read.policy
    policy_setting = settings.get("policy")
    if policy_setting is not None and policy_setting != read.settings.get("policy"):
        workspace = settings.get("workspace")
        policy = _policy_of(policy_setting, None if workspace is None else workspace.value)
        kept = (one for one in read.policy.settings if one.name.startswith(_LIMIT))
        settings = {**{one.name: one for one in kept if one.name.removeprefix(_LIMIT) not in policy.limits}, **settings}
    return Settings(read.path or None, policy, settings)


def _given_settings(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Setting]]:
    for name, value in arguments.items():
        if name not in KEYS:
            from casemate.model.foreign import suggest

            raise InvalidArgument(name, f"is no key that casemate knows{suggest(name, KEYS)}")
        if value is None:
            continue
        try:
            yield name, Setting(name, check_value(KEYS[name], value), ARGUMENT)
        except ValueError as error:
            raise InvalidArgument(name, str(error)) from None


def _policy_of(setting: Setting, workspace: object) -> Policy:
    try:
        return policy_from(setting.value, workspace)
    except InvalidArgument as error:
        if setting.where == ARGUMENT:
            raise
        raise InvalidArgument(setting.where, error.problem, remediation=error.remediation) from None


def _vault(place: str, environ: Mapping[str, str]) -> object:
    """Where secrets are, as a ``Sandbox`` takes it. Raises ``VaultUnavailable``."""
    if place == "memory":
        return None
    if place != "user":
        return place
    from casemate.vault.vault import users_store

    return users_store(environ)


_SECTIONS = ("service", "serve")  # of a file; what is not in one of them, or in limits, stands by itself
_OWN = ("policy", "vault", "timeout")  # and the sections: what is no argument or no part of a policy
_TOP = tuple(dict.fromkeys(name.partition(".")[0] for name in KEYS))
_STORES = ("user", "memory")


@dataclass(frozen=True, slots=True)
class Configured:
    """What a file says. ``policy``: the most that is permitted; ``settings``: the other values by key, each with its
    line."""

    path: str = ""
    policy: Policy = NO_POLICY
    settings: Mapping[str, Setting] = field(default_factory=dict)


NOTHING = Configured()


def read_configuration(path: str | os.PathLike[str]) -> Configured:
    """What the file says. Raises ``InvalidArgument`` that names file, line and key, and the nearest one that there is.

    Relative paths in it are relative to its folder.
    """
    place = Path(path).expanduser().absolute()
    try:
        return _read_file(place)
    except InvalidArgument as error:
        if error.argument != "policy":
            raise
        rest = error.problem.removeprefix(f"{place.name}:")
        problem = error.problem if rest == error.problem else f"{place}:{rest}"
        raise InvalidArgument("config", problem, remediation=error.remediation) from None


def _read_file(path: Path) -> Configured:
    from casemate.policy.document import PolicyDocument
    from casemate.policy.reading import policy_of
    from casemate.policy.srt import is_srt

    read, folder = document_in(path, "config")
    place = str(path)
    document = PolicyDocument(place, read.values, read.lines)
    if not is_srt(document):
        _check_names(document)
    own = {name: value for name, value in document.values.items() if name in (*_OWN, *_SECTIONS)}
    rest = {name: value for name, value in document.values.items() if name not in own}
    policy = policy_of(PolicyDocument(place, rest, document.lines), folder, home(), arguments=True)
    settings = {one.name: one for one in _own(document, own, folder)}
    if "policy" in settings:
        _check_said_once(document, rest)
    for name, value in policy.arguments.items():
        settings[name] = Setting(name, value, document.where((name,)))
    if "policy" in settings:
        policy = policy_from(settings["policy"].value)
    return Configured(place, policy, settings)


def _check_names(document: PolicyDocument) -> None:
    from casemate.model.foreign import key_hint

    problems = [
        f"{document.where((name,))}: {name}: is no key that casemate knows{key_hint(name, [*_TOP, *KEYS])}"
        for name in document.values
        if name not in _TOP
    ]
    if problems:
        raise InvalidArgument("config", "\n".join(problems))


def _own(document: PolicyDocument, own: Mapping[str, Any], folder: str) -> Iterator[Setting]:
    """The values that are no policy's. Raises ``InvalidArgument``."""
    from casemate.model.foreign import suggest

    for name, given in own.items():
        if name not in _SECTIONS:
            if given is not None:
                yield _make_setting(document, (name,), given, folder)
            continue
        if given is not None and not isinstance(given, Mapping):
            _refuse(document, (name,), "is no mapping of keys to values")
        for key, value in (given or {}).items():
            full = f"{name}.{key}"
            if full not in KEYS:
                known = [one for one in KEYS if one.startswith(f"{name}.")]
                _refuse(document, (name, key), f"is no key that casemate knows{suggest(full, known)}")
            if value is not None:
                yield _make_setting(document, (name, key), value, folder)


def _make_setting(document: PolicyDocument, path: tuple[str, ...], value: Any, folder: str) -> Setting:
    key = KEYS[".".join(path)]
    try:
        check_value(key, value)
    except ValueError as error:
        _refuse(document, path, str(error))
    if key.form == "path" and not (key.name == "vault" and value in _STORES):
        value = home() + value[1:] if value == "~" or value.startswith("~/") else value
        value = posixpath.normpath(posixpath.join(folder, value))
    return Setting(key.name, value, document.where(path))


def _check_said_once(document: PolicyDocument, rest: Mapping[str, Any]) -> None:
    if beside := next((name for name in rest if name in POLICY_KEYS), None):
        _refuse(document, (beside,), "the policy is another file's, which policy names; say it there")


def _refuse(document: PolicyDocument, path: tuple[str, ...], problem: str) -> NoReturn:
    raise InvalidArgument("config", f"{document.where(path)}: {'.'.join(path)}: {problem}")


def arguments_of_file(
    path: str | os.PathLike[str], environ: Mapping[str, str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of a file, and in their place those that are ``options``. ``environ`` names the user's folders.

    Raises ``InvalidArgument`` that names file, line and key, and ``VaultUnavailable``.
    """

    if options.get("policy") is not None:
        raise InvalidArgument(
            "policy",
            f"would take the place of what {os.fspath(path)!r} permits, and arguments only narrow that",
            remediation="Write one file that permits both, or give the policy alone.",
        )
    return {**settings_in_file(path).sandbox_arguments(environ), **options}


def arguments_of_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Those of ``CASEMATE_*`` variables, and of the file that ``CASEMATE_CONFIG`` names.

    Raises as :func:`arguments_of_file`, naming the variable.
    """

    for remark in foreign_variables(environ):
        warnings.warn(remark, stacklevel=3)
    return settings_of_variables(environ).sandbox_arguments(environ)
