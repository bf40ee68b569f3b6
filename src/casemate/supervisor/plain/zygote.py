"""What a zygote does otherwise where its cells have no mounts: its own places have other names than theirs.

A cell's folder has a name as long as the zygote's. A program's process, forked from the zygote, puts the one for the
other wherever it names a place: in its variables, its search path, its arguments, and in what the interpreter remembers
of its command line, which is no Python object.
"""

from __future__ import annotations

import ctypes
import sys

from casemate.supervisor.plain import init, places

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from typing import Any

_find = ctypes.PyDLL(None)["memmem"]
_find.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
_find.restype = ctypes.c_void_p
_CACHED_FOLDERS = ("get_configdir", "get_cachedir")  # of matplotlib


class PlainZygote:
    """``settings``: what the supervisor has sent."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._places: places.Table = settings["places"]
        self._folder: str = settings["folder"]
        self._remembered: list[int] = []  # addresses of the program's path in the interpreter's own memory
        self._program = sys.argv[0]

    def real(self, path: str) -> str:
        """Where ``path`` of a cell is here."""
        return places.real(path, self._places)

    def find_path(self) -> str | None:
        """Find where the interpreter remembers the program's path; what is wrong where it cannot be found.

        It is looked for in place: what is freed begins otherwise (malloc(3)), and a copy of ours would be found, too.
        """
        wanted = ctypes.create_unicode_buffer(self._program)
        size, here = ctypes.sizeof(wanted), ctypes.addressof(wanted)
        with open("/proc/self/maps") as maps:
            regions = [line.split(None, 5) for line in maps]
        for span, rights, *rest in regions:
            at, last = (int(end, 16) for end in span.split("-"))
            if rights.startswith("rw") and (len(rest) < 4 or rest[3].strip() == "[heap]"):
                while address := _find(at, last - at, here, size) or 0:
                    if address != here:
                        self._remembered.append(address)
                    at = address + 4
        return None if self._remembered else "the interpreter's own record of its program was not found"

    def run_init(self, channel: int, status: int, cgroup_fds: list[int]) -> places.Table:
        """As `init.run`; in a program's process, which then has its own places."""
        self._places = init.run(channel, status, cgroup_fds, self._settings)
        before, self._folder = self._folder, self.real("/program").removesuffix("/program")
        self._move(before, self._folder)
        return self._places

    def translate(self, order: dict[str, Any]) -> dict[str, Any]:
        """A program's order, with the places that it names where they are."""
        matplotlib: Any = sys.modules.get("matplotlib")
        for name in _CACHED_FOLDERS:
            _forget(getattr(matplotlib, name, None))
        arguments, env = places.command(order["arguments"], order["env"], self._places)
        return {**order, "arguments": arguments, "env": env}

    def _move(self, before: str, folder: str) -> None:
        text = ctypes.create_unicode_buffer(self._program.replace(before, folder))
        for address in self._remembered:
            ctypes.memmove(address, text, ctypes.sizeof(text))
        for texts in (sys.argv, sys.orig_argv, sys.path):
            texts[:] = [text.replace(before, folder) for text in texts]
        for place in [place for place in sys.path_importer_cache if before in place]:
            del sys.path_importer_cache[place]


def _forget(function: Any) -> None:
    """Have matplotlib look for a folder again, which its function remembers in a variable of its own."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, variable in zip(names, getattr(function, "__closure__", None) or (), strict=True):
        if name == "called":
            variable.cell_contents = False
