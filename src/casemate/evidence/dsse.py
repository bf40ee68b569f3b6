"""DSSE envelopes: bytes, their type, and who signed both. Pure.

https://github.com/secure-systems-lab/dsse/blob/v1.0.0/protocol.md
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from casemate.errors import InvalidArgument, NotProved

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Sign = Callable[[bytes], tuple[str, bytes]]  # what is signed -> the key's id, the signature
Envelope = dict[str, Any]  # JSON
# What a key's DER form begins with (RFC 8410). The library's own writer of it takes longer to load than all else here.
_DER = bytes.fromhex("302a300506032b6570032100")


@dataclass(frozen=True, slots=True)
class PublicKey:
    """An Ed25519 key that verifies.

    Attributes:
        pem: As text, as ``openssl pkey -pubin`` reads it.
        id: The SHA-256 of its DER form (``openssl pkey -pubin -outform DER | sha256sum``).
        retired: When another took its place (RFC 3339), or None.
    """

    pem: str
    id: str
    retired: str | None = None

    @classmethod
    def from_pem(cls, pem: str) -> PublicKey:
        """The key in a PEM text. Raises ``InvalidArgument``."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        with suppress(ValueError):
            if isinstance(key := load_pem_public_key(str(pem).encode()), Ed25519PublicKey):
                return cls.of(key)
        raise InvalidArgument("key", "is no public Ed25519 key in PEM, as casemate keys export prints one")

    @classmethod
    def of(cls, key: Ed25519PublicKey) -> PublicKey:
        """The same of a key of the library's."""
        der = _DER + key.public_bytes_raw()
        pem = f"-----BEGIN PUBLIC KEY-----\n{base64_of(der)}\n-----END PUBLIC KEY-----\n"
        return cls(pem, hashlib.sha256(der).hexdigest())


def verify(data: bytes, signature: bytes, key: PublicKey) -> bool:
    """Whether ``key`` signed ``data``."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    raw = base64.b64decode(key.pem.splitlines()[1])[len(_DER) :]
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, data)
    except InvalidSignature:
        return False
    return True


def wrap(payload_type: str, payload: bytes, *signers: Sign) -> Envelope:
    """``payload`` in an envelope, signed by each."""
    data = _encode(payload_type, payload)
    signatures = [
        {"keyid": key_id, "sig": base64_of(signature)} for key_id, signature in (one(data) for one in signers)
    ]
    return {"payload": base64_of(payload), "payloadType": payload_type, "signatures": signatures}


def read(envelope: Any, payload_type: str, keys: Iterable[PublicKey]) -> tuple[Any, list[PublicKey]]:
    """The JSON in an envelope, and which of ``keys`` have signed it. Raises ``NotProved`` where it is none."""
    try:
        payload = _decode(envelope["payload"])
        found_type = envelope["payloadType"]
        signatures = {one["keyid"]: _decode(one["sig"]) for one in envelope["signatures"]}
        parsed = json.loads(payload)
    except (KeyError, TypeError, ValueError, RecursionError):
        raise NotProved("this is not a signed envelope") from None
    if found_type != payload_type:
        raise NotProved(f"it is signed as {str(found_type)[:200]!r}, not as {payload_type!r}")
    data = _encode(payload_type, payload)
    return parsed, [key for key in keys if key.id in signatures and verify(data, signatures[key.id], key)]


def base64_of(data: bytes) -> str:
    """``data`` in base64."""
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    """Back from :func:`base64_of`, from exactly what it makes. Raises ``ValueError``."""
    data = base64.b64decode(text, validate=True)
    if base64_of(data) != text:  # bits that no byte needs may be other than 0
        raise ValueError("no base64 in its one form")
    return data


def _encode(payload_type: str, payload: bytes) -> bytes:
    """Pre-authentication encoding: what is signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
