"""Stores the secrets of all namespaces in one encrypted file: its format, its key, and how both are kept.

A vault is a header line, then everything encrypted and authenticated:

    {"cipher": "AES-256-GCM", "counter": 7, "format": "casemate-vault-1", "key": "file"}
    nonce (12 bytes), ciphertext, tag (16 bytes)

The encrypted part is JSON, ``{namespace: {name: value}}``. In ``casemate-vault-2`` a value may also be an object that
says where it may go, ``{"value": ..., "inject": {"hosts": ..., "header": ..., "format": ...}}``. Only a vault with such
a value has that format: older versions must refuse it, for they would give the value to programs.

The header is associated data of the cipher (NIST SP 800-38D), so it cannot be changed either. Each write has a new
random nonce and a higher counter.

The counter is also stored with the key. A write replaces the vault first, then the key. A crash in between leaves a
vault that is one ahead of its key. Such a vault is accepted. A vault behind its key is an older copy and is refused. So
is a missing vault if the key's counter is above 0. Two kinds of older copies are accepted: a vault that is restored
together with its key, and, after such a crash, the vault from before that write.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from casemate.errors import InvalidArgument, Unavailable, VaultUnavailable
from casemate.files.private_files import open_lock, read_private, replace_private, turn
from casemate.files.user_folders import user_folder
from casemate.policy.inject import Inject, Injected
from casemate.vault.store import Kept
from casemate.version import how_to_install

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
    """The bytes are not a vault, or not one of this key."""


@dataclass(frozen=True, slots=True)
class VaultHead:
    counter: int  # how often the vault was written
    key: KeyPlace


def seal(contents: Contents, head: VaultHead, key: bytes) -> bytes:
    """Encrypt ``contents`` into the bytes of a vault. Raises ``VaultUnavailable`` if the library for it is missing."""
    goes_out = any(isinstance(value, Injected) for values in contents.values() for value in values.values())
    fields: dict[str, Any] = {"format": _WITH_PLACES if goes_out else _PLAIN}
    fields |= {"cipher": _CIPHER, "counter": head.counter, "key": head.key}
    line = json.dumps(fields, sort_keys=True).encode() + b"\n"
    nonce = os.urandom(_NONCE)
    return line + nonce + _cipher(key).encrypt(nonce, json.dumps(contents, default=_entry).encode(), line)


def head_of(sealed: bytes) -> VaultHead:
    """Read a vault's header, which must not be trusted before :func:`unseal` succeeds. Raises ``Damaged``."""
    line, _, _ = sealed[:_MOST_HEAD].partition(b"\n")
    try:
        fields = json.loads(line)
        counter, key = fields["counter"], fields["key"]
        known = fields["format"] in (_PLAIN, _WITH_PLACES) and fields["cipher"] == _CIPHER
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Damaged("its first line is not that of a vault") from None
    if not known or type(counter) is not int or counter < 0 or key not in ("file", "keyring"):
        raise Damaged("this version does not know the format in its first line")
    return VaultHead(counter, key)


def unseal(sealed: bytes, key: bytes) -> Contents:
    """Decrypt a vault's contents. Raises ``Damaged`` if a single bit has changed, or ``key`` is not its key."""
    from cryptography.exceptions import InvalidTag

    line, newline, rest = sealed.partition(b"\n")
    try:
        text = _cipher(key).decrypt(rest[:_NONCE], rest[_NONCE:], line + newline)
    except (InvalidTag, ValueError):
        raise Damaged("it was changed or cut, or this is not its key") from None
    written: dict[str, dict[str, Any]] = json.loads(text)
    return {
        namespace: {name: _read_value(one) for name, one in values.items()} for namespace, values in written.items()
    }


def _entry(value: Injected) -> dict[str, Any]:
    return {"value": value.value, "inject": value.inject.as_json()}


def _read_value(entry: Any) -> str | Injected:
    """Read a stored value. Raises ``Damaged``."""
    if isinstance(entry, str):
        return entry
    try:
        return Injected(entry["value"], Inject.read(entry["inject"]))
    except (KeyError, TypeError, InvalidArgument):
        raise Damaged("it contains a value that this version does not know") from None


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise VaultUnavailable(
            "a vault on disk is encrypted with the library cryptography, which is not installed",
            reason="library",
            remediation=how_to_install("vault"),
        ) from None
    return AESGCM(key)


