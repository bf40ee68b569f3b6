"""``casemate evidence``, ``keys`` and ``verify``: signed proof of what ran, made by the service, verified locally."""

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
from casemate.surfaces.cli.answers import print_answer, table_of
from casemate.surfaces.cli.connection import PLAIN, ServiceOptions, ask, with_service
from casemate.surfaces.cli.inputs import read_file
from casemate.surfaces.cli.outcome import exported_name
from casemate.surfaces.cli.parameters import Name, Output

keys = App(name="keys", help="Show, export and replace the key that signs what ran.")
_DIFFERS = 1  # the exit code if a file is not as it should be
_MOST_KEY = 4096


@keys.default
@keys.command(name="list")
def list_keys(*, output: Output = "text") -> int:
    """List the ids of the signing key and of the retired keys."""
    return table_of("id retired")([asdict(one) for one in _own_keys()], is_json=output == "json")


@keys.command
def export() -> int:
    """Print the public signing key in PEM, for those who verify."""
    sys.stdout.write(_own_keys()[0].pem)
    return 0


@keys.command
def rotate() -> int:
    """Replace the signing key, and print the new id. The old key still verifies earlier signatures."""
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
        output: The zip; or a name that ends with .json, for only the signed statement on a run.
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
    lines = [f"{output}: {made['size']} bytes", *(f"only by its hash: {one}" for one in made["left_out"])]
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
    """Check whether a file, a signed statement or an evidence pack is unchanged. Uses no service.

    casemate verify FILE SHA256

    casemate verify FILE --bundle run.json --key public.pem

    casemate verify --bundle run.zip

    The exit code is 0 if it is, and 1 if a byte differs or no trusted key has signed it.

    Args:
        file: The file.
        sha256: Its hash, as casemate artifacts shows it.
        bundle: A signed statement or an evidence pack, which must name FILE if that is given.
        key: The trusted public key in PEM, as casemate keys export prints it; your own by default.
    """
    if bundle is None:
        if file is None or sha256 is None:
            raise InvalidArgument("bundle", "give FILE and SHA256, or a bundle made by casemate evidence")
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
    digest, path = _digest_of(file), f"/{os.path.abspath(file)}"
    same = {name for name, one in subjects.items() if hmac.compare_digest(one, digest)}
    named = {name for name in subjects if path.endswith(f"/{_path_of(name)}")}
    if found := same & named:
        return min(found)
    if named:
        raise NotProved(f"{str(file)!r} was changed: it differs from what was signed as {min(named)!r}")
    why = f"its content is signed as {min(same)!r}" if same else "no file with its name or content is signed"
    raise NotProved(f"{str(file)!r} is not signed: {why}")


def _path_of(name: str) -> str:
    """Where ``--output`` puts the file with this name in a statement. A run may have left a folder with the name of the
    statement's prefix for files."""
    return exported_name(name.partition(FILES)[2] or name)


def _compare(file: str, sha256: str, *, is_json: bool) -> int:
    wanted = sha256.lower().removeprefix("sha256:")
    if len(wanted) != 64 or not set(wanted) <= set("0123456789abcdef"):
        raise InvalidArgument("sha256", f"{sha256[:80]!r} is not a SHA-256, which has 64 hexadecimal digits")
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
