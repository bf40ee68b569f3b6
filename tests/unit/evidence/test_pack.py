"""A pack and a statement prove what ran; whatever is changed in them afterwards is found."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import sqlite3
import zipfile
from collections.abc import Callable, Iterable
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from casemate.artifacts.content import ContentStore, Slice
from casemate.audit.log import AuditLog
from casemate.audit.reading import Audit
from casemate.errors import NotFound, NotProved, Unavailable
from casemate.evidence.dsse import PublicKey
from casemate.evidence.keys import Signer
from casemate.evidence.pack import MANIFEST, MOST_OF_STATEMENT, check_pack, check_statement
from casemate.evidence.statement import make_statement, to_json
from casemate.evidence.statement import sha256 as digest_of
from casemate.execution.digests import outputs
from casemate.execution.evidence import Evidence
from casemate.model.execution import Artifact, Execution, Usage
from casemate.model.isolation import IsolationReport

RUN, SESSION, STEP = "a" * 32, "b" * 32, "c" * 32
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)> \u202e\x1b[2J"
REPORT = IsolationReport("native", "shared", ("seccomp",), (), (), 1.0, ())


def artifact(name: str, data: bytes) -> Artifact:
    store = ContentStore()
    store.append(data)
    return Artifact(name, len(data), sha256(data).hexdigest(), "text/plain", Slice(store, 0, len(data)))


def execution_of(run: str, *files: Artifact, stdout: str = HOSTILE) -> Execution:
    return Execution(
        run, "ok", 0, stdout, "", stdout, (), None, files, None, False, Usage(0.1, 1, 1), 0.1, None, REPORT
    )  # fmt: skip


def put_on_record(log: AuditLog, execution: Execution, session: str = "") -> None:
    code = f"print(1)  # {HOSTILE}"
    intent = {
        **({"session": session} if session else {}), "caller": "agent", "language": "python", "program": "main.py",
        "code": code, "arguments": [], "env_names": [], "wall": "native", "workspace": "private", "network": "none",
        "allowed_domains": [], "deadline": 60, "limits": {}, "metadata": {"ticket": "7"},
        "dependencies": {"code": digest_of(code.encode()), "policy": "0" * 64, "inputs/data.csv": "1" * 64},
    }  # fmt: skip
    outcome = {
        "status": "ok", "exit_code": 0, "cause": None, "error": None, "duration": 0.1,
        "artifacts": {one.name: one.sha256 for one in execution.artifacts},
        **{f"{name}_sha256": digest for name, digest in outputs(execution).items()},
    }  # fmt: skip
    log.append("intent", execution.id, "default", intent)
    log.append(
        "decision", execution.id, "default", {"kind": "tool", "tool": "order", "decision": "allowed", "by": "me"}
    )
    log.append("crossing", execution.id, "default", {"server": "s", "tool": "order", "arguments": {"a": HOSTILE}})
    log.append("crossing", execution.id, "default", {"host": "example.org", "port": 443, "decision": "denied"})
    log.append("outcome", execution.id, "default", outcome)


FILES = (artifact("output/a.csv", b"1,2\n"), artifact("output/b.csv", b"3,4\n"))
RAN = execution_of(RUN, *FILES)


@pytest.fixture
def log(tmp_path: Path, signer: Signer) -> AuditLog:
    log = AuditLog(tmp_path / "audit.db", signer=signer)
    put_on_record(log, RAN)
    log.append("intent", "d" * 32, "elsewhere", {"code": "another's"})
    log.append_if_possible("session", SESSION, "default", {"action": "opened"})
    put_on_record(log, execution_of(STEP), SESSION)
    return log


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer(tmp_path / "signing")


@pytest.fixture
def evidence(log: AuditLog) -> Evidence:
    return Evidence(log, Audit(log, "default"), "default")


def save(evidence: Evidence, path: Path, of: str = RUN, executions: tuple[Execution, ...] = (RAN,)) -> list[str]:
    return asyncio.run(evidence.save(of, path, executions))


def entries(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as pack:
        return {name: pack.read(name) for name in pack.namelist()}


def check(path: Path, signer: Signer) -> dict[str, Any]:
    with path.open("rb") as file:
        return check_pack(file, signer.public_keys())[0]


def test_a_statement_names_what_ran_what_came_out_and_who_allowed_what(evidence: Evidence, signer: Signer) -> None:
    envelope = evidence.sign(RUN, RAN)
    assert envelope == asyncio.run(evidence.statement(RUN))
    statement, key = check_statement(to_json(envelope), signer.public_keys())
    digests = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    assert key.id == signer.public_keys()[0].id
    assert digests["artifacts/output/a.csv"] == sha256(b"1,2\n").hexdigest()
    assert digests["stdout"] == sha256(RAN.stdout.encode()).hexdigest()
    assert digests["artifacts"] == digest_of(to_json({one.name: one.sha256 for one in FILES}))
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    built = statement["predicate"]["buildDefinition"]
    assert {"code", "policy", "inputs/data.csv", "wall"} == {one["name"] for one in built["resolvedDependencies"]}
    assert statement["predicate"]["casemate_who"] == {"caller": "agent", "namespace": "default"}
    assert statement["predicate"]["casemate_approvals"][0]["by"] == "me"
    assert len(statement["predicate"]["runDetails"]["byproducts"]) == 5


def test_files_are_signed_once_as_far_as_events_tell(evidence: Evidence, log: AuditLog) -> None:
    evidence.sign(RUN, RAN)
    evidence.sign(RUN, RAN)
    asyncio.run(evidence.statement(STEP))

    async def names() -> list[str]:
        found = []
        log.close()
        async for event in Audit(log, "default").events(after=0):
            found += [(event.name, event.run)]
        return [run for name, run in found if name == "artifact.signed"]

    assert asyncio.run(names()) == [RUN]


def test_a_run_that_is_not_what_is_on_record_is_not_signed(evidence: Evidence) -> None:
    with pytest.raises(Unavailable):
        evidence.sign(RUN, execution_of(RUN, FILES[0]))
    for unknown in ("", "e" * 32, "d" * 32, SESSION):
        with pytest.raises(NotFound):
            asyncio.run(evidence.statement(unknown))


def test_a_pack_has_all_of_a_run_and_is_the_same_bytes_each_time(
    evidence: Evidence, signer: Signer, tmp_path: Path
) -> None:
    assert save(evidence, tmp_path / "1.zip") == save(evidence, tmp_path / "2.zip") == []
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
    assert check(tmp_path / "1.zip", signer)["predicate"]["of"] == RUN
    found = entries(tmp_path / "1.zip")
    assert found[f"runs/{RUN}/artifacts/output/b.csv"] == b"3,4\n"
    assert found[f"runs/{RUN}/stdout"] == RAN.stdout.encode()
    assert b"another's" not in found["record.jsonl"]
    about = json.loads(found["evidence.json"])["runs"]
    assert [*about] == [RUN]
    assert about[RUN].keys() == {"intent", "decision", "crossing", "outcome", "signature"}
    assert [one.get("tool", one.get("host")) for one in about[RUN]["crossing"]] == ["order", "example.org"]


def test_what_is_too_large_is_left_out_and_named(
    evidence: Evidence, log: AuditLog, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casemate.evidence.pack.MOST_BYTES", 50_000)
    large = execution_of("f" * 32, artifact("output/large", bytes(99_000)), artifact("output/small", b"1"))
    put_on_record(log, large)
    assert save(evidence, tmp_path / "p.zip", large.id, (large,)) == [f"runs/{large.id}/artifacts/output/large"]
    assert check(tmp_path / "p.zip", signer)


def test_a_kept_file_or_a_row_that_was_changed_makes_no_pack(evidence: Evidence, log: AuditLog, tmp_path: Path) -> None:
    store = ContentStore()
    store.append(b"1,3\n")
    other = Artifact("output/a.csv", 4, FILES[0].sha256, "text/csv", Slice(store, 0, 4))
    with pytest.raises(NotProved):
        save(evidence, tmp_path / "p.zip", executions=(execution_of(RUN, other, FILES[1]),))
    with sqlite3.connect(log.path) as database:
        database.execute("DROP TRIGGER no_update")
        database.execute("UPDATE record SET detail = replace(detail, 'agent', 'a person') WHERE kind = 'intent'")
    with pytest.raises(NotProved, match="row 1 "):
        save(evidence, tmp_path / "p.zip")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_hostile_text_is_inert_in_the_page(evidence: Evidence, tmp_path: Path) -> None:
    save(evidence, tmp_path / "p.zip")
    text, page = entries(tmp_path / "p.zip")["evidence.html"].decode(), _Page()
    page.feed(text)
    assert page.tags == {
        "html", "meta", "title", "style", "h1", "p", "code", "table", "tr", "th", "td", "pre",
    }  # fmt: skip
    assert page.attributes == {"lang", "charset", "http-equiv", "content"}
    assert "default-src 'none'" in text
    assert "\u202e" not in text
    assert "\x1b" not in text


Entries = dict[str, bytes]


def _change(name: str, old: bytes, new: bytes) -> Callable[[Entries, Path], None]:
    def change(found: Entries, _: Path) -> None:
        assert old in found[name]
        found[name] = found[name].replace(old, new)

    return change


def _swap(found: Entries, _: Path) -> None:
    one, other = (f"runs/{RUN}/artifacts/output/{name}.csv" for name in "ab")
    found[one], found[other] = found[other], found[one]


def _drop_row(found: Entries, _: Path) -> None:
    found["record.jsonl"] = b"".join(found["record.jsonl"].splitlines(keepends=True)[1:])


def _add(found: Entries, _: Path) -> None:
    found["runs/note"] = b"an order"


def _remove(found: Entries, _: Path) -> None:
    del found[f"statements/{RUN}.dsse.json"]


def _strip(found: Entries, _: Path) -> None:
    found[MANIFEST] = to_json({**json.loads(found[MANIFEST]), "signatures": []})


def _rebuild(found: Entries, folder: Path, *, key: str = "theirs") -> None:
    """Change a file, and sign a manifest that fits with another key, which says that ours led to it."""
    theirs = Signer(folder / key)
    theirs.rotate()
    found["evidence.json"] = b"{}"
    promised = {name: digest_of(data) for name, data in found.items() if name != MANIFEST}
    said = json.loads(base64.b64decode(json.loads(found[MANIFEST])["payload"]))
    found[MANIFEST] = to_json(
        theirs.seal("application/vnd.in-toto+json", make_statement(said["predicateType"], promised, said["predicate"]))
    )


def _take_statement(found: Entries, _: Path) -> None:
    """What is signed, but is no manifest."""
    found[MANIFEST] = found[f"statements/{RUN}.dsse.json"]


def _rename(found: Entries, _: Path) -> None:
    found[f"runs/{STEP}/code"] = found.pop(f"runs/{RUN}/code")


def _retype(found: Entries, _: Path) -> None:
    found[MANIFEST] = to_json({**json.loads(found[MANIFEST]), "payloadType": "text/plain"})


def _repayload(found: Entries, _: Path) -> None:
    envelope = json.loads(found[MANIFEST])
    payload = base64.b64decode(envelope["payload"]).replace(RUN.encode(), STEP.encode())
    found[MANIFEST] = to_json({**envelope, "payload": base64.b64encode(payload).decode()})


TAMPERED: dict[str, Callable[[Entries, Path], None]] = {
    "a file that the run left": _change(f"runs/{RUN}/artifacts/output/a.csv", b"1,2", b"1,3"),
    "two files swapped": _swap,
    "what it printed": _change(f"runs/{RUN}/stdout", b"alert", b"Alert"),
    "who allowed it, in the rows": _change("record.jsonl", b"denied", b"allowed"),
    "a row": _drop_row,
    "the page": _change("evidence.html", b"denied", b"allowed"),
    "a file added": _add,
    "the statement removed": _remove,
    "the signature removed": _strip,
    "another key": _rebuild,
    "another statement as the manifest": _take_statement,
    "a program under another run": _rename,
    "the type of what is signed": _retype,
    "the manifest about another run": _repayload,
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_pack_that_was_tampered_with_is_found(what: str, evidence: Evidence, signer: Signer, tmp_path: Path) -> None:
    save(evidence, tmp_path / "p.zip")
    found = entries(tmp_path / "p.zip")
    TAMPERED[what](found, tmp_path)
    with zipfile.ZipFile(tmp_path / "changed.zip", "w") as pack:
        for name, data in found.items():
            pack.writestr(name, data)
    with pytest.raises(NotProved):
        check(tmp_path / "changed.zip", signer)


@pytest.mark.parametrize("what", ["cut", "a name twice", "no zip", "a bit"])
def test_a_zip_that_is_none_or_says_two_things_is_found(
    what: str, evidence: Evidence, signer: Signer, tmp_path: Path
) -> None:
    save(evidence, tmp_path / "p.zip")
    data = (tmp_path / "p.zip").read_bytes()
    match what:
        case "cut":
            data = data[: len(data) // 2]
        case "no zip":
            data = b"PK no zip"
        case "a bit":
            data = data[:500] + bytes([data[500] ^ 1]) + data[501:]
        case _:
            twice = io.BytesIO(data)
            with zipfile.ZipFile(twice, "a") as pack, pytest.warns(UserWarning, match="Duplicate"):
                pack.writestr("evidence.html", b"other")
            data = twice.getvalue()
    with pytest.raises(NotProved):
        check_pack(io.BytesIO(data), signer.public_keys())


def _with_another_page_before_it(data: bytes) -> bytes:
    """Who reads a zip from its beginning finds another page first; who reads it from its end never does."""
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as pack:
        pack.writestr("evidence.html", b"all was allowed")
    return other.getvalue()[: other.getvalue().rindex(b"PK\x01\x02")] + data


def _with_another_size_in_front(data: bytes) -> bytes:
    """Where a file begins, it says that it is shorter than the list at the end says."""
    at = data.index(b"PK\x03\x04", 4)
    return data[: at + 18] + bytes(4) + data[at + 22 :]


def _with_a_comment(data: bytes) -> bytes:
    return data[:-2] + (9).to_bytes(2, "little") + b"a comment"


def _with_other_compression(data: bytes) -> bytes:
    """LZMA, for which a file says how much memory it takes to read it."""
    return _packed_by(zipfile.ZIP_LZMA, data)


def _with_a_file_as_a_link(data: bytes) -> bytes:
    """A program that unpacks it makes what a run printed a link to another file."""
    at = data.index(b"PK\x01\x02")
    at = data.rindex(b"PK\x01\x02", at, data.index(f"runs/{RUN}/stdout".encode(), at))
    return data[: at + 38] + (0o120777 << 16).to_bytes(4, "little") + data[at + 42 :]


def _with_compressed_files(data: bytes) -> bytes:
    """Bits behind the end of a compressed stream, and many forms of the same content, change no sum."""
    return _packed_by(zipfile.ZIP_DEFLATED, data)


def _packed_by(method: int, data: bytes) -> bytes:
    other = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(other, "w", method) as pack:
        for name in old.namelist():
            pack.writestr(name, old.read(name))
    return other.getvalue()


def _with_a_manifest_without_end(data: bytes) -> bytes:
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED) as pack:
        pack.writestr(MANIFEST, bytes(MOST_OF_STATEMENT + 1))
    return other.getvalue()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_with_another_page_before_it, "this zip is not in the form that casemate writes"),
        (_with_another_size_in_front, "this zip is not in the form that casemate writes"),
        (_with_a_comment, "this zip is not in the form that casemate writes"),
        (_with_other_compression, "this zip is not in the form that casemate writes"),
        (_with_compressed_files, "this zip is not in the form that casemate writes"),
        (_with_a_file_as_a_link, "this zip is not in the form that casemate writes"),
        (_with_a_manifest_without_end, "too large"),
    ],
)
def test_a_zip_in_which_another_program_may_find_something_else_is_refused(
    change: Callable[[bytes], bytes], why: str, evidence: Evidence, signer: Signer, tmp_path: Path
) -> None:
    save(evidence, tmp_path / "p.zip")
    data = (tmp_path / "p.zip").read_bytes()
    check_pack(io.BytesIO(data), signer.public_keys())
    with pytest.raises(NotProved, match=why):
        check_pack(io.BytesIO(change(data)), signer.public_keys())


def _accepted(data: bytes, places: Iterable[int], keys: list[PublicKey]) -> list[int]:
    """At which of ``places`` a pack with another byte is taken for one that nobody has changed."""
    found = []
    for at in places:
        for bits in (0x01, 0xFF):
            changed = bytearray(data)
            changed[at] ^= bits
            with contextlib.suppress(NotProved):
                check_pack(io.BytesIO(changed), keys)
                found.append(at)
    return found


def test_a_pack_with_any_byte_changed_is_refused(evidence: Evidence, signer: Signer, tmp_path: Path) -> None:
    save(evidence, tmp_path / "p.zip", executions=())
    data = (tmp_path / "p.zip").read_bytes()
    assert _accepted(data, range(len(data)), signer.public_keys()) == []


def test_a_signature_or_payload_in_other_base64_for_the_same_bytes_is_refused(
    evidence: Evidence, signer: Signer
) -> None:
    envelope = evidence.sign(RUN, RAN)
    (signed,) = envelope["signatures"]
    assert signed["sig"].endswith("==")
    other = signed["sig"][:-3] + chr(ord(signed["sig"][-3]) + 1) + "=="
    assert base64.b64decode(other) == base64.b64decode(signed["sig"])
    with pytest.raises(NotProved):
        check_statement(to_json({**envelope, "signatures": [{**signed, "sig": other}]}), signer.public_keys())


def test_the_signer_cannot_pack_what_its_own_statement_denies(
    evidence: Evidence, signer: Signer, tmp_path: Path
) -> None:
    """A manifest of our key over files that are not those of the run: the statement and the rows give it away."""
    save(evidence, tmp_path / "p.zip")
    for change in (_swap, _drop_row):
        found = entries(tmp_path / "p.zip")
        change(found, tmp_path)
        _rebuild(found, tmp_path, key="signing")
        with zipfile.ZipFile(tmp_path / "changed.zip", "w") as pack:
            for name, data in found.items():
                pack.writestr(name, data)
        with pytest.raises(NotProved):
            check(tmp_path / "changed.zip", signer)


def test_another_key_and_a_statement_that_was_changed_are_found(evidence: Evidence, tmp_path: Path) -> None:
    envelope = evidence.sign(RUN, RAN)
    (stranger,) = Signer(tmp_path / "stranger").public_keys()
    with pytest.raises(NotProved):
        check_statement(to_json(envelope), [stranger])
    payload = base64.b64decode(envelope["payload"]).replace(b'"exit_code":0', b'"exit_code":1')
    assert payload != base64.b64decode(envelope["payload"])
    with pytest.raises(NotProved):
        check_statement(to_json({**envelope, "payload": base64.b64encode(payload).decode()}), [_own(tmp_path)])


def _own(tmp_path: Path) -> PublicKey:
    return Signer(tmp_path / "signing").public_keys()[0]
