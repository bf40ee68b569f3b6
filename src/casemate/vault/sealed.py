"""A vault's bytes: one line that says what they are, then everything encrypted and authenticated. Pure but for a nonce.

    {"cipher": "AES-256-GCM", "counter": 7, "format": "casemate-vault-1", "key": "file"}
    nonce (12 bytes), ciphertext, tag (16 bytes)

The line is associated data of the cipher (NIST SP 800-38D), so that nothing of it can be changed either. Each writing
has a nonce of its own at random, and a counter that is higher than the one before.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from casemate.errors import VaultUnavailable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
MOST = 8 << 20  # bytes of a whole vault
_NONCE = 12
_MOST_HEAD = 512
_FORMAT, _CIPHER = "casemate-vault-1", "AES-256-GCM"

Contents = dict[str, dict[str, str]]  # namespace, name, value
KeyPlace = Literal["file", "keyring"]


class Damaged(Exception):
    """These bytes are no vault, or not one that this key has made."""


@dataclass(frozen=True, slots=True)
class Head:
    """``counter``: how often it was written; ``key``: where its key is kept."""

    counter: int
    key: KeyPlace


def seal(contents: Contents, head: Head, key: bytes) -> bytes:
    """``contents`` as the bytes of a vault. Raises ``VaultUnavailable`` where the library for it is missing."""
    fields = {"format": _FORMAT, "cipher": _CIPHER, "counter": head.counter, "key": head.key}
    line = json.dumps(fields, sort_keys=True).encode() + b"\n"
    nonce = os.urandom(_NONCE)
    return line + nonce + _cipher(key).encrypt(nonce, json.dumps(contents).encode(), line)


def head_of(sealed: bytes) -> Head:
    """What its first line says, which is not to be believed before :func:`unseal` has. Raises ``Damaged``."""
    line, _, _ = sealed[:_MOST_HEAD].partition(b"\n")
    try:
        fields = json.loads(line)
        counter, key = fields["counter"], fields["key"]
        known = (fields["format"], fields["cipher"]) == (_FORMAT, _CIPHER)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Damaged("its first line is none of a vault's") from None
    if not known or type(counter) is not int or counter < 0 or key not in ("file", "keyring"):
        raise Damaged("its first line is none that this version knows")
    return Head(counter, key)


def unseal(sealed: bytes, key: bytes) -> Contents:
    """Its contents. Raises ``Damaged`` when a single bit of it is not as it was written, or the key is another."""
    from cryptography.exceptions import InvalidTag

    line, newline, rest = sealed.partition(b"\n")
    try:
        text = _cipher(key).decrypt(rest[:_NONCE], rest[_NONCE:], line + newline)
    except (InvalidTag, ValueError):
        raise Damaged("it was changed or cut, or its key is another") from None
    contents: Contents = json.loads(text)
    return contents


def check_library() -> None:
    """Raises ``VaultUnavailable`` where the library for encryption is missing."""
    _cipher(bytes(KEY_BYTES))


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise VaultUnavailable(
            "a vault on disk is encrypted with the library cryptography, which is not installed",
            reason="library",
            remediation="pip install 'casemate[vault]'",
        ) from None
    return AESGCM(key)
