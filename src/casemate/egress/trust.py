"""What a cell has to trust besides the system's authorities: a folder of certificates, as clients read them."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import warnings
from collections.abc import Iterable
from pathlib import Path

from casemate.egress.authority import Authority
from casemate.model.plan import Bind, Entry

_FOLDER = "/etc/ssl/certs"
_BUNDLE, _OWN = f"{_FOLDER}/ca-certificates.crt", f"{_FOLDER}/casemate.pem"
# Where distributions keep the system's authorities; of each, what is bound into cells is replaced.
_REPLACED = ("/etc/pki/tls/certs", "/etc/pki/ca-trust")
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
            "/etc/ssl/cert.pem")  # fmt: skip
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----\n?")
_MOST_BUNDLE = 4 << 20  # bytes
VARIABLES = {
    # OpenSSL, hence Python's ssl, httpx, aiohttp and Ruby; Go; uv and others that use rustls-native-certs
    "SSL_CERT_FILE": _BUNDLE,
    "REQUESTS_CA_BUNDLE": _BUNDLE,  # requests, which has certificates of its own
    "CURL_CA_BUNDLE": _BUNDLE,
    "PIP_CERT": _BUNDLE,
    "GIT_SSL_CAINFO": _BUNDLE,
    "AWS_CA_BUNDLE": _BUNDLE,
    "CARGO_HTTP_CAINFO": _BUNDLE,
    "NODE_EXTRA_CA_CERTS": _OWN,  # besides those that Node has; npm, too
}


def trusted(entries: Iterable[Entry], folder: str) -> tuple[Entry, ...]:
    """``entries`` of a cell, with the certificates in ``folder`` instead of the system's."""
    kept = [entry for entry in entries if entry.target not in (_FOLDER, *_REPLACED)]
    replaced = [entry.target for entry in entries if entry.target in _REPLACED]
    return (*kept, *(Bind(folder, target) for target in (_FOLDER, *replaced)))


def write_trust(folder: Path, authority: Authority) -> None:
    """Fill the new ``folder`` with the system's certificates and the authority's: as one bundle, by the hashes that
    OpenSSL looks for, and as Java's store. Raises ``OSError``."""
    own = authority.certificate
    system = _system_bundle()
    bundle = system + b"\n" + own
    os.mkdir(folder, 0o755)
    for name in ("ca-certificates.crt", "ca-bundle.crt", "extracted/pem/tls-ca-bundle.pem"):
        _write(folder / name, bundle)
    _write(folder / "casemate.pem", own)
    hashed = {path.name: path.read_bytes() for path in _hashed()}
    number = next(n for n in range(100) if f"{authority.openssl_hash}.{n}" not in hashed)
    for name, content in {**hashed, f"{authority.openssl_hash}.{number}": own}.items():
        _write(folder / name, content)
    store = _java_store(bundle)
    for name in ("java/cacerts", "extracted/java/cacerts"):
        _write(folder / name, store)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(0o755, parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o644)


def _system_bundle() -> bytes:
    """The system's certificates, in PEM; nothing where it has none."""
    named = ssl.get_default_verify_paths().cafile
    for path in (named, *_BUNDLES):
        if path is not None and os.path.isfile(path) and os.path.getsize(path) <= _MOST_BUNDLE:
            return Path(path).read_bytes()
    return b""


def _hashed() -> list[Path]:
    """The system's certificates by their hashes, where it has them."""
    folder = Path(_FOLDER)
    if not folder.is_dir():
        return []
    names = (path for path in folder.iterdir() if len(path.name) == 10 and path.name[8] == "." and path.is_file())
    return [path for path in names if path.stat().st_size <= _MOST_BUNDLE]


def _java_store(bundle: bytes) -> bytes:
    """PKCS #12 without a password, which JVMs read as their ``cacerts``. What is no sound certificate is left out."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # some old authorities have serial numbers that are none
        for text in _CERTIFICATE.findall(bundle):
            with contextlib.suppress(ValueError, Warning):
                found.append(x509.load_pem_x509_certificate(text))
    named = [pkcs12.PKCS12Certificate(one, b"%d" % number) for number, one in enumerate(found)]
    return pkcs12.serialize_java_truststore(named, NoEncryption())
