"""Compiles init.c (src/casemate/supervisor) where there is a C compiler: a step of the build of a wheel, and a program.

    python packaging/build_init.py

A wheel has it inside. Without a compiler cells begin by init.py, which takes more processor time; `casemate doctor`
says so.
"""

from __future__ import annotations

import binascii
import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]
SOURCE, LIBRARY = "src/casemate/supervisor/init.c", "src/casemate/supervisor/libinit.so"
# Nothing is linked: what it uses of the C library is found where it is loaded, in whichever version that has. What
# _FORTIFY_SOURCE, a default of some compilers, would call is not in every one.
FLAGS = (
    *("-std=gnu11", "-O2", "-fPIC", "-shared", "-nostdlib", "-fstack-protector-strong", "-U_FORTIFY_SOURCE"),
    *("-Wall", "-Wextra", "-Wconversion", "-Wl,-z,relro,-z,now,-z,noexecstack"),
)
PLATFORMS = ("manylinux2014", "musllinux_1_1")  # it names no version of a symbol, so any C library of Linux will do


class InitBuilder(BuildHookInterface[Any]):
    """Puts the library into a wheel, which is for this machine then."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        problem = build()
        if problem:
            self.app.display_warning(f"cells will begin by Python, which takes more processor time: {problem}")
            return
        build_data["artifacts"].append(LIBRARY)
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + ".".join(f"{one}_{platform.machine()}" for one in PLATFORMS)


def build() -> str:
    """Compile it; why that cannot be, or nothing."""
    library = ROOT / LIBRARY
    library.unlink(missing_ok=True)
    compiler, *options = shlex.split(os.environ.get("CC") or "cc")
    if sys.platform != "linux" or shutil.which(compiler) is None:
        return "there is no C compiler" if sys.platform == "linux" else "this is not Linux"
    source = f"-DSOURCE={binascii.crc32((ROOT / SOURCE).read_bytes())}u"
    made = library.with_name("libinit.new.so")  # no process loads half of it
    command = [compiler, *options, *FLAGS, source, "-o", str(made), SOURCE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip() or f"{compiler} ended with {done.returncode}"
    try:
        ctypes.CDLL(str(made))
    except OSError as error:
        made.unlink()
        return f"what {compiler} makes cannot be loaded here: {error}"
    made.replace(library)
    return ""


if __name__ == "__main__":
    sys.exit(build() or 0)
