"""``casemate artifacts`` and ``verify``: files that runs have left."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate.errors import InvalidArgument
from casemate.surfaces.cli.answers import print_json, print_lines, print_table
from casemate.surfaces.cli.over_service.connection import PLAIN, Asked, ask, served
from casemate.surfaces.cli.parameters import Name

if TYPE_CHECKING:
    from casemate.remote.client import Remote

_DIFFERS = 1  # the exit code where a file is not what it should be


def artifacts(run: Name, /, *, save: str | None = None, asked: Asked = PLAIN) -> int:
    """List the files that a run has left, with their hashes.

    Parameters
    ----------
    run
        Its handle.
    save
        A folder to copy them into.
    """
    found = ask(asked, "artifacts.list", run=run)
    if save is not None:
        served(lambda remote: _saved(remote, run, found, Path(save)), asked)
    if asked.is_json:
        print_json(found)
    else:
        print_table(("name", "size", "media_type", "sha256"), found, "The run has left no file.")
    return 0


def verify(file: Name, sha256: Name, /, *, asked: Asked = PLAIN) -> int:
    """Say whether a file is exactly what a hash was made of: casemate verify FILE SHA256

    The exit code is 0 when it is, and 1 when a byte of it differs.

    Parameters
    ----------
    file
        The file.
    sha256
        As casemate artifacts shows it.
    """
    wanted = sha256.lower().removeprefix("sha256:")
    if len(wanted) != 64 or not set(wanted) <= set("0123456789abcdef"):
        raise InvalidArgument("sha256", f"{sha256[:80]!r} is no SHA-256, which is 64 hexadecimal digits")
    try:
        with open(file, "rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InvalidArgument("file", f"cannot read {file!r}: {error.strerror}") from None
    matches = hmac.compare_digest(found, wanted)
    if asked.is_json:
        print_json({"file": file, "sha256": found, "matches": matches})
    else:
        print_lines([f"{file}: {'matches' if matches else 'DIFFERS: it is ' + found}"])
    return 0 if matches else _DIFFERS


async def _saved(remote: Remote, run: str, found: list[dict[str, Any]], folder: Path) -> None:
    for artifact in found:
        relative = Path(artifact["name"])
        if relative.is_absolute() or ".." in relative.parts:
            raise InvalidArgument("save", f"{artifact['name']!r} is no name of a file below a folder")
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(target, await remote.download("artifacts", run, *artifact["name"].split("/")))


def _write(target: Path, data: bytes) -> None:
    """Put ``data`` at ``target``; a link that was there is replaced, not followed."""
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        fresh.write_bytes(data)
        os.replace(fresh, target)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise InvalidArgument("target", f"cannot write {str(target)!r}: {error.strerror}") from None
