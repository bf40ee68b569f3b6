"""What differs between ways to make cells: with namespaces and mounts (`namespaced`), or without (`plain.maker`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from casemate.supervisor.namespaces import Identities, Identity


class Maker(Protocol):
    """Makes cells for one supervisor. What can fail raises ``OSError``.

    ``identities``: who the cells are on the host. A ``pending`` cell and the ready one that is made of it are those of
    `pool`, a ``cell`` is one of `cells`, and what is writable in it one of `scratch`.
    """

    identities: Identities

    def seccomp_program(self, *, memory_is_counted: bool) -> bytes:
        """The filter of system calls."""

    def build_root(self, key: str, entries: list[dict[str, Any]]) -> Any:
        """What cells of one environment see. Raises ``RootError``, too."""

    def prefork(self, pending: Any, program: bytes) -> Any:
        """Fork the process of ``pending`` from this one."""

    def adopt_process(self, pid: int, pending: Any) -> Any:
        """Our child ``pid``, which a zygote has made, is the process of ``pending``."""

    def start_zygote(self, root: Any, request: dict[str, Any], fds: dict[int, int]) -> tuple[int, dict[str, Any]]:
        """Start a zygote; its pid, and what it is to be told besides."""

    def prepare_scratch(self, request: dict[str, Any], fds: dict[str, int], identity: Identity, root: Any) -> Any:
        """What is writable in a cell. Raises ``ScratchError``."""

    def prepare_again(self, request: dict[str, Any], earlier: Any, root: Any) -> Any:
        """The same for a session's next cell; ``earlier`` is used up."""

    def attend(self, cell: Any, watch: Callable[..., None], unwatch: Callable[[int], None]) -> None:
        """The cell has its request: ``watch`` whatever of it wants to be read."""

    def is_survived(self, cell: Any) -> bool:
        """Whether something of a cell that has ended may live: its first process did not end it."""

    def leave(self, cell: Any) -> None:
        """The cell's first process has ended and is reaped."""

    def open_listeners(self, cell: Any, sockets: Sequence[Sequence[object]]) -> list[int]:
        """Sockets in the cell's network, on which the host answers: kind, IPv4 address and port of each."""

    def show_folder(self, cell: Any, source: str, target: str) -> None:
        """Show a folder of the host, as it is now, in a cell that lives."""
