"""Where the places of a cell are in truth: without a mount namespace /workspace is a folder of another name. Pure."""

from __future__ import annotations

from casemate.supervisor import wire

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Iterable

    Table = list[list[str]]  # place in a cell, and where that is; what lies deeper comes first

PACKAGES = ("/packages/python", "/packages/node")  # where packages are that were installed
# Where programs are told to do without the machine's own settings, which they may not read, though they see them.
UNREADABLE = {"GIT_CONFIG_NOSYSTEM": "1", "SYSTEM_WGETRC": "/dev/null"}


def table(pairs: Iterable[tuple[str, str]]) -> Table:
    """``pairs`` as a table, of two for one place the last; what is where it seems is in it only below what is not."""
    last = dict(pairs)
    moved = tuple(f"{inside}/" for inside, real in last.items() if inside != real)
    return sorted(([*row] for row in last.items() if row[0] != row[1] or row[0].startswith(moved)), key=_depth)


def _depth(row: list[str]) -> tuple[int, str]:
    return -row[0].count("/"), row[0]


def own(cell: str) -> list[tuple[str, str]]:
    """The places that each cell has of its own, below the folder ``cell``."""
    own = [(inside.rstrip("/"), f"{cell}/{name}") for inside, name in wire.OWN_PLACES.items() if name != "shm"]
    return [*own, *((place, cell + place) for place in PACKAGES)]


def real(path: str, places: Table) -> str:
    """Where ``path`` of a cell is."""
    for inside, there in places:
        if path == inside or path.startswith(f"{inside}/"):
            return there + path[len(inside) :]
    return path


def real_words(text: str, places: Table) -> str:
    """The same for each path in a list such as PATH, which any variable or argument may be."""
    return ":".join(real(word, places) for word in text.split(":")) if "/" in text else text


def command(argv: Iterable[str], env: dict[str, str], places: Table) -> tuple[list[str], dict[str, str]]:
    """A command and its variables, as they are to be executed."""
    moved = {name: real_words(value, places) for name, value in env.items()}
    more = {**UNREADABLE, "CASEMATE_CELL": real("/program", places).removesuffix("/program")} if places else {}
    return [real_words(word, places) for word in argv], {**more, **moved}
