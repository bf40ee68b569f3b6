"""The configuration: defaults, a file, variables and arguments, each value with its source.

A file has the keys of a policy, of a sandbox, of the service and of ``casemate serve``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate.api.config_files import check_config_file, users_file
from casemate.api.keys import (
    CONFIG,
    FILE_KINDS,
    KEYS,
    LIMITS,
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
from casemate.policy.keys import POLICY_KINDS
from casemate.policy.policy import NO_POLICY, Policy, Setting

if TYPE_CHECKING:
    from casemate.policy.document import PolicyDocument


DEFAULT = "default"
ARGUMENT = "argument"
_LIMIT = "limits."
# Arguments of a Sandbox with a key of the same name; limits, policy, vault and timeout are handled separately.
_ARGUMENTS = tuple(
    key.name
    for key in (*SECTIONS["policy"], *SANDBOX)
    if key.form != "in file" and key.name not in ("policy", "vault", "timeout")
)


@dataclass(frozen=True, slots=True)
class Settings:
    file: str | None  # the path, if one was read
    policy: Policy  # the most that is permitted
    given: Mapping[str, Setting]  # all other values that are not defaults, by key

    def value(self, name: str) -> Any:
        """The value of a key that is not in the policy: the given one, else the default."""
        return self.given[name].value if name in self.given else KEYS[name].default

    @property
    def timeout(self) -> float:
        return float(self.value("timeout"))

    @property
    def limits(self) -> dict[str, Any]:
        """The given limits, by name, without those of the policy."""
        return {name.removeprefix(_LIMIT): one.value for name, one in self.given.items() if name.startswith(_LIMIT)}

    @property
    def service(self) -> ServiceSettings:
        values = {one.name: self.value(f"service.{one.name}") for one in fields(ServiceSettings)}
        lists = {key.name.partition(".")[2] for key in SERVICE if key.form == "texts"}
        return ServiceSettings(**{**values, **{name: tuple(values[name] or ()) for name in lists}})

    @property
    def serve(self) -> ServeSettings:
        return ServeSettings(**{one.name: self.value(f"serve.{one.name}") for one in fields(ServeSettings)})

    def sandbox_arguments(self, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The given arguments of a ``Sandbox``. ``environ``: names the user's folders, for the vault; without it, or
        without a given vault, the result has no ``vault``.

        Raises ``InvalidArgument`` and ``VaultUnavailable``.
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
        """Every key with its value and source, in the order of the table.

        Raises ``InvalidArgument`` for a value beyond the policy.
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
        rules = self.policy.rules
        if key.name == "rules" and rules.written:
            return Setting(key.name, f"{len(rules.written)}, see casemate policy show", rules.written[0].where)
        if key.name == "defaults" and rules.defaults:
            effects = ", ".join(f"{kind}: {effect}" for kind, (effect, _) in rules.defaults.items())
            return Setting(key.name, effects, next(iter(rules.defaults.values()))[1])
        return Setting(key.name, key.default, DEFAULT)

    def _bind_to_policy(self) -> Any:
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
    """The whole configuration: defaults, then a file, then ``CASEMATE_*`` variables, then ``arguments``.

    ``file``: the user's if None (see :func:`casemate.api.config_files.users_file`). ``arguments``: by key, as
    ``"limits.memory"`` or ``"service.port"``; None for not given. There is one policy: the last one named in this
    order, else the one in the file.

    Raises ``InvalidArgument`` that names file and line, or the variable, or the argument, and the nearest known name.
    """
    place = users_file(environ) if file is None else file
    if file is None and place is not None:
        check_config_file(Path(place))
    return _join_settings(_NOTHING if place is None else settings_in_file(place), environ, arguments or {})


def settings_of_variables(environ: Mapping[str, str], arguments: Mapping[str, Any]) -> Settings:
    """As :func:`settings_of`, without the file in the user's configuration folder, which does not apply to a sandbox
    that a program makes. The file that ``CASEMATE_CONFIG`` names does."""
    is_named = environ.get(CONFIG, "none") != "none"
    return settings_of(environ, arguments=arguments) if is_named else _join_settings(_NOTHING, environ, arguments)


