"""Where the key of a vault is kept, and beside it how often the vault was written: an older copy has a lower number."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Protocol

from casemate.errors import VaultUnavailable
from casemate.vault.private_files import read_private, replace_private
from casemate.vault.sealed import KEY_BYTES, KeyPlace

_FORMAT = "casemate-key-1"
_SERVICE = "casemate vault"
_MOST = 1024  # bytes of a key file
_WORKING = 1.0  # from this priority on a backend of keyring's is one that keeps secrets


@dataclass(frozen=True, slots=True)
class Key:
    """``secret``: 32 bytes; ``counter``: of the last writing of the vault that is known."""

    secret: bytes = field(repr=False)
    counter: int

    def written(self) -> str:
        """As one line of text."""
        return f"{_FORMAT} {base64.b64encode(self.secret).decode()} {self.counter}"

    @classmethod
    def read(cls, line: str) -> Key:
        """From one. Raises ``ValueError``."""
        name, secret, counter = line.split()
        decoded = base64.b64decode(secret, validate=True)
        if name != _FORMAT or len(decoded) != KEY_BYTES or not counter.isdecimal():
            raise ValueError("it is no key of casemate's")
        return cls(decoded, int(counter))


class Keys(Protocol):
    """A place for the key of one vault. Raises ``VaultUnavailable`` where it cannot be read or written."""

    place: KeyPlace

    def load(self) -> Key | None:
        """The key, or None where there is none yet."""
        ...

    def store(self, key: Key) -> None:
        """Keep it in place of the one before."""
        ...


class KeyFile:
    """A file of mode 0600 in a folder of mode 0700."""

    place: KeyPlace = "file"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()

    def load(self) -> Key | None:
        content = read_private(self._path, _MOST)
        try:
            return None if content is None else Key.read(content.decode())
        except (ValueError, binascii.Error):
            raise _unreadable(str(self._path)) from None

    def store(self, key: Key) -> None:
        replace_private(self._path, f"{key.written()}\n".encode())


class Keyring:
    """The user's keyring, as the library keyring finds it; an entry for each vault by its path."""

    place: KeyPlace = "keyring"

    def __init__(self, vault: Path) -> None:
        self._entry = str(vault)

    @staticmethod
    def works() -> bool:
        """Whether there is one that keeps secrets."""
        try:
            import keyring
        except ImportError:
            return False
        try:
            return float(keyring.get_keyring().priority) >= _WORKING
        except (RuntimeError, ValueError, TypeError):
            return False

    def load(self) -> Key | None:
        keyring = _library()
        try:
            line = keyring.get_password(_SERVICE, self._entry)
        except keyring.errors.KeyringError as error:
            raise _refused(error) from None
        try:
            return None if line is None else Key.read(line)
        except (ValueError, binascii.Error):
            raise _unreadable("the keyring's entry") from None

    def store(self, key: Key) -> None:
        keyring = _library()
        try:
            keyring.set_password(_SERVICE, self._entry, key.written())
        except keyring.errors.KeyringError as error:
            raise _refused(error) from None


def key_path(vault: Path, environ: Mapping[str, str]) -> Path:
    """Where the key file of a vault lies: in the user's folder for configuration, away from the vault.

    Raises ``VaultUnavailable`` when the environment names neither that folder nor a home.
    """
    name = hashlib.sha256(os.fsencode(vault)).hexdigest()[:32]
    for variable, below in (("XDG_CONFIG_HOME", ()), ("HOME", (".config",))):
        folder = environ.get(variable, "")
        if os.path.isabs(folder):
            return Path(folder, *below, "casemate", "keys", f"{name}.key")
    raise VaultUnavailable(
        "the key of the vault has no place: neither XDG_CONFIG_HOME nor HOME is set to an absolute path",
        reason="key",
        remediation="Set HOME, or name a key file: vault=EncryptedFile(path, KeyFile('/path/to/key')).",
    )


def _library() -> ModuleType:
    try:
        import keyring
        import keyring.errors
    except ImportError:
        raise VaultUnavailable(
            "the key of this vault is in the user's keyring, and the library keyring is not installed",
            reason="library",
            remediation="pip install 'casemate[vault]'",
        ) from None
    return keyring


def _refused(error: Exception) -> VaultUnavailable:
    return VaultUnavailable(
        f"the user's keyring cannot be used: {type(error).__name__}", reason="key", remediation="Unlock it."
    )


def _unreadable(what: str) -> VaultUnavailable:
    return VaultUnavailable(f"{what} does not hold a key of casemate's", reason="key")
