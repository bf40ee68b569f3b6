"""DSSE envelopes: a payload, its type, and signatures over both. Pure.

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

Sign = Callable[[bytes], tuple[str, bytes]]  # data -> the key's id, the signature
Envelope = dict[str, Any]  # JSON
# The prefix of a key's DER form (RFC 8410). The library's DER writer loads more slowly than everything else here.
_DER = bytes.fromhex("302a300506032b6570032100")


@dataclass(frozen=True, slots=True)
class PublicKey:
    """An Ed25519 public key.

    Attributes:
        pem: The key as PEM text, for ``openssl pkey -pubin``.
        id: The SHA-256 of its DER form (``openssl pkey -pubin -outform DER | sha256sum``).
        retired: The time of its rotation (RFC 3339). None for the current key.
    """

    pem: str
    id: str
    retired: str | None = None

    @classmethod
    def from_pem(cls, pem: str) -> PublicKey:
        """Parse a PEM text. Raises ``InvalidArgument``."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        with suppress(ValueError):
            if isinstance(key := load_pem_public_key(str(pem).encode()), Ed25519PublicKey):
                return cls.of(key)
        raise InvalidArgument("key", "is not a public Ed25519 key in PEM, as casemate keys export prints it")

    @classmethod
    def of(cls, key: Ed25519PublicKey) -> PublicKey:
        """Convert a key of the ``cryptography`` library."""
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
    """Put ``payload`` in an envelope with a signature by each signer."""
    data = _encode(payload_type, payload)
    signatures = [
        {"keyid": key_id, "sig": base64_of(signature)} for key_id, signature in (one(data) for one in signers)
    ]
    return {"payload": base64_of(payload), "payloadType": payload_type, "signatures": signatures}


def read(envelope: Any, payload_type: str, keys: Iterable[PublicKey]) -> tuple[Any, list[PublicKey]]:
    """The JSON in an envelope, and the ``keys`` that signed it. Raises ``NotProved`` if it is not a valid envelope."""
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
    """Reverse :func:`base64_of`. Raises ``ValueError`` for any other form of the same bytes."""
    data = base64.b64decode(text, validate=True)
    if base64_of(data) != text:  # unused bits at the end may be set
        raise ValueError("no base64 in its one form")
    return data


def _encode(payload_type: str, payload: bytes) -> bytes:
    """The pre-authentication encoding (PAE), which is the data that signers sign."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