def settings_in_file(path: str | os.PathLike[str]) -> Settings:
    """The configuration in one file. Relative paths are relative to its folder. Raises as :func:`settings_of`."""
    place = Path(path).expanduser().absolute()
    try:
        return _read_file(place)
    except InvalidArgument as error:
        if error.argument != "policy":
            raise
        rest = error.problem.removeprefix(f"{place.name}:")
        problem = error.problem if rest == error.problem else f"{place}:{rest}"
        raise InvalidArgument("config", problem, remediation=error.remediation) from None


def _join_settings(read: Settings, environ: Mapping[str, str], arguments: Mapping[str, Any]) -> Settings:
    settings = {**read.given, **settings_in(environ), **dict(_given_settings(arguments))}
    policy = read.policy
    policy_setting = settings.get("policy")
    is_read = all(settings.get(name) == read.given.get(name) for name in ("policy", "workspace"))
    if policy_setting is not None and not is_read:
        workspace = settings.get("workspace")
        policy = _policy_of(policy_setting, None if workspace is None else workspace.value)
        kept = (one for one in read.policy.settings if one.name.startswith(_LIMIT))
        settings = {**{one.name: one for one in kept if one.name.removeprefix(_LIMIT) not in policy.limits}, **settings}
    return Settings(read.file, policy, settings)


def _given_settings(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Setting]]:
    for name, value in arguments.items():
        if name not in KEYS:
            from casemate.model.foreign import suggest

            raise InvalidArgument(name, f"is not a known key{suggest(name, KEYS)}")
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
    """The store of secrets, as a ``Sandbox`` takes it. Raises ``VaultUnavailable``."""
    if place == "memory":
        return None
    if place != "user":
        return place
    from casemate.vault.vault import users_store

    return users_store(environ)


_NOTHING = Settings(None, NO_POLICY, {})
_STORES = ("user", "memory")


def _read_file(path: Path) -> Settings:
    from casemate.policy.document import PolicyDocument
    from casemate.policy.reading import policy_of

    read, folder = document_in(path, "config")
    document = PolicyDocument(str(path), read.values, read.lines)
    policy = policy_of(document, folder, home(), FILE_KINDS)
    settings = {one.name: one for one in _beside_policy(document, folder)}
    if "policy" in settings:
        if beside := next((name for name in document.values if name in POLICY_KINDS), None):
            where = document.where((beside,))
            problem = "the policy is in another file, which policy names; set it there"
            raise InvalidArgument("config", f"{where}: {beside}: {problem}")
        policy = policy_from(settings["policy"].value)
    return Settings(str(path), policy, settings)


def _beside_policy(document: PolicyDocument, folder: str) -> Iterator[Setting]:
    """The values that are not in the policy."""
    from casemate.policy.reading import absolute

    for key in KEYS.values():
        path = tuple(key.name.split("."))
        value: Any = document.values
        for name in path:
            value = (value or {}).get(name)
        if value is None or path[0] in POLICY_KINDS:
            continue
        if key.form == "path" and isinstance(value, str) and not (key.name == "vault" and value in _STORES):
            value = absolute(document, path, value, folder, home())
        yield Setting(key.name, value, document.where(path))


def arguments_of_file(
    path: str | os.PathLike[str], environ: Mapping[str, str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments in a file, replaced by those in ``options``. ``environ`` names the user's folders.

    Raises ``InvalidArgument`` that names file, line and key, and ``VaultUnavailable``.
    """
    if options.get("policy") is not None:
        raise InvalidArgument(
            "policy",
            f"would replace what {os.fspath(path)!r} permits, and arguments only narrow that",
            remediation="Write one file that permits both, or give the policy alone.",
        )
    settings = _join_settings(settings_in_file(path), {}, _given_workspace(options))
    return {**settings.sandbox_arguments(environ), **options}


def arguments_of_environment(environ: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in ``CASEMATE_*`` variables, and in the file that ``CASEMATE_CONFIG`` names, replaced by those in
    ``options``.

    Raises as :func:`arguments_of_file`, naming the variable.
    """
    for remark in foreign_variables(environ):
        warnings.warn(remark, stacklevel=3)
    settings = settings_of_variables(environ, _given_workspace(options))
    return {**settings.sandbox_arguments(environ), **options}


def _given_workspace(options: Mapping[str, Any]) -> dict[str, str]:
    """The workspace in ``options``: paths in srt's keys start there."""
    given = options.get("workspace")
    return {"workspace": os.fspath(given)} if isinstance(given, str | os.PathLike) else {}