_FORMAT = "casemate-key-1"
_SERVICE = "casemate vault"
_MOST = 1024  # bytes of a key file
_WORKING = 1.0  # keyring backends of a lower priority do not keep secrets


@dataclass(frozen=True, slots=True)
class VaultKey:
    secret: bytes = field(repr=False)  # KEY_BYTES
    counter: int  # of the vault's last known write

    def as_line(self) -> str:
        """Return the key as one line of text."""
        return f"{_FORMAT} {base64.b64encode(self.secret).decode()} {self.counter}"

    @classmethod
    def read(cls, line: str) -> VaultKey:
        """Read a key from one line of text. Raises ``ValueError``."""
        name, secret, counter = line.split()
        decoded = base64.b64decode(secret, validate=True)
        if name != _FORMAT or len(decoded) != KEY_BYTES or not counter.isdecimal():
            raise ValueError("it is not a key of casemate's")
        return cls(decoded, int(counter))


class KeyStore(Protocol):
    """Stores the key of one vault. Raises ``VaultUnavailable`` if it cannot be read or written."""

    place: KeyPlace

    def load(self) -> VaultKey | None:
        """Return the key, or None if there is none yet."""

    def store(self, key: VaultKey) -> None:
        """Replace the stored key."""


class KeyFile:
    """A file of mode 0600 in a folder of mode 0700."""

    place: KeyPlace = "file"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()

    def load(self) -> VaultKey | None:
        content = read_private(self._path, _MOST)
        try:
            return None if content is None else VaultKey.read(content.decode())
        except (ValueError, binascii.Error):
            raise _unreadable(str(self._path)) from None

    def store(self, key: VaultKey) -> None:
        replace_private(self._path, f"{key.as_line()}\n".encode())


class Keyring:
    """The user's keyring, as the library keyring finds it, with an entry for each vault's path."""

    place: KeyPlace = "keyring"

    def __init__(self, vault: Path) -> None:
        self._entry = str(vault)

    @staticmethod
    def works() -> bool:
        """Whether the user has a keyring that keeps secrets."""
        try:
            import keyring
        except ImportError:
            return False
        try:
            return float(keyring.get_keyring().priority) >= _WORKING
        except (RuntimeError, ValueError, TypeError):
            return False

    def load(self) -> VaultKey | None:
        keyring = _library()
        try:
            line = keyring.get_password(_SERVICE, self._entry)
        except keyring.errors.KeyringError as error:
            raise _keyring_unavailable(error) from None
        try:
            return None if line is None else VaultKey.read(line)
        except (ValueError, binascii.Error):
            raise _unreadable("the keyring's entry") from None

    def store(self, key: VaultKey) -> None:
        keyring = _library()
        try:
            keyring.set_password(_SERVICE, self._entry, key.as_line())
        except keyring.errors.KeyringError as error:
            raise _keyring_unavailable(error) from None


def key_path(vault: Path, environ: Mapping[str, str]) -> Path:
    """Return the path of a vault's key file: in the user's configuration folder, away from the vault. Raises
    ``VaultUnavailable`` if the environment names neither that folder nor a home."""
    name = hashlib.sha256(os.fsencode(vault)).hexdigest()[:32]
    remediation = "Set HOME, below which it is kept."
    try:
        folder = user_folder(environ, "config", "there is no folder for the vault's key", remediation)
    except Unavailable as error:
        raise VaultUnavailable(error.message, reason="key", remediation=remediation) from None
    return folder / "keys" / f"{name}.key"


def _library() -> ModuleType:
    try:
        import keyring
        import keyring.errors
    except ImportError:
        raise VaultUnavailable(
            "the key of this vault is in the user's keyring, and the library keyring is not installed",
            reason="library",
            remediation=how_to_install("vault"),
        ) from None
    return keyring


def _keyring_unavailable(error: Exception) -> VaultUnavailable:
    return VaultUnavailable(
        f"the user's keyring cannot be used: {type(error).__name__}", reason="key", remediation="Unlock it."
    )


def _unreadable(what: str) -> VaultUnavailable:
    return VaultUnavailable(f"{what} does not hold a key of casemate's", reason="key")


