"""A configuration file: a policy's keys, those of a sandbox, and those of the service and of ``casemate serve``."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from casemate.api.config import document_in, home, policy_from
from casemate.api.settings.table import KEYS, POLICY_KEYS
from casemate.api.settings.values import checked
from casemate.errors import InvalidArgument
from casemate.policy.policy import NO_POLICY, Policy, Setting

if TYPE_CHECKING:
    from casemate.policy.document import Document

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


def configured(path: str | Path) -> Configured:
    """What the file says. Raises ``InvalidArgument`` that names file, line and key, and the nearest one that there is.

    Relative paths in it are relative to its folder.
    """
    place = Path(path).expanduser().absolute()
    try:
        return _configured(place)
    except InvalidArgument as error:
        if error.argument != "policy":
            raise
        told = error.problem.removeprefix(f"{place.name}:")
        problem = error.problem if told == error.problem else f"{place}:{told}"
        raise InvalidArgument("config", problem, remediation=error.remediation) from None


def _configured(path: Path) -> Configured:
    from casemate.policy.document import Document
    from casemate.policy.reading import policy_of
    from casemate.policy.srt import is_srt

    read, folder = document_in(path, "config")
    place = str(path)
    document = Document(place, read.values, read.lines)
    if not is_srt(document):
        _check_names(document)
    own = {name: value for name, value in document.values.items() if name in (*_OWN, *_SECTIONS)}
    rest = {name: value for name, value in document.values.items() if name not in own}
    policy = policy_of(Document(place, rest, document.lines), folder, home(), arguments=True)
    settings = {one.name: one for one in _own(document, own, folder)}
    if "policy" in settings:
        _check_said_once(document, rest)
    for name, value in policy.arguments.items():
        settings[name] = Setting(name, value, document.where((name,)))
    if "policy" in settings:
        policy = policy_from(settings["policy"].value)
    return Configured(place, policy, settings)


def _check_names(document: Document) -> None:
    from casemate.model.nearest import meant

    for name in document.values:
        if name not in _TOP:
            _refuse(document, (name,), f"is no key that casemate knows{meant(name, [*_TOP, *KEYS])}")


def _own(document: Document, own: Mapping[str, Any], folder: str) -> Iterator[Setting]:
    """The values that are no policy's. Raises ``InvalidArgument``."""
    from casemate.model.nearest import meant

    for name, given in own.items():
        if name not in _SECTIONS:
            if given is not None:
                yield _setting(document, (name,), given, folder)
            continue
        if given is not None and not isinstance(given, Mapping):
            _refuse(document, (name,), "is no mapping of keys to values")
        for key, value in (given or {}).items():
            full = f"{name}.{key}"
            if full not in KEYS:
                known = [one for one in KEYS if one.startswith(f"{name}.")]
                _refuse(document, (name, key), f"is no key that casemate knows{meant(full, known)}")
            if value is not None:
                yield _setting(document, (name, key), value, folder)


def _setting(document: Document, path: tuple[str, ...], value: Any, folder: str) -> Setting:
    key = KEYS[".".join(path)]
    try:
        checked(key, value)
    except ValueError as error:
        _refuse(document, path, str(error))
    if key.form == "path" and not (key.name == "vault" and value in _STORES):
        value = home() + value[1:] if value == "~" or value.startswith("~/") else value
        value = posixpath.normpath(posixpath.join(folder, value))
    return Setting(key.name, value, document.where(path))


def _check_said_once(document: Document, rest: Mapping[str, Any]) -> None:
    if beside := next((name for name in rest if name in POLICY_KEYS), None):
        _refuse(document, (beside,), "the policy is another file's, which policy names; say it there")


def _refuse(document: Document, path: tuple[str, ...], problem: str) -> NoReturn:
    raise InvalidArgument("config", f"{document.where(path)}: {'.'.join(path)}: {problem}")
