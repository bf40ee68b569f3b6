"""The zygote's variant for cells without mounts. A cell's folders differ from those of the zygote.

A cell's folder has a name as long as the zygote's. A program's process, forked from the zygote, replaces one by the
other in variables, the search path, arguments, and the interpreter's own C copy of its command line.
"""

from __future__ import annotations

import ctypes
import sys

from casemate.supervisor.plain import init, places

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from typing import Any

_find = ctypes.PyDLL(None)["memmem"]
_find.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
_find.restype = ctypes.c_void_p
_CACHED_FOLDERS = ("get_configdir", "get_cachedir")  # of matplotlib


class PlainZygote:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._places: places.Table = settings["places"]
        self._folder: str = settings["folder"]
        self._remembered: list[int] = []  # addresses of the program's path in the interpreter's C memory
        self._program = sys.argv[0]

    def real(self, path: str) -> str:
        """The real path of a cell's ``path``."""
        return places.real(path, self._places)

    def find_path(self) -> str | None:
        """Find the program's path in the interpreter's C memory. Returns the problem, or None. The search is in place,
        because a copied region would be found as well. Freed memory starts with other data (malloc(3))."""
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
        """`init.run`. In a program's process, it then switches to the cell's own places."""
        self._places = init.run(channel, status, cgroup_fds, self._settings)
        before, self._folder = self._folder, self.real("/program").removesuffix("/program")
        self._move(before, self._folder)
        return self._places

    def translate(self, order: dict[str, Any]) -> dict[str, Any]:
        """A program's order, with real paths."""
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
    """Clear the folder that matplotlib caches in a closure variable of ``function``."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, variable in zip(names, getattr(function, "__closure__", None) or (), strict=True):
        if name == "called":
            variable.cell_contents = False
