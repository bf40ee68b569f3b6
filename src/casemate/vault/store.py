"""The interface of secret stores, and the two stores that write nothing to disk.

A store keeps values, or ``Injected``: values with the requests that they may be put into. A sandbox uses it through
:class:`casemate.vault.vault.Vault`, which checks names and values.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from typing import Protocol

from casemate.errors import InvalidArgument
from casemate.policy.inject import Inject, Injected

SECRET_PREFIX = "CASEMATE_SECRET_"  # noqa: S105 - a prefix of variable names
INJECT_PREFIX = "CASEMATE_INJECT_"  # where a secret may go
Kept = str | Injected
_NAMESPACE = re.compile(r"[a-z0-9]+\Z")


class VaultStore(Protocol):
    """Keeps values by namespace and name. Called from any thread; may block. Raises only ``CasemateError``.

    It must never return anything of another namespace, whatever characters a namespace's name has.
    """

    def get(self, namespace: str, name: str) -> Kept | None:
        """Return the stored value, or None."""

    def set(self, namespace: str, name: str, value: Kept) -> None:
        """Store a value, replacing any of that name, or raise."""

    def delete(self, namespace: str, name: str) -> bool:
        """Delete a value. Returns whether there was one."""

    def names(self, namespace: str) -> tuple[str, ...]:
        """Return all names, sorted."""


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
    ``"header"`` and ``"format"`` if they differ from the defaults. Anything invalid there is an error.

    Only namespaces of lowercase letters and digits have variables, which spell them in capitals. So the first ``_``
    ends the namespace, and no two namespaces share a variable.
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
    """One store over another. Values are set in the upper store and hide those in the lower."""

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
