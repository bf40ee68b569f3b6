"""Shell programs: bash, or sh where there is no bash."""

from __future__ import annotations

import functools
import os
import re
import shutil
from pathlib import Path

from casemate.errors import RuntimeMissing
from casemate.model.plan import PROGRAM, Launch
from casemate.runtimes.places import entries_for, hops
from casemate.runtimes.runtime import SYSTEM_PATH, Environment, Installed

_REMEDY = "apt-get install bash"


class ShellRuntime:
    """Plain ``bash main.sh``: no hook, so nothing of it speaks on the control pipe."""

    language = "shell"
    aliases = ("bash", "sh")
    extensions = (".sh", ".bash")
    default_name = "main.sh"
    reports = False
    reserve = 0

    def launch(
        self,
        environment: Environment,  # noqa: ARG002 - only Python has any
        program_name: str,
        arguments: tuple[str, ...],
        *,
        memory: int | None = None,  # noqa: ARG002 - only Node must be told
    ) -> Launch:
        """See :class:`casemate.runtimes.runtime.Runtime`; ``environment`` is about Python alone."""
        shell = _find()
        if shell is None:
            raise RuntimeMissing("shell", "neither bash nor sh was found", remediation=f"Install one: {_REMEDY}")
        return Launch(
            language=self.language,
            version=_version(shell),
            entries=entries_for([shell], hops(shell)),
            argv=(str(shell), f"{PROGRAM}/{program_name}", *arguments),
        )

    def installed(self) -> Installed:
        """The shell that is used."""
        shell = _find()
        if shell is None:
            return Installed(self.language, missing="neither bash nor sh was found", remedy=_REMEDY)
        return Installed(self.language, version=_version(shell), path=str(shell))


def _find() -> Path | None:
    for name in ("bash", "sh"):
        found = shutil.which(name, path=f"{SYSTEM_PATH}:{os.defpath}:/run/current-system/sw/bin")
        if found:
            return Path(found)
    return None


@functools.cache
def _version(shell: Path) -> str:
    """Read from the program file: a shell is not worth starting for its version. Empty when it does not say."""
    try:
        match = re.search(rb"version (\d+\.\d+\.\d+)", shell.read_bytes())
    except OSError:
        return ""
    return match[1].decode() if match else ""
