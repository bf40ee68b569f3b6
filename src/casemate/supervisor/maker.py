"""The interface of cell makers: with namespaces and mounts (`namespaced`), or without (`plain.maker`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from casemate.supervisor.namespaces import Identities, Identity


class Maker(Protocol):
    """Makes cells for one supervisor. Methods that can fail raise ``OSError``."""

    identities: Identities  # who the cells are on the host

    def seccomp_program(self, *, memory_is_counted: bool) -> bytes:
        """The filter of system calls."""

    def build_root(self, key: str, entries: list[dict[str, Any]]) -> Any:
        """The root that cells of one environment see. Also raises ``RootError``."""

    def prefork(self, pending: Any, program: bytes) -> Any:
        """Fork the process of ``pending`` from the supervisor."""

    def adopt_process(self, pid: int, pending: Any) -> Any:
        """Make the child ``pid``, forked by a zygote, the process of ``pending``."""

    def start_zygote(self, root: Any, request: dict[str, Any], fds: dict[int, int]) -> tuple[int, dict[str, Any]]:
        """Start a zygote. Returns its pid, and further settings to send it."""

    def prepare_scratch(self, request: dict[str, Any], fds: dict[str, int], identity: Identity, root: Any) -> Any:
        """The scratch of a new cell. Raises ``ScratchError``."""

    def prepare_again(self, request: dict[str, Any], earlier: Any, root: Any) -> Any:
        """The scratch of a session's next cell. Consumes ``earlier``."""

    def attend(self, cell: Any, watch: Callable[..., None], unwatch: Callable[[int], None]) -> None:
        """Called once the cell has its request: ``watch`` descriptors that need reading."""

    def is_survived(self, cell: Any) -> bool:
        """Whether processes of an ended cell may still run, because its first process did not end them."""

    def leave(self, cell: Any) -> None:
        """Called once the cell's first process is reaped."""

    def open_listeners(self, cell: Any, sockets: Sequence[Sequence[object]]) -> list[int]:
        """Sockets in the cell's network for the host to answer on, given kind, IPv4 address and port of each."""

    def show_folder(self, cell: Any, source: str, target: str) -> None:
        """Show a host folder, as it is now, in a running cell."""
