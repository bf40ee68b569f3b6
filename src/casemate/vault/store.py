"""Where secrets are kept: the interface, and the two stores that write nothing down.

What is kept is a value, or an ``Injected``: a value with the requests that it may be put into.
Above is :class:`casemate.vault.vault.Vault`, which a sandbox opens for its namespace; it checks names and values.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from typing import Protocol

from casemate.errors import InvalidArgument
from casemate.policy.inject import Inject, Injected

SECRET_PREFIX = "CASEMATE_SECRET_"  # noqa: S105 - the beginning of names, each of which is a secret
INJECT_PREFIX = "CASEMATE_INJECT_"  # and where one may go
Kept = str | Injected
_NAMESPACE = re.compile(r"[a-z0-9]+\Z")


class VaultStore(Protocol):
    """Keeps values by namespace and name. Called from any thread, and may block; raises ``CasemateError`` only.

    It never answers for another namespace than the one that it was asked for, whatever that is called.
    """

    def get(self, namespace: str, name: str) -> Kept | None:
        """What is kept, or None where there is nothing."""

    def set(self, namespace: str, name: str, value: Kept) -> None:
        """Keep it, in place of one of that name; or raise."""

    def delete(self, namespace: str, name: str) -> bool:
        """Forget it; whether there was one."""

    def names(self, namespace: str) -> tuple[str, ...]:
        """The names that there are, in order."""


class MemoryStore:
    """Secrets that end with the process."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, Kept]] = {}
        self._lock = threading.Lock()

    def get(self, namespace: str, name: str) -> Kept | None:
        with self._lock:
            return self._values.get(namespace, {}).get(name)

    def set(self, namespace: str, name: str, value: Kept) -> None:
        with self._lock:
            self._values.setdefault(namespace, {})[name] = value

    def delete(self, namespace: str, name: str) -> bool:
        with self._lock:
            return self._values.get(namespace, {}).pop(name, None) is not None

    def names(self, namespace: str) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted(self._values.get(namespace, {})))


class EnvironmentStore:
    """Secrets from variables of the host, ``CASEMATE_SECRET_{NAMESPACE}_{NAME}``; read-only.

    ``CASEMATE_INJECT_{NAMESPACE}_{NAME}`` says in JSON where one may go: ``{"hosts": ["api.example.org"]}``, and
    ``"header"`` and ``"format"`` where they are not the usual ones. What cannot be read there is an error.

    Only namespaces of small letters and digits have any, written in capitals: the first ``_`` then ends the namespace,
    and no two namespaces share a variable.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def get(self, namespace: str, name: str) -> Kept | None:
        prefix = self._prefix(namespace)
        value = self._environ.get(f"{prefix}{name}") if prefix else None
        where = self._environ.get(f"{INJECT_PREFIX}{prefix.removeprefix(SECRET_PREFIX)}{name}")
        return value if value is None or where is None else Injected(value, _inject(name, where))

    def set(self, namespace: str, name: str, value: Kept) -> None:  # noqa: ARG002 - the interface's
        raise InvalidArgument("name", f"{name} cannot be set in the host's environment, which is only read")

    def delete(self, namespace: str, name: str) -> bool:
        if self.get(namespace, name) is None:
            return False
        raise InvalidArgument("name", f"{name} comes from a variable of the host, {SECRET_PREFIX}…; take it away there")

    def names(self, namespace: str) -> tuple[str, ...]:
        prefix = self._prefix(namespace)
        if not prefix:
            return ()
        return tuple(sorted(one.removeprefix(prefix) for one in self._environ if one.startswith(prefix)))

    def _prefix(self, namespace: str) -> str:
        return f"{SECRET_PREFIX}{namespace.upper()}_" if _NAMESPACE.match(namespace) else ""


class Layered:
    """One store over another: what is set is set in the upper one, and hides what is below."""

    def __init__(self, upper: VaultStore, lower: VaultStore) -> None:
        self._upper, self._lower = upper, lower

    def get(self, namespace: str, name: str) -> Kept | None:
        value = self._upper.get(namespace, name)
        return self._lower.get(namespace, name) if value is None else value

    def set(self, namespace: str, name: str, value: Kept) -> None:
        self._upper.set(namespace, name, value)

    def delete(self, namespace: str, name: str) -> bool:
        return self._upper.delete(namespace, name) or self._lower.delete(namespace, name)

    def names(self, namespace: str) -> tuple[str, ...]:
        return tuple(sorted({*self._upper.names(namespace), *self._lower.names(namespace)}))


def _inject(name: str, text: str) -> Inject:
    try:
        return Inject.read(json.loads(text))
    except (ValueError, RecursionError):
        problem = "it is not JSON"
    except InvalidArgument as error:
        problem = error.message
    raise InvalidArgument("secrets", f"the variable {INJECT_PREFIX}… of {name} does not say where it may go: {problem}")
