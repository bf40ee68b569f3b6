"""``casemate completion``: what a shell needs to complete commands and options."""

from __future__ import annotations

import sys
from typing import Literal

Shell = Literal["bash", "zsh", "fish"]


def completion(shell: Shell, /) -> int:
    """Print what makes a shell complete casemate's commands and options; docs/cli.md says where it goes.

    casemate completion bash > ~/.local/share/bash-completion/completions/casemate

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from casemate.surfaces.cli import application

    sys.stdout.write(application().generate_completion(prog_name="casemate", shell=shell))
    return 0
