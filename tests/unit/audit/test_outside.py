"""Anchors elsewhere: a file, a command, a time stamp server of OpenSSL's over loopback."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from tests.support.loopback import answer, serving

from casemate import Sandbox
from casemate.audit import outside
from casemate.audit.log import AuditLog
from casemate.audit.outside import Outside
from casemate.errors import InvalidArgument
from casemate.evidence.keys import Signer

CONFIG = """
[req]
distinguished_name = name
prompt = no
x509_extensions = stamping
[name]
CN = a time stamp server
[stamping]
extendedKeyUsage = critical, timeStamping
keyUsage = critical, digitalSignature
[tsa]
default_tsa = here
[here]
serial = serial
crypto_device = builtin
signer_cert = tsa.pem
certs = tsa.pem
signer_key = tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha512
"""


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a time stamp server, and its folder: what is in its "answer" is said in place of a stamp."""
    folder = tmp_path / "authority"
    folder.mkdir()
    (folder / "config").write_text(CONFIG)
    (folder / "serial").write_text("01\n")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "tsa.key", "-out", "tsa.pem"]
    subprocess.run([*made, "-config", "config"], cwd=folder, check=True, capture_output=True)

    def stamp(request: BaseHTTPRequestHandler) -> None:
        if (folder / "refuses").exists():
            request.send_error(401)
            return
        (folder / "query").write_bytes(request.rfile.read(int(request.headers["content-length"])))
        assert request.headers["content-type"] == "application/timestamp-query"
        reply = ["openssl", "ts", "-reply", "-queryfile", "query", "-out", "reply", "-config", "config"]
        subprocess.run(reply, cwd=folder, check=True, capture_output=True)
        said = folder / "answer"
        data = (said if said.exists() else folder / "reply").read_bytes()
        answer(request, data, content_type="application/timestamp-reply", content_length=str(len(data)))

    with serving(stamp) as port:
        yield f"http://127.0.0.1:{port}/stamp", folder


def opened_log(path: Path, *places: str) -> AuditLog:
    return AuditLog(path, signer=Signer(path.parent / "signing"), outside=Outside(places, str(path)))


def write(log: AuditLog, *names: str) -> None:
    for name in names:
        log.append("crossing", name, "default", {})
        log._settle()


def test_each_signed_line_goes_to_a_file_and_to_a_command(tmp_path: Path) -> None:
    program = f"import sys; open({str(tmp_path / 'taken')!r}, 'a').write(sys.stdin.read())"
    command = shlex.join([sys.executable, "-c", program])
    log = opened_log(tmp_path / "audit.db", str(tmp_path / "copy"), f"| {command}")
    write(log, "one", "two")
    log.close()
    own = Path(f"{log.path}.anchors").read_text()
    assert own.count("\n") >= 2
    assert (tmp_path / "copy").read_text() == own == (tmp_path / "taken").read_text()
    again = AuditLog(tmp_path / "audit.db", signer=Signer(tmp_path / "signing"))
    assert again.verify(anchors=own).ok
    again.close()


def test_a_place_that_does_not_take_it_is_on_record_once_and_stops_nothing(tmp_path: Path) -> None:
    copy = str(tmp_path / "nowhere" / "copy")
    places = (copy, "|sh -c 'echo no >&2; exit 3'", "http://127.0.0.1:1/stamp")
    log = opened_log(tmp_path / "audit.db", *places)
    write(log, "one", "two", "three")
    noted = [json.loads(row.detail) for row in log.tail(99) if row.kind == "anchor"]
    assert {one["place"] for one in noted} == {copy, "| sh", "http://127.0.0.1:1/stamp"}
    assert len(noted) == 3
    assert "sh ended with 3: no" in str(noted)
    assert log.verify().ok
    log.close()


def test_a_place_that_fails_only_at_the_end_is_on_record(tmp_path: Path) -> None:
    log = opened_log(tmp_path / "audit.db", "|false")
    log.append("crossing", "one", "default", {})
    log.close()
    again = AuditLog(tmp_path / "audit.db", signer=Signer(tmp_path / "signing"))
    assert [row.kind for row in again.tail(99)] == ["crossing", "anchor"]
    assert again.verify().ok
    again.close()


def test_what_is_secret_in_the_name_of_a_place_is_not_on_record(
    tmp_path: Path, authority: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password of an address, also where the server refuses, and an argument of a command, also where it hangs."""
    address, folder = authority
    monkeypatch.setattr(outside, "_WITHIN", 0.2)
    (folder / "refuses").touch()
    address = address.replace("//", "//me:s3cr3t@") + "?key=s3cr3t"
    log = opened_log(tmp_path / "audit.db", address, "| tail -f /dev/null /s3cr3t")
    write(log, "one")
    noted = [row.detail for row in log.tail(99) if row.kind == "anchor"]
    log.close()
    assert len(noted) == 2
    assert "it answered 401" in noted[0], noted
    assert "tail took longer" in noted[1], noted
    assert "s3cr3t" not in str(noted)


def test_a_time_stamp_is_what_openssl_verifies(tmp_path: Path, authority: tuple[str, Path]) -> None:
    address, folder = authority
    log = opened_log(tmp_path / "audit.db", address)
    write(log, "one")
    log.close()
    stamps = [json.loads(line) for line in Path(f"{log.path}.stamps").read_text().splitlines()]
    assert [one["line"] for one in stamps] == Path(f"{log.path}.anchors").read_text().splitlines()
    (folder / "stamp").write_bytes(base64.b64decode(stamps[0]["stamp"]))
    verify = ["openssl", "ts", "-verify", "-in", "stamp", "-CAfile", "tsa.pem", "-data", "line"]
    for line, is_good in ((stamps[0]["line"], True), (stamps[0]["line"] + " ", False)):
        (folder / "line").write_text(line)
        done = subprocess.run(verify, cwd=folder, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == is_good, done.stderr


@pytest.mark.parametrize("answer", ["another's", "nonsense", "too much"])
def test_an_answer_that_stamps_something_else_is_none(tmp_path: Path, authority: tuple[str, Path], answer: str) -> None:
    address, folder = authority
    log = opened_log(tmp_path / "audit.db", address)
    write(log, "one")
    data = {"another's": (folder / "reply").read_bytes(), "nonsense": b"no", "too much": bytes(100_000)}[answer]
    (folder / "answer").write_bytes(data)
    write(log, "two")
    assert len(Path(f"{log.path}.stamps").read_text().splitlines()) == 1
    assert [row.kind for row in log.tail(99)].count("anchor") == 1
    log.close()


@pytest.mark.parametrize("place", ["relative/path", "", "|", "| 'open", "ftp://example.org"])
def test_a_place_of_no_kind_is_a_bad_argument(tmp_path: Path, place: str) -> None:
    with pytest.raises(InvalidArgument, match="audit_anchors"):
        Sandbox(audit=tmp_path / "audit.db", audit_anchors=[place])
