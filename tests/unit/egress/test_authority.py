"""The authority makes certificates that clients accept for its own hosts, and that they accept for no other."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from casemate.egress.authority import Authority, _load

HOST = "api.good.test"


def shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> ssl.SSLObject:
    """Hands shaken in memory; the client's end. Raises ``ssl.SSLError``."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname=name)
    theirs = server.wrap_bio(up, down, server_side=True)
    for _ in range(5):
        for one in (ours, theirs):
            try:
                one.do_handshake()
            except ssl.SSLWantReadError:
                pass
    assert ours.version() is not None
    return ours


def trusting(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.certificate.decode())
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def test_a_client_that_trusts_it_accepts_its_hosts_and_speaks_http_1() -> None:
    authority = Authority([HOST])
    assert shake(authority.context(HOST), trusting(authority), HOST).selected_alpn_protocol() == "http/1.1"


def test_a_client_does_not_accept_what_it_would_sign_for_another_name() -> None:
    authority = Authority([HOST])
    leaf = authority._leaf("evil.test")
    pem = serialization.Encoding.PEM
    key = authority._leaf_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(server, key + leaf.public_bytes(pem))
    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree violation"):
        shake(server, trusting(authority), "evil.test")


def test_it_makes_none_for_another_name() -> None:
    with pytest.raises(ValueError, match="does not cover"):
        Authority([HOST]).context("evil.test")


def test_a_client_does_not_accept_the_certificate_of_another_sandboxs_authority() -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(Authority([HOST]).context(HOST), trusting(Authority([HOST])), HOST)


def test_its_certificate_is_short_lived_and_makes_no_other_authorities() -> None:
    made = x509.load_pem_x509_certificate(Authority([HOST]).certificate)
    assert (made.not_valid_after_utc - made.not_valid_before_utc).days <= 8
    basic = made.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
    assert made.extensions.get_extension_for_class(x509.NameConstraints).critical


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_openssl_calls_it_by_the_same_hash(tmp_path: Path) -> None:
    authority = Authority([HOST])
    (tmp_path / "own.pem").write_bytes(authority.certificate)
    argv = ["openssl", "x509", "-noout", "-hash", "-in", str(tmp_path / "own.pem")]
    told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    assert authority.openssl_hash == told


def test_no_key_is_shown_by_what_can_be_printed() -> None:
    authority = Authority([HOST])
    authority.context(HOST)
    assert "PRIVATE" not in f"{authority!r} {vars(authority)!r} {authority.certificate!r}"
