"""Real paths of a cell's places: without a mount namespace, /workspace is a folder elsewhere. Pure."""

from __future__ import annotations

from casemate.supervisor import wire

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Iterable

    Table = list[list[str]]  # place in a cell, and its real path; deeper places come first

PACKAGES = ("/packages/python", "/packages/node")  # places of installed packages
# Variables that make programs ignore the machine's own settings, which are visible but not readable.
UNREADABLE = {"GIT_CONFIG_NOSYSTEM": "1", "SYSTEM_WGETRC": "/dev/null"}


def table(pairs: Iterable[tuple[str, str]]) -> Table:
    """A table of ``pairs``; the last for a place counts. Unmoved places are left out unless they lie in a moved one."""
    last = dict(pairs)
    moved = tuple(f"{inside}/" for inside, real in last.items() if inside != real)
    return sorted(([*row] for row in last.items() if row[0] != row[1] or row[0].startswith(moved)), key=_depth)


def _depth(row: list[str]) -> tuple[int, str]:
    return -row[0].count("/"), row[0]


def own(cell: str) -> list[tuple[str, str]]:
    """The places that each cell has for itself, below the folder ``cell``."""
    own = [(inside.rstrip("/"), f"{cell}/{name}") for inside, name in wire.OWN_PLACES.items() if name != "shm"]
    return [*own, *((place, cell + place) for place in PACKAGES)]


def real(path: str, places: Table) -> str:
    """The real path of a cell's ``path``."""
    for inside, there in places:
        if path == inside or path.startswith(f"{inside}/"):
            return there + path[len(inside) :]
    return path


def real_words(text: str, places: Table) -> str:
    """The real paths of a list such as PATH; any variable or argument may be one."""
    return ":".join(real(word, places) for word in text.split(":")) if "/" in text else text


def command(argv: Iterable[str], env: dict[str, str], places: Table) -> tuple[list[str], dict[str, str]]:
    """A command and its variables with real paths."""
    moved = {name: real_words(value, places) for name, value in env.items()}
    more = {**UNREADABLE, "CASEMATE_CELL": real("/program", places).removesuffix("/program")} if places else {}
    return [real_words(word, places) for word in argv], {**more, **moved}
