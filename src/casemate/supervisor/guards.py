"""What of a folder of the host's a cell must not see, or not change: laid over the folder before the cell has it.

It is put together here, where nothing of a cell runs, and every name is opened from the folder downwards without
following a link, so that nothing that lies in the folder can lead a mount elsewhere (CVE-2026-87766 is that mistake).
A mount lies over a file, not over a name: a file that another process of the host's renames to that name later
is not covered (mount_namespaces(7)).
"""

from __future__ import annotations

import os
import stat

from casemate.supervisor import kernel, stage

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_QUIET = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV


def is_plain(folder: dict[str, Any]) -> bool:
    """Whether nothing is to be laid over ``folder``, and it appears at one place."""
    return not folder["hidden"] and not folder["kept"] and len(folder["places"]) == 1


def guarded(tree: int, folder: dict[str, Any]) -> list[int]:
    """The detached mount ``tree``, which is given away, once for each of the folder's places.

    ``hidden`` and ``kept`` of ``folder`` are paths beneath it, or empty for all of it: nobody reads the first, nobody
    changes the second, and neither can be moved away. Raises ``OSError``, also where one of them is gone.
    """
    stand = stage.GUARDED if stat.S_ISDIR(os.fstat(tree).st_mode) else stage.GUARDED_FILE
    try:
        kernel.move_mount(tree, stand)
    finally:
        os.close(tree)
    made: list[int] = []
    try:
        pins_all = folder.get("kind") == "direct"
        for path, lay in _in_order(folder["hidden"], folder["kept"], pins_all):
            _lay_at(stand, path, lay)
        made.extend(kernel.open_tree(stand) for _ in folder["places"])
    except BaseException:
        for fd in made:
            os.close(fd)
        raise
    finally:
        kernel.unmount(stand)
    return made


def _in_order(hidden: Iterable[str], kept: Iterable[str], pins_all: bool) -> list[tuple[str, Any]]:
    """What to lay where, outer folders first. A folder on the way to what is kept is made a mount of its own: then it
    cannot be renamed to make room for another. ``pins_all``: also on the way to what is hidden, where a renamed folder
    would be one on the host's disk, too."""
    wanted = {}
    for path in (*kept, *(hidden if pins_all else ())):
        parts = path.split("/")
        for depth in range(1, len(parts)):
            wanted["/".join(parts[:depth])] = _pin
    wanted.update(dict.fromkeys(kept, _keep))
    wanted.update(dict.fromkeys(hidden, _hide))
    return sorted(wanted.items(), key=lambda item: item[0].count("/") + (item[0] != ""))


def _lay_at(stand: str, path: str, lay: Any) -> None:
    try:
        _at(stand, path, lay)
    except OSError as error:
        told = f"{path!a}, which is to be hidden or kept: {error.strerror}"
        raise OSError(error.errno, told) from error


def _at(stand: str, path: str, lay: Any) -> None:
    """Lay something over what is at ``path`` of the folder now."""
    place = os.open(stand, os.O_PATH | os.O_CLOEXEC)
    try:
        for name in filter(None, path.split("/")):
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            os.close(place)
            place = inner
        lay(place)
    finally:
        os.close(place)


def _hide(place: int) -> None:
    is_folder = stat.S_ISDIR(os.fstat(place).st_mode)
    _lay(kernel.open_tree(stage.LOCKED if is_folder else stage.BLANK), place, _QUIET | kernel.ATTR_NOEXEC)


def _keep(place: int) -> None:
    _lay(kernel.open_tree(f"/proc/self/fd/{place}"), place, kernel.ATTR_RDONLY)


def _pin(place: int) -> None:
    _lay(kernel.open_tree(f"/proc/self/fd/{place}"), place, 0)


def _lay(tree: int, place: int, attributes: int) -> None:
    try:
        if attributes:
            kernel.set_attributes(tree, attributes)
        kernel.move_mount_onto(tree, place)
    finally:
        os.close(tree)
