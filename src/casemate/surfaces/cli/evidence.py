"""``casemate evidence``, ``keys`` and ``verify``: what proves what ran, made by the service, and checked by anybody."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from casemate.errors import InvalidArgument, NotProved
from casemate.evidence.dsse import PublicKey
from casemate.evidence.keys import own_signer
from casemate.evidence.pack import MOST_OF_STATEMENT, check_pack, check_statement
from casemate.evidence.statement import FILES, subjects_of
from casemate.surfaces.cli.answers import print_answer, print_rows
from casemate.surfaces.cli.connection import PLAIN, ServiceOptions, ask, with_service
from casemate.surfaces.cli.inputs import read_file
from casemate.surfaces.cli.outcome import exported_name
from casemate.surfaces.cli.parameters import Name, Output

keys = App(name="keys", help="Show, hand out and change the key that signs what ran.")
_DIFFERS = 1  # the exit code where a file is not what it should be
_MOST_KEY = 4096


@keys.default
@keys.command(name="list")
def list_keys(*, output: Output = "text") -> int:
    """List the key that signs now, then those that did before, by their ids."""
    rows = [asdict(one) for one in _own_keys()]
    return print_rows(rows, ("id", "retired"), is_json=output == "json")


@keys.command
def export() -> int:
    """Print the public key that signs now, in PEM, for those who verify."""
    sys.stdout.write(_own_keys()[0].pem)
    return 0


@keys.command
def rotate() -> int:
    """Have another key sign from now on, and print its id. What was signed stays provable, with either key."""
    sys.stdout.write(f"{own_signer(os.environ).rotate().id}\n")
    return 0


def evidence(
    of: Name, /, *, output: Annotated[Path, Parameter(name=("--output", "-o"))], service: ServiceOptions = PLAIN
) -> int:
    """Write all that is known of a run, or of a session and its steps, to a zip that is signed as a whole.

    casemate evidence RUN -o run.zip

    casemate evidence RUN -o run.json

    Args:
        of: The handle of a run, or the handle or name of a session.
        output: The zip; or a name that ends with .json, for the signed statement on a run alone.
    """
    if output.suffix == ".json":
        envelope = ask(service, "evidence.statement", run=of)
        output.write_text(json.dumps(envelope) + "\n")
        return print_answer(envelope, [f"{output}: signed"], is_json=service.is_json)

    async def fetch(remote: Any) -> Any:
        made = await remote("evidence.pack", {"of": of})
        await remote.save(("archives", made["handle"]), output)
        return made

    made = with_service(fetch, service)
    lines = [f"{output}: {made['size']} bytes", *(f"not in it, but for its hash: {one}" for one in made["left_out"])]
    return print_answer(made, lines, is_json=service.is_json)


def verify(
    file: Name | None = None,
    sha256: Name | None = None,
    /,
    *,
    bundle: Path | None = None,
    key: Path | None = None,
    service: ServiceOptions = PLAIN,
) -> int:
    """Say whether a file, a signed statement or an evidence pack is what it was. No service is asked.

    casemate verify FILE SHA256

    casemate verify FILE --bundle run.json --key public.pem

    casemate verify --bundle run.zip

    The exit code is 0 when it is, and 1 when a byte of it differs, or when nobody who is trusted has signed it.

    Args:
        file: The file.
        sha256: As casemate artifacts shows it.
        bundle: A signed statement or an evidence pack; it has to name the file, where one is given.
        key: The public key to trust, in PEM, as casemate keys export prints it; the user's own unless given.
    """
    if bundle is None:
        if file is None or sha256 is None:
            raise InvalidArgument("bundle", "give FILE and SHA256, or what casemate evidence has made")
        return _compare(file, sha256, is_json=service.is_json)
    if sha256 is not None:
        raise InvalidArgument("sha256", "is for a file without --bundle")
    trusted = _keys_in(key)
    with _open(bundle, "bundle") as opened:
        if opened.read(2) == b"PK":
            statement, signer = check_pack(opened, trusted)
        else:
            opened.seek(0)
            statement, signer = check_statement(opened.read(MOST_OF_STATEMENT), trusted)
    subjects = subjects_of(statement)
    what = f"{bundle}: {len(subjects)} files" if file is None else f"{file}: {_name_in(subjects, Path(file))}"
    when = f", retired {signer.retired}" if signer.retired else ""
    answer = {"statement": statement, "key": signer.id, "retired": signer.retired}
    return print_answer(answer, [f"{what}, as signed by {signer.id}{when}"], is_json=service.is_json)


def _own_keys() -> list[PublicKey]:
    return own_signer(os.environ).public_keys()


def _keys_in(file: Path | None) -> list[PublicKey]:
    if file is None:
        return _own_keys()
    return [PublicKey.from_pem(read_file("key", str(file), _MOST_KEY).decode("utf-8", "replace"))]


def _name_in(subjects: Mapping[str, str], file: Path) -> str:
    """As what a statement names a file. Raises ``NotProved``."""
    digest, path = _digest_of(file), f"/{os.path.abspath(file)}"
    same = {name for name, one in subjects.items() if hmac.compare_digest(one, digest)}
    named = {name for name in subjects if path.endswith(f"/{_path_of(name)}")}
    if found := same & named:
        return min(found)
    if named:
        raise NotProved(f"{str(file)!r} was changed: it is not what was signed as {min(named)!r}")
    why = f"what was is called {min(same)!r}" if same else "nothing of its name or content was"
    raise NotProved(f"{str(file)!r} is not signed: {why}")


def _path_of(name: str) -> str:
    """Where ``--output`` puts what a statement names so. A run may have left a folder that is called as its files are
    in the statement."""
    return exported_name(name.partition(FILES)[2] or name)


def _compare(file: str, sha256: str, *, is_json: bool) -> int:
    wanted = sha256.lower().removeprefix("sha256:")
    if len(wanted) != 64 or not set(wanted) <= set("0123456789abcdef"):
        raise InvalidArgument("sha256", f"{sha256[:80]!r} is no SHA-256, which is 64 hexadecimal digits")
    found = _digest_of(Path(file))
    matches = hmac.compare_digest(found, wanted)
    line = f"{file}: {'matches' if matches else 'DIFFERS: it is ' + found}"
    print_answer({"file": file, "sha256": found, "matches": matches}, [line], is_json=is_json)
    return 0 if matches else _DIFFERS


def _digest_of(file: Path) -> str:
    with _open(file, "FILE") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _open(file: Path, argument: str) -> Iterator[Any]:
    try:
        with file.open("rb") as stream:
            yield stream
    except OSError as error:
        raise InvalidArgument(argument, f"cannot read {str(file)!r}: {error.strerror}") from None
