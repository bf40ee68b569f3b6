"""The secrets of one namespace for casemate's own use: what connects to servers reads and keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field

from casemate.policy.inject import Injected
from casemate.vault.store import Store


@dataclass(frozen=True, slots=True)
class Held:
    """Not for programs, nor for callers: it hands out values. Its methods may block, and raise ``CasemateError``."""

    store: Store = field(repr=False)
    namespace: str

    def get(self, name: str) -> str | None:
        """The value, or None where there is none."""
        kept = self.store.get(self.namespace, name)
        return kept.value if isinstance(kept, Injected) else kept

    def set(self, name: str, value: str) -> None:
        """Keep it."""
        self.store.set(self.namespace, name, value)

    def delete(self, name: str) -> bool:
        """Forget it; whether there was one."""
        return self.store.delete(self.namespace, name)
