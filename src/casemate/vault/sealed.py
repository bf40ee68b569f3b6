"""A vault's bytes: one line that says what they are, then everything encrypted and authenticated. Pure but for a nonce.

    {"cipher": "AES-256-GCM", "counter": 7, "format": "casemate-vault-1", "key": "file"}
    nonce (12 bytes), ciphertext, tag (16 bytes)

What is encrypted is JSON, ``{namespace: {name: value}}``. In ``casemate-vault-2`` a value may also be an object that
says where it may go, ``{"value": ..., "inject": {"hosts": ..., "header": ..., "format": ...}}``. It is written only
when there is one: versions that do not know it could hand a program what none may have, so they refuse such a file.

The line is associated data of the cipher (NIST SP 800-38D), so that nothing of it can be changed either. Each writing
has a nonce of its own at random, and a counter that is higher than the one before.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from casemate.errors import InvalidArgument, VaultUnavailable
from casemate.policy.inject import Inject, Injected

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
MOST = 8 << 20  # bytes of a whole vault
_NONCE = 12
_MOST_HEAD = 512
_PLAIN, _WITH_PLACES, _CIPHER = "casemate-vault-1", "casemate-vault-2", "AES-256-GCM"

Contents = dict[str, dict[str, str | Injected]]  # namespace, name, value
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
    goes_out = any(isinstance(value, Injected) for values in contents.values() for value in values.values())
    fields: dict[str, Any] = {"format": _WITH_PLACES if goes_out else _PLAIN}
    fields |= {"cipher": _CIPHER, "counter": head.counter, "key": head.key}
    line = json.dumps(fields, sort_keys=True).encode() + b"\n"
    nonce = os.urandom(_NONCE)
    return line + nonce + _cipher(key).encrypt(nonce, json.dumps(contents, default=_entry).encode(), line)


def head_of(sealed: bytes) -> Head:
    """What its first line says, which is not to be believed before :func:`unseal` has. Raises ``Damaged``."""
    line, _, _ = sealed[:_MOST_HEAD].partition(b"\n")
    try:
        fields = json.loads(line)
        counter, key = fields["counter"], fields["key"]
        known = fields["format"] in (_PLAIN, _WITH_PLACES) and fields["cipher"] == _CIPHER
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
    written: dict[str, dict[str, Any]] = json.loads(text)
    return {namespace: {name: _kept(one) for name, one in values.items()} for namespace, values in written.items()}


def check_library() -> None:
    """Raises ``VaultUnavailable`` where the library for encryption is missing."""
    _cipher(bytes(KEY_BYTES))


def _entry(value: Injected) -> dict[str, Any]:
    return {"value": value.value, "inject": value.inject.written()}


def _kept(entry: Any) -> str | Injected:
    """A value as it was written. Raises ``Damaged``."""
    if isinstance(entry, str):
        return entry
    try:
        return Injected(entry["value"], Inject.read(entry["inject"]))
    except (KeyError, TypeError, InvalidArgument):
        raise Damaged("it holds what this version does not know") from None


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
