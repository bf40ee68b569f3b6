"""The installation's keys: made once, the user's alone, and a rotation takes nothing away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from securesystemslib.dsse import Envelope as ForeignEnvelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer._key import SSlibKey

from casemate.errors import NotProved, Unavailable
from casemate.evidence.dsse import PublicKey, verify, wrap
from casemate.evidence.keys import ROTATION, ROTATIONS, Signer, follow, unseal

TYPE = "application/vnd.test+json"


def test_the_key_is_the_users_alone_and_stays_the_same(tmp_path: Path) -> None:
    key_id, signature = Signer(tmp_path / "signing").sign(b"data")
    (key,) = Signer(tmp_path / "signing").public_keys()
    assert key.id == key_id
    assert verify(b"data", signature, key)
    assert not verify(b"date", signature, key)
    assert (tmp_path / "signing").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "signing" / "keys.json").stat().st_mode & 0o777 == 0o600


def der_of(key: PublicKey) -> bytes:
    command = ["openssl", "pkey", "-pubin", "-outform", "DER"]
    return subprocess.run(command, input=key.pem.encode(), capture_output=True, check=True).stdout


def test_its_id_is_what_openssl_and_sha256sum_make_of_the_exported_key(tmp_path: Path) -> None:
    (key,) = Signer(tmp_path).public_keys()
    digest = subprocess.run(["sha256sum"], input=der_of(key), capture_output=True, check=True)
    assert digest.stdout.split()[0].decode() == key.id


def test_processes_that_begin_at_once_make_one_key(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from casemate.evidence.keys import Signer; sys.stdin.read();"
        "print(Signer(Path(sys.argv[1])).sign(b'')[0])"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "signing")]
    begun = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    ids = {process.communicate()[0] for process in begun}
    assert [process.returncode for process in begun] == [0] * 4
    assert len(ids) == 1


@pytest.mark.parametrize("held", [0, 1, 2])
def test_whoever_holds_one_key_finds_all_that_came_before_and_after_it(tmp_path: Path, held: int) -> None:
    signer, another_process = Signer(tmp_path), Signer(tmp_path)
    proofs = []
    for _ in range(3):
        proofs.append(another_process.seal(TYPE, b"{}"))
        signer.rotate()
    proofs.append(another_process.seal(TYPE, b"{}"))
    keys = signer.public_keys()
    assert [key.retired is None for key in keys] == [True, False, False, False]
    held_key, rotations = PublicKey.from_pem(keys[held].pem), proofs[-1][ROTATIONS]
    found = [
        unseal({**proof, ROTATIONS: rotations}, TYPE, [held_key])[1].id for proof in json.loads(json.dumps(proofs))
    ]
    assert found == [key.id for key in reversed(keys)]


def test_a_rotation_that_one_side_did_not_sign_leads_nowhere(tmp_path: Path) -> None:
    ours, theirs = Signer(tmp_path / "ours"), Signer(tmp_path / "theirs")
    (our_key,), (their_key,) = ours.public_keys(), theirs.public_keys()
    ours.rotate()
    (rotation,) = ours.seal(TYPE, b"{}")[ROTATIONS]
    said = json.dumps({"at": "2026-01-01", "previous": our_key.pem, "next": their_key.pem}).encode()
    forged = [
        wrap(ROTATION, said, theirs.sign),
        {**rotation, "signatures": rotation["signatures"][1:]},
        {**rotation, "signatures": "none"},
        None,
    ]
    assert follow([our_key], forged).keys() == {our_key.id}
    with pytest.raises(NotProved):
        unseal({**theirs.seal(TYPE, b"{}"), ROTATIONS: forged}, TYPE, [our_key])


@pytest.mark.parametrize("damage", ["mode", "link", "content", "folder"])
def test_keys_that_others_had_access_to_or_that_are_damaged_are_refused(tmp_path: Path, damage: str) -> None:
    signer = Signer(tmp_path / "signing")
    signer.sign(b"")
    path = tmp_path / "signing" / "keys.json"
    match damage:
        case "mode":
            path.chmod(0o640)
        case "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        case "content":
            path.write_text("{}")
        case _:
            path.parent.chmod(0o755)
    with pytest.raises(Unavailable):
        Signer(tmp_path / "signing").sign(b"")


def test_a_foreign_program_verifies_an_envelope_and_refuses_a_changed_one(tmp_path: Path) -> None:
    signer = Signer(tmp_path)
    signer.rotate()
    envelope = signer.seal(TYPE, b'{"a": 1}')
    key = signer.public_keys()[0]
    foreign_key = SSlibKey(key.id, "ed25519", "ed25519", {"public": der_of(key)[-32:].hex()})
    foreign = ForeignEnvelope.from_dict(json.loads(json.dumps(envelope)))
    assert foreign.verify([foreign_key], 1).keys() == {key.id}
    foreign.payload += b" "
    with pytest.raises(VerificationError):
        foreign.verify([foreign_key], 1)


@pytest.mark.parametrize("envelope", [None, [], {}, {"payload": "!", "payloadType": TYPE, "signatures": []}])
def test_what_is_no_envelope_proves_nothing(tmp_path: Path, envelope: object) -> None:
    key = Signer(tmp_path).public_keys()[0]
    with pytest.raises(NotProved):
        unseal(envelope, TYPE, [key])


def test_nothing_is_made_before_it_is_used(tmp_path: Path) -> None:
    Signer(tmp_path / "signing")
    assert os.listdir(tmp_path) == []