class EncryptedFile:
    """The vault at ``path``. The first secret creates it and its key. Usable from any thread and process.

    ``keys``: where its key is. None means the user's keyring if one worked when the vault was created, else a file in
    the user's configuration folder, which ``environ`` names. Raises ``VaultUnavailable``, as every method does.
    """

    def __init__(
        self, path: str | os.PathLike[str], keys: KeyStore | None = None, *, environ: Mapping[str, str] | None = None
    ) -> None:
        _cipher(bytes(KEY_BYTES))  # raises if the library for encryption is missing
        self.path = Path(os.path.abspath(path))
        self._keys = keys
        self._environ = environ or {}

    def get(self, namespace: str, name: str) -> Kept | None:
        return self._contents().get(namespace, {}).get(name)

    def names(self, namespace: str) -> tuple[str, ...]:
        return tuple(sorted(self._contents().get(namespace, {})))

    def set(self, namespace: str, name: str, value: Kept) -> None:
        def store_value(contents: Contents) -> bool:
            contents.setdefault(namespace, {})[name] = value
            return True

        self._change(store_value)

    def delete(self, namespace: str, name: str) -> bool:
        def take(contents: Contents) -> bool:
            return contents.get(namespace, {}).pop(name, None) is not None

        return self._change(take)

    def _contents(self) -> Contents:
        keys, key, sealed = self._read()
        return self._unseal(keys, key, sealed) if sealed is not None and key is not None else {}

    def _read(self) -> tuple[KeyStore, VaultKey | None, bytes | None]:
        """Read the key, then the vault: a write in between makes the vault newer than its key says, never older."""
        keys = self._keys or self._keys_of(read_private(self.path, MOST))
        key = keys.load()
        sealed = read_private(self.path, MOST)
        if sealed is None and key is not None and key.counter:
            raise VaultUnavailable(
                f"the vault {str(self.path)!r} is missing: its key has been used {key.counter} times",
                reason="missing",
                remediation="Put it back, or delete its key to start afresh (docs/how-to/secrets.md says where it is).",
            )
        if sealed is not None and key is None:
            raise VaultUnavailable(
                f"the vault {str(self.path)!r} is there, but its key is not",
                reason="key",
                remediation="Bring the key back (see docs/how-to/secrets.md); without it nothing can be read.",
            )
        return keys, key, sealed

    def _keys_of(self, sealed: bytes | None) -> KeyStore:
        """Return the store of the vault's key. Without a vault, a key file comes before a working keyring."""
        in_file = KeyFile(key_path(self.path, self._environ))
        if sealed is not None:
            return Keyring(self.path) if self._head(sealed).key == "keyring" else in_file
        return Keyring(self.path) if in_file.load() is None and Keyring.works() else in_file

    def _unseal(self, keys: KeyStore, key: VaultKey, sealed: bytes) -> Contents:
        head = self._head(sealed)
        try:
            contents = unseal(sealed, key.secret)
        except Damaged as error:
            raise self._damage_error(error) from None
        if head.counter < key.counter or head.key != keys.place:
            raise VaultUnavailable(
                f"the vault {str(self.path)!r} is an older copy: it was written {head.counter} times, its key says "
                f"{key.counter}",
                reason="older",
                remediation="Put the newest one back. What was changed since the copy was made is not in it.",
            )
        return contents

    def _head(self, sealed: bytes) -> VaultHead:
        try:
            return head_of(sealed)
        except Damaged as error:
            raise self._damage_error(error) from None

    def _damage_error(self, error: Damaged) -> VaultUnavailable:
        return VaultUnavailable(
            f"the vault {str(self.path)!r} is damaged: {error}",
            reason="damaged",
            remediation="Restore the newest good copy.",
        )

    def _change(self, change: Callable[[Contents], bool]) -> bool:
        """Apply ``change`` under the vault's lock. Returns whether it changed anything."""
        with turn(open_lock(self.path.with_name(f"{self.path.name}.lock"))):
            keys, key, sealed = self._read()
            key = key or VaultKey(os.urandom(KEY_BYTES), 0)
            contents = {} if sealed is None else self._unseal(keys, key, sealed)
            if not change(contents):
                return False
            counter = 1 + (0 if sealed is None else self._head(sealed).counter)
            if sealed is None:
                keys.store(key)  # before anything is encrypted with it
            replace_private(self.path, seal(contents, VaultHead(counter, keys.place), key.secret))
            keys.store(VaultKey(key.secret, counter))
            return True
