"""``vault``: the secrets of a namespace, which go in and never come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from casemate.api.options import Name, Names
from casemate.model.operation import Most, operation
from casemate.policy.inject import Inject

if TYPE_CHECKING:
    from casemate.operations.desk import Desk

Value = Annotated[str, Most(1 << 20)]
Template = Annotated[str, Most(200)]


@dataclass(frozen=True, slots=True)
class SecretName:
    """A secret that there is; ``inject``: where its value is put, nothing for one that programs get."""

    name: str
    inject: Inject | None


class Vault:
    """The secrets of the desk's sandbox."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @operation()
    async def set(
        self,
        name: Name,
        value: Value,
        *,
        hosts: Names | None = None,
        header: Name = "Authorization",
        format: Template = "Bearer {}",  # noqa: A002 - as Inject calls it
    ) -> None:
        """Keep a secret, in place of one of that name.

        ``name``: of the variable that programs get. ``value``: the secret, which nothing gives back. ``hosts``: where
        the door puts it into requests: then programs get a placeholder instead. ``header``: the field of such requests.
        ``format``: the whole of that field, with {} for the secret.
        """
        inject = None if hosts is None else Inject(tuple(hosts), header, format)
        await self._desk.sandbox.vault.set(name, value, inject=inject)

    @operation()
    async def delete(self, name: Name) -> None:
        """Forget a secret. ``name``: of its variable."""
        await self._desk.sandbox.vault.delete(name)

    @operation()
    async def names(self) -> list[SecretName]:
        """The names that there are, never a value."""
        return [SecretName(name, inject) for name, inject in (await self._desk.sandbox.vault.injects()).items()]
