"""A certificate authority for the few hosts whose TLS ends at the egress proxy, and the trust store of their cells.

The key exists only in this process's memory. Critical name constraints (RFC 5280, section 4.2.1.10) limit the
certificate to those hosts, so that a cell that trusts it trusts it for nothing else.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import ipaddress
import os
import re
import ssl
import threading
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from casemate.files.beneath import hold
from casemate.model.plan import Bind, Entry

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_LASTS = dt.timedelta(days=8)
_RENEWED_AFTER = dt.timedelta(days=1)  # so that a cell can use its first one for a week
_CLOCKS_DIFFER = dt.timedelta(hours=1)
_MOST_CONTEXTS = 256
_COMMON_NAME = "casemate authority of one sandbox"


class Authority:
    """Signs server certificates for the canonical names ``hosts`` only. Callable from any thread."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self.hosts = frozenset(hosts)
        from cryptography.hazmat.primitives.asymmetric import ec

        self._begun = dt.datetime.now(dt.UTC)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._sign_itself()
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._lock = threading.Lock()

    @property
    def certificate(self) -> bytes:
        """The authority's certificate in PEM, for the cell to trust."""
        return _pem(self._certificate)

    @property
    def is_old(self) -> bool:
        """Whether new cells should trust a new authority."""
        return dt.datetime.now(dt.UTC) - self._begun > _RENEWED_AFTER

    @property
    def openssl_hash(self) -> str:
        """The hash by which OpenSSL looks it up in a folder: the first four bytes of SHA-1 over the subject in
        canonical form, that is, in lower case and without the outermost header (X509_NAME_hash(3))."""
        name = _name(_COMMON_NAME.lower()).public_bytes()
        digest = hashlib.sha1(name[2:], usedforsecurity=False).digest()
        return digest[:4][::-1].hex()

    def context(self, host: str) -> ssl.SSLContext:
        """Return the context for a cell's TLS to ``host``, with a certificate for that name and HTTP/1.1."""
        if host not in self.hosts:
            raise ValueError(f"the authority does not cover {host!r}")
        with self._lock:
            made = self._contexts.get(host)
            if made is None:
                if len(self._contexts) >= _MOST_CONTEXTS:
                    self._contexts.pop(next(iter(self._contexts)))
                made = self._contexts[host] = self._make_context(host)
        return made

    def _make_context(self, host: str) -> ssl.SSLContext:
        from cryptography.hazmat.primitives import serialization

        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key = self._leaf_key.private_bytes(serialization.Encoding.PEM, *form)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.num_tickets = 0  # no resumption: each handshake names its host
        context.options |= ssl.OP_NO_TICKET
        context.set_alpn_protocols(["http/1.1"])
        _load(context, key + _pem(self._leaf(host)))
        return context

    def _sign_itself(self) -> x509.Certificate:
        from cryptography import x509

        names = [x509.DNSName(host) for host in sorted(self.hosts)]
        nowhere = [x509.IPAddress(ipaddress.ip_network(every)) for every in ("0.0.0.0/0", "::/0")]
        return self._sign(
            _COMMON_NAME,
            self._key.public_key(),
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (_key_usage(is_authority=True), True),
            (x509.NameConstraints(permitted_subtrees=names, excluded_subtrees=nowhere), True),
        )

    def _leaf(self, host: str) -> x509.Certificate:
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        return self._sign(
            host[:64],  # the limit of X.520; clients check the alternative name
            self._leaf_key.public_key(),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_key_usage(is_authority=False), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.SubjectAlternativeName([x509.DNSName(host)]), False),
        )

    def _sign(
        self, common_name: str, key: ec.EllipticCurvePublicKey, *extensions: tuple[x509.ExtensionType, bool]
    ) -> x509.Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(common_name))
            .issuer_name(_name(_COMMON_NAME))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._begun - _CLOCKS_DIFFER)
            .not_valid_after(self._begun + _LASTS)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256())


