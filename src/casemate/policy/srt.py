"""Translates the settings keys of srt (@anthropic-ai/sandbox-runtime 0.0.83) into casemate's own. Pure.

A setting that casemate enforces more strictly gets a warning that says what holds instead. One that it would enforce
less strictly, or whose absence a program would notice, is an error. No key is ignored.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from casemate.errors import InvalidArgument
from casemate.model.addresses import is_never_public
from casemate.policy.document import Path, PolicyDocument
from casemate.policy.globs import is_pattern
from casemate.policy.policy import Writable

Entry = tuple[str, str]  # an absolute path or pattern, and its place in the file

# Readable in every cell under any policy. Other folders of the machine do not exist in a cell.
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/private/tmp", "/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty")
_OWN_MEANING = (
    "srt's filesystem keys: a cell sees only the system's programs, its environment's packages and the workspace; \
srt would show everything that is not denied"
)

# Keys of srt with no effect, or with less effect than casemate's own rule, which is the value.
_STRICTER = {
    ("enableWeakerNestedSandbox",): "casemate never weakens a wall; without one it refuses to run",
    ("allowNestedUserNamespaces",): "a cell makes no namespaces",
    ("filesystem", "allowGitConfig"): ".git/config stays protected",
    ("network", "allowLocalBinding"): "a cell always binds on its own loopback, never on this machine's",
    ("network", "allowUnixSockets"): "a cell cannot reach a socket of this machine",
    ("network", "allowAllUnixSockets"): "a cell can make sockets, but reaches none of this machine's",
    ("network", "deniedDomainReasons"): "the reasons are not shown to the program",
    ("ignoreViolations",): "every refusal is reported",
}
_NOTHING_HERE = "it has no effect in casemate on Linux"
_PLUMBING = (
    "ripgrep", "seccomp", "bwrapPath", "socatPath", "javaAgentJarPath", "windows", "git", "allowPty",
    "allowAppleEvents", "allowMachLookup", "enableWeakerNetworkIsolation", "mandatoryDenySearchDepth",
)  # fmt: skip
_NETWORK_PLUMBING = ("allowMachLookup", "allowPty", "allowAppleEvents", "enableWeakerNetworkIsolation")
_FILESYSTEM = (
    "denyRead",
    "allowRead",
    "allowWrite",
    "denyWrite",
    "disabled",
    "allowGitConfig",
    "mandatoryDenySearchDepth",
)
_NETWORK = ("allowedDomains", "deniedDomains", "strictAllowlist", "deniedResolvedAddresses", "requireHostMatch")
_DOORS_OF_ITS_OWN = (
    "httpProxyPort", "socksProxyPort", "mitmProxy", "parentProxy", "tlsTerminate", "filterRequest",
    "allowPlaintextHeaderSet", "stripResponseHeaders", "refuseOpaqueTunnels", "ambiguousRequestTarget",
)  # fmt: skip
_TOP = ("filesystem", "credentials", "allowNestedUserNamespaces", "enableWeakerNestedSandbox", "ignoreViolations")


@dataclass(slots=True)
class Translation:
    values: dict[str, Any]
    lines: dict[Path, int]
    hidden: list[Entry] = field(default_factory=list)
    unwritable: list[Entry] = field(default_factory=list)
    shown: list[Entry] = field(default_factory=list)  # in addition to the workspace
    undialled: list[tuple[str, str]] = field(default_factory=list)  # networks never to dial, each with its place
    writable: Writable | None = None  # the only writable folders
    warnings: list[str] = field(default_factory=list)


def is_srt(document: PolicyDocument) -> bool:
    """Whether the document has any key of srt."""
    values = document.values
    return isinstance(values.get("network"), Mapping) or bool(values.keys() & {*_TOP, *_PLUMBING})


def translate_settings(document: PolicyDocument, folder: str, home: str) -> Translation:
    """Translate the document into casemate's own keys. Keys that are casemate's own stay. ``folder`` is the absolute
    base of relative paths; ``home`` replaces ``~``. Raises ``InvalidArgument`` with file, line and key for a setting
    that casemate cannot enforce."""
    made = Translation(dict(document.values), dict(document.lines))
    reader = _SrtReader(document, made, folder, home)
    network, filesystem = made.values.pop("network", None), made.values.pop("filesystem", None)
    if network is not None and not isinstance(network, Mapping):
        made.values["network"] = network
        network = None
    for key in [key for key in made.values if key in _TOP or key in _PLUMBING]:
        reader.top(key, made.values.pop(key))
    if filesystem is not None:
        reader.filesystem(filesystem)
    if network is not None:
        reader.network(network)
    return made


class _SrtReader:
    def __init__(self, document: PolicyDocument, made: Translation, folder: str, home: str) -> None:
        self._document = document
        self._made = made
        self._folder = folder
        self._home = home

    def top(self, key: str, value: Any) -> None:
        """Translate a top-level key."""
        if key == "credentials" and value:
            self._refuse((key,), "casemate keeps secrets in its vault, not in a policy; use `casemate vault set`")
        elif (key,) in _STRICTER and value:
            self._warn((key,), _STRICTER[key,])
        elif key in _PLUMBING and value:
            self._warn((key,), _NOTHING_HERE)

    def network(self, keys: Mapping[str, Any]) -> None:
        """Translate ``network``."""
        for key, value in keys.items():
            path: Path = ("network", key)
            if path in _STRICTER or key in _NETWORK_PLUMBING:
                if value:
                    self._warn(path, _STRICTER.get(("network", key), _NOTHING_HERE))
            elif key in _DOORS_OF_ITS_OWN:
                if value not in (None, False, [], {}):
                    self._refuse(path, "casemate's own egress proxy does not have this setting")
            elif key not in _NETWORK:
                self._refuse(path, f"is not a known key; of srt's keys casemate knows {', '.join(_NETWORK)}")
        self._domains(keys)
        if self._flag(keys, "network", "requireHostMatch", usual=True) is False:
            self._refuse(("network", "requireHostMatch"), "names that disagree are always refused")
        if self._flag(keys, "network", "strictAllowlist"):
            self._set(
                "defaults", {**self._made.values.pop("defaults", {}), "egress": "deny"}, ("network", "strictAllowlist")
            )
        for path, text in self._texts(keys, "network", "deniedResolvedAddresses"):
            self._check_never_dialled(path, text)
            self._made.undialled.append((text, self._document.where(path)))

    def filesystem(self, keys: Any) -> None:
        """Translate ``filesystem``."""
        if not isinstance(keys, Mapping):
            self._refuse(("filesystem",), "is not a mapping")
        for key in keys:
            if key not in _FILESYSTEM:
                known = ", ".join(_FILESYSTEM)
                self._refuse(("filesystem", key), f"is not a known key; of srt's keys casemate knows {known}")
        if self._flag(keys, "filesystem", "disabled"):
            self._refuse(("filesystem", "disabled"), "casemate never shows the whole machine; give a workspace")
        if self._flag(keys, "filesystem", "allowGitConfig"):
            self._warn(("filesystem", "allowGitConfig"), _STRICTER["filesystem", "allowGitConfig"])
        self._workspace(keys)
        listed = tuple(text for _, text in self._paths(keys, "allowWrite"))
        self._made.writable = Writable(listed, self._document.where(("filesystem", "allowWrite")))
        for path, text in self._paths(keys, "allowRead"):
            self._check_shown(path, text)
        for path, text in self._paths(keys, "denyRead"):
            if _is_within(text, SYSTEM_FOLDERS):
                self._refuse(path, f"{text}: every cell sees the system's programs and libraries")
            self._made.hidden.append((text, self._document.where(path)))
        self._made.unwritable += [(text, self._document.where(path)) for path, text in self._paths(keys, "denyWrite")]
        if keys:
            self._made.warnings.append(f"{self._document.where(('filesystem',))}: {_OWN_MEANING}")

    def _domains(self, keys: Mapping[str, Any]) -> None:
        """Translate the lists of hosts. A list that is present, even an empty one, is a bound."""
        for theirs, ours in (("allowedDomains", "allowed_domains"), ("deniedDomains", "denied_domains")):
            if theirs not in keys:
                continue
            texts = [text for _, text in self._texts(keys, "network", theirs)]
            if theirs == "deniedDomains" and "*" in texts:
                self._set("network", "none", ("network", theirs))
                self._made.values.pop("allowed_domains", None)
                texts.remove("*")
            self._set(ours, texts, ("network", theirs))

    def _workspace(self, keys: Mapping[str, Any]) -> None:
        """Choose the workspace: the listed folder that contains the working folder, else the widest."""
        writable: list[tuple[Path, str]] = []
        for path, text in self._paths(keys, "allowWrite"):
            if not _is_within(text, (self._folder,)) and _is_within(text, _TEMPORARY):
                self._warn(path, f"{text}: a cell has its own, which is removed with it")
            elif is_pattern(text):
                self._refuse(path, f"{text}: a pattern cannot be the workspace; name the folder")
            else:
                writable.append((path, text))
        if not writable or "workspace" in self._made.values:
            return
        path, widest = min(writable, key=lambda one: len(one[1]))
        own = next((one for one in writable if _is_within(self._folder, (one[1],))), None)
        if own is not None:
            path, widest = own
        for other_path, other in writable:
            if own is not None and not _is_within(other, (widest,)):
                self._warn(other_path, f"{other}: does not exist in a cell, whose own home is removed with it")
            elif not _is_within(other, (widest,)):
                self._refuse(other_path, f"{other}: a cell writes in one folder of yours, which is already {widest}")
        if _is_within(self._home, (widest,)):
            self._refuse(path, f"{widest}: would show a cell the whole home folder; name the folder that it works in")
        self._set("workspace", widest, path)

    def _check_shown(self, path: Path, text: str) -> None:
        workspace = self._made.values.get("workspace")
        is_inside = isinstance(workspace, str) and _is_within(text, (self._absolute(workspace),))
        # The workspace is visible except for names that are hidden by default.
        if not (is_pattern(text) if is_inside else _is_within(text, SYSTEM_FOLDERS)):
            self._made.shown.append((text, self._document.where(path)))

    def _check_never_dialled(self, path: Path, text: str) -> None:
        try:
            is_private = is_never_public(text)
        except ValueError:
            self._refuse(path, f"{text!r} is not an address or range")
        if not is_private:
            self._refuse(path, f"{text}: casemate always refuses private addresses, and cannot refuse public ones")

    def _texts(self, keys: Mapping[str, Any], section: str, key: str) -> Iterator[tuple[Path, str]]:
        given = keys.get(key) or []
        if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
            self._refuse((section, key), "is not a list of texts")
        yield from (((section, key, place), text) for place, text in enumerate(given))

    def _paths(self, keys: Mapping[str, Any], key: str) -> Iterator[tuple[Path, str]]:
        """Yield each entry as an absolute path. It is a text or ``{path, literal}``."""
        given = keys.get(key) or []
        if not isinstance(given, list):
            self._refuse(("filesystem", key), "is not a list of paths")
        for place, entry in enumerate(given):
            path: Path = ("filesystem", key, place)
            text = entry.get("path") if isinstance(entry, Mapping) and entry.keys() <= {"path", "literal"} else entry
            if not isinstance(text, str) or not text or "\0" in text:
                self._refuse(path, "is not a path")
            if isinstance(entry, Mapping) and entry.get("literal") and is_pattern(text):
                self._refuse(path, f"{text!r}: a literal name with wildcards would be read as a pattern")
            yield path, self._absolute(text)

    def _absolute(self, text: str) -> str:
        if text == "~" or text.startswith("~/"):
            text = self._home + text[1:]
        return posixpath.normpath(posixpath.join(self._folder, text)).replace("//", "/")

    def _flag(self, keys: Mapping[str, Any], section: str, key: str, *, usual: bool = False) -> bool:
        value = keys.get(key, usual)
        if not isinstance(value, bool):
            self._refuse((section, key), f"{value!r} is neither true nor false")
        return value

    def _set(self, key: str, value: Any, source: Path) -> None:
        """Set one of casemate's own keys, with the lines of the srt key."""
        if key in self._made.values:
            self._refuse(source, f"is given twice: the file also has {key}")
        self._made.values[key] = value
        for path, line in self._document.lines.items():
            if path[: len(source)] == source:
                self._made.lines[(key, *path[len(source) :])] = line

    def _warn(self, path: Path, instead: str) -> None:
        self._made.warnings.append(f"{self._name(path)}: {instead}")

    def _refuse(self, path: Path, problem: str) -> NoReturn:
        raise InvalidArgument("policy", f"{self._name(path)}: {problem}")

    def _name(self, path: Path) -> str:
        return f"{self._document.where(path)}: {'.'.join(map(str, path))}"


def _is_within(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == one or path.startswith(one.rstrip("/") + "/") for one in folders)
