"""``casemate completion``: what a shell needs to complete commands and options."""

from __future__ import annotations

import sys
from typing import Literal

Shell = Literal["bash", "zsh", "fish"]
# What cyclopts leaves out. Its file for zsh only defines a function, and nothing calls that; and names of files are
# completed by fish alone.
_BASH = ("complete -F _casemate casemate", "complete -o bashdefault -o default -F _casemate casemate")
_ZSH = """
_casemate_or_files() {
  local insert=$compstate[insert]
  _cyclopts_casemate "$@"
  (( compstate[nmatches] )) && return
  compstate[insert]=$insert
  _files
}

if [[ $funcstack[1] == _casemate ]]; then
  _casemate_or_files "$@"
else
  compdef _casemate_or_files casemate
fi
"""


def completion(shell: Shell, /) -> int:
    """Print what makes a shell complete casemate's commands and options; docs/reference/cli.md says where it goes.

    casemate completion bash > ~/.local/share/bash-completion/completions/casemate

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from casemate.surfaces.cli import application

    script = application().generate_completion(prog_name="casemate", shell=shell)
    sys.stdout.write(script.replace(*_BASH) + (_ZSH if shell == "zsh" else ""))
    return 0