def server_side(extra: str | None) -> ssl.SSLContext:
    """Return the context for TLS with servers, in HTTP/1.1. It verifies names and certificates with the system's
    authorities and those in the PEM file ``extra``. Raises ``OSError`` (``ssl.SSLError`` is one)."""
    context = ssl.create_default_context()
    if extra is not None:
        context.load_verify_locations(extra)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    """Load a chain from memory: Python reads keys from files only, and this file has no name."""
    with hold(os.memfd_create("leaf", os.MFD_CLOEXEC)) as fd:
        os.write(fd, chain)
        context.load_cert_chain(f"/proc/self/fd/{fd}")


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _name(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_authority, key_cert_sign=is_authority, crl_sign=is_authority,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


_FOLDER = "/etc/ssl/certs"
_BUNDLE, _OWN = f"{_FOLDER}/ca-certificates.crt", f"{_FOLDER}/casemate.pem"
# Folders of the system's authorities in various distributions; those bound into the cell are replaced.
_REPLACED = ("/etc/pki/tls/certs", "/etc/pki/ca-trust")
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
            "/etc/ssl/cert.pem")  # fmt: skip
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----\n?")
_MOST_BUNDLE = 4 << 20  # bytes
VARIABLES = {
    # OpenSSL, hence Python's ssl, httpx, aiohttp and Ruby; Go; users of rustls-native-certs such as uv
    "SSL_CERT_FILE": _BUNDLE,
    "REQUESTS_CA_BUNDLE": _BUNDLE,  # requests, which ships its own certificates
    "CURL_CA_BUNDLE": _BUNDLE,
    "PIP_CERT": _BUNDLE,
    "GIT_SSL_CAINFO": _BUNDLE,
    "AWS_CA_BUNDLE": _BUNDLE,
    "CARGO_HTTP_CAINFO": _BUNDLE,
    "NODE_EXTRA_CA_CERTS": _OWN,  # in addition to Node's own authorities; also for npm
}


def trust_entries(entries: Iterable[Entry], folder: str) -> tuple[Entry, ...]:
    """Return a cell's ``entries`` with the certificates in ``folder`` in place of the system's."""
    kept = [entry for entry in entries if entry.target not in (_FOLDER, *_REPLACED)]
    replaced = [entry.target for entry in entries if entry.target in _REPLACED]
    return (*kept, *(Bind(folder, target) for target in (_FOLDER, *replaced)))


def write_trust(folder: Path, authority: Authority) -> None:
    """Fill the new ``folder`` with all certificates: as bundle, hashed files and Java store. Raises ``OSError``."""
    own = authority.certificate
    system = _system_bundle()
    bundle = system + b"\n" + own
    os.mkdir(folder, 0o755)
    for name in ("ca-certificates.crt", "ca-bundle.crt", "extracted/pem/tls-ca-bundle.pem"):
        _write(folder / name, bundle)
    _write(folder / "casemate.pem", own)
    hashed = {path.name: path.read_bytes() for path in _read_hashed()}
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
    """Return the system's certificates in PEM; empty if it has none."""
    named = ssl.get_default_verify_paths().cafile
    for path in (named, *_BUNDLES):
        if path is not None and os.path.isfile(path) and os.path.getsize(path) <= _MOST_BUNDLE:
            return Path(path).read_bytes()
    return b""


def _read_hashed() -> list[Path]:
    folder = Path(_FOLDER)
    if not folder.is_dir():
        return []
    names = (path for path in folder.iterdir() if len(path.name) == 10 and path.name[8] == "." and path.is_file())
    return [path for path in names if path.stat().st_size <= _MOST_BUNDLE]


def _java_store(bundle: bytes) -> bytes:
    """Return a PKCS #12 store without a password, which JVMs read as ``cacerts``. Invalid certificates are left out."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # some old authorities have invalid serial numbers
        for text in _CERTIFICATE.findall(bundle):
            with contextlib.suppress(ValueError, Warning):
                found.append(x509.load_pem_x509_certificate(text))
    named = [pkcs12.PKCS12Certificate(one, b"%d" % number) for number, one in enumerate(found)]
    return pkcs12.serialize_java_truststore(named, NoEncryption())
