"""``casemate validate``: what is wrong with a program, without running it."""

from __future__ import annotations

from typing import Any

from casemate.api.sandbox import Sandbox
from casemate.errors import InvalidArgument
from casemate.surfaces.cli import interrupts
from casemate.surfaces.cli.answers import print_json, print_lines
from casemate.surfaces.cli.given import program_in
from casemate.surfaces.cli.parameters import Flag, Name, Output

_WRONG = 1  # the exit code of a program that cannot run


def validate(
    script: Name,
    /,
    *,
    language: str | None = None,
    fix: Flag = False,
    output: Output = "text",
) -> int:
    """Say what is wrong with a program, in a cell and without running it; the exit code is 1 where it cannot run.

    Parameters
    ----------
    script
        The program's file, or - for standard input.
    language
        python, node or shell, where the file's name does not say it.
    fix
        Print the program with what can be mended mended; its file is left alone.
    output
        text (unless given), or json.
    """
    code = program_in(script)
    spoken = language or ("python" if script == "-" else Sandbox.language_of(script))
    if spoken is None:
        raise InvalidArgument("language", f"cannot be told from the name of {script!r}; give --language NAME")
    found = interrupts.run(_validated(code, spoken, fix=fix))
    if output == "json":
        from casemate.operations.documents import document

        print_json(document(found))
    elif fix and found.fixed_code is not None:
        print(found.fixed_code, end="")  # noqa: T201 - the caller's own program
    else:
        print_lines(
            f"{script}:{issue.line}:{issue.column}: {issue.severity}: {issue.message}" for issue in found.issues
        )
    return 0 if found.valid else _WRONG


async def _validated(code: bytes, language: str, *, fix: bool) -> Any:
    async with Sandbox() as sandbox:
        return await sandbox.validate(code, language, fix=fix)
