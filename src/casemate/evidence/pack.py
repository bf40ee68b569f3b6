"""Evidence packs: a zip of code, decisions and outputs, with a signed manifest of every file in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from casemate.errors import CasemateError, NotProved
from casemate.evidence.dsse import PublicKey
from casemate.evidence.keys import Signer, unseal
from casemate.evidence.page import page_of
from casemate.evidence.statement import FILES, STATEMENT, make_statement, sha256, subjects_of, to_json

if TYPE_CHECKING:
    from casemate.audit.chain import Row
    from casemate.evidence.dsse import Envelope
    from casemate.model.execution import Artifact, Execution

MANIFEST = "manifest.dsse.json"
_KIND = "urn:casemate:evidence:1"
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # zip's earliest time. A fixed time makes packs of the same evidence identical.
MOST_BYTES = 200 << 20  # of all the runs' files; a pack has only the names and hashes of files beyond it
_PIECE = 1 << 20
_MOST_READ = 512 << 20  # bytes of all files in a pack
MOST_OF_STATEMENT = 64 << 20  # bytes: a statement is read before its signature is checked


def write_pack(
    target: IO[bytes],
    of: str,
    rows: Sequence[tuple[Row, bytes]],
    statements: Mapping[str, Envelope],
    executions: Mapping[str, Execution],
    signer: Signer,
) -> list[str]:
    """Write the pack of a run or session. Returns the names of files that did not fit or are no longer kept. ``rows``
    pairs each row with its hashed bytes; the mappings are by run. Raises ``NotProved`` and ``OSError``."""
    about: dict[str, dict[str, list[Any]]] = {}
    files: dict[str, bytes | Artifact] = {"record.jsonl": b"".join(line + b"\n" for _, line in rows)}
    for row, _ in rows:
        detail = json.loads(row.detail)
        about.setdefault(row.execution_id, {}).setdefault(row.kind, []).append({"row": row.sequence, **detail})
        if row.kind == "intent":
            code = detail.get("code", detail)
            files[f"runs/{row.execution_id}/code"] = code.encode() if isinstance(code, str) else to_json(code)
    files |= {f"statements/{run}.dsse.json": to_json(envelope) for run, envelope in statements.items()}
    files |= {f"runs/{run}/{name}": one for run in executions for name, one in _outputs(executions[run])}
    digests: dict[str, str] = {}
    with ZipFile(target, "w") as pack:
        left_out, room = [], MOST_BYTES
        for name, content in files.items():
            size = 0 if isinstance(content, bytes) else content.size
            if size <= room and _add_file(pack, name, content, digests):
                room -= size
            else:
                left_out.append(name)
        known = {"of": of, "left_out": left_out, "runs": about}
        _add_file(pack, "evidence.json", to_json(known), digests)
        _add_file(pack, "evidence.html", page_of(known).encode(), digests)
        manifest = make_statement(_KIND, digests, {"of": of, "statements": list(statements)})
        _add_file(pack, MANIFEST, to_json(signer.seal(STATEMENT, manifest)), digests)
    return left_out


def _outputs(execution: Execution) -> Iterator[tuple[str, bytes | Artifact]]:
    yield "stdout", execution.stdout.encode()
    yield "stderr", execution.stderr.encode()
    yield "wall", to_json(asdict(execution.isolation))
    yield from ((f"{FILES}{one.name}", one) for one in execution.artifacts)
    if execution.full_output is not None:
        yield "full_output", execution.full_output


def _add_file(pack: ZipFile, name: str, content: bytes | Artifact, digests: dict[str, str]) -> bool:
    """Add a file. False if it is no longer kept."""
    try:
        data = content if isinstance(content, bytes) else content.read_bytes()
    except (OSError, CasemateError):
        return False
    if not isinstance(content, bytes) and sha256(data) != content.sha256:
        raise NotProved(f"the file {name!r} that is kept is not what the run left")
    _add_entry(pack, name, data)
    digests[name] = sha256(data)
    return True


def _add_entry(pack: ZipFile, name: str, data: bytes) -> None:
    """Add a file uncompressed: equal content has many compressed forms, and a reader cannot tell which was written."""
    info = ZipInfo(name, _EARLIEST)
    info.external_attr = 0o644 << 16
    pack.writestr(info, data)


def check_statement(text: bytes, trusted: Sequence[PublicKey]) -> tuple[dict[str, Any], PublicKey]:
    """The statement in an envelope, and its signing key. Raises ``NotProved``."""
    try:
        statement, key = unseal(json.loads(text), STATEMENT, trusted)
        subjects_of(statement)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise NotProved("this is not a signed statement") from None
    return statement, key


def check_pack(file: IO[bytes], trusted: Sequence[PublicKey]) -> tuple[dict[str, Any], PublicKey]:
    """Check every byte of a pack. Returns its manifest and the signing key. Raises ``NotProved``."""
    try:
        with ZipFile(file) as pack:
            checked = _check(pack, trusted)
            if not _is_as_written(file, pack):
                raise _foreign()
            return checked
    except (BadZipFile, EOFError, OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        raise NotProved(f"this is not a whole evidence pack: {type(error).__name__}") from None


def _is_as_written(file: IO[bytes], pack: ZipFile) -> bool:
    """Whether writing the files of ``pack`` again gives exactly the bytes of ``file``, its source."""
    with TemporaryFile() as other:
        with ZipFile(other, "w") as again:
            for info in pack.infolist():
                _add_entry(again, info.filename, pack.read(info))
        file.seek(0)
        other.seek(0)
        while (piece := other.read(_PIECE)) and file.read(len(piece)) == piece:
            pass
        return not piece and not file.read(1)


def _foreign() -> NotProved:
    return NotProved("this zip is not in the form that casemate writes: other programs could read other content in it")


def _check(pack: ZipFile, trusted: Sequence[PublicKey]) -> tuple[dict[str, Any], PublicKey]:
    names = [info.filename for info in pack.infolist()]
    if len(set(names)) < len(names) or sum(info.file_size for info in pack.infolist()) > _MOST_READ:
        raise NotProved("a name is in it twice, or it is too large to be one of casemate's")
    if pack.getinfo(MANIFEST).file_size > MOST_OF_STATEMENT:
        raise NotProved(f"{MANIFEST} is too large to be one of casemate's")
    if any(info.compress_type != ZIP_STORED for info in pack.infolist()):
        raise _foreign()
    manifest, key = check_statement(pack.read(MANIFEST), trusted)
    if manifest["predicateType"] != _KIND:
        raise NotProved(f"{MANIFEST} is a statement about something else")
    promised = subjects_of(manifest)
    for name in sorted({*names, *promised} - {MANIFEST}):
        if name not in promised or name not in names:
            raise NotProved(f"{name!r} {'was added' if name in names else 'is missing'}")
        with pack.open(name) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != promised[name]:  # type: ignore[arg-type]
                raise NotProved(f"{name!r} was changed")
    hashes = {sha256(line) for line in pack.read("record.jsonl").splitlines()}
    for run in manifest["predicate"]["statements"]:
        said, _ = check_statement(pack.read(f"statements/{run}.dsse.json"), trusted)
        rows = {one["digest"]["sha256"] for one in said["predicate"]["runDetails"]["byproducts"]}
        outputs = {f"runs/{run}/{name}": digest for name, digest in subjects_of(said).items()}
        if not rows <= hashes or any(promised.get(name, digest) != digest for name, digest in outputs.items()):
            raise NotProved(f"the statement on run {run} contradicts the pack")
    return manifest, key
