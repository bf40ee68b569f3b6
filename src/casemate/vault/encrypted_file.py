"""Secrets in one encrypted file, for all namespaces.

The file is written first and the counter beside the key after it, so a death between the two leaves a vault that is
one ahead of its key, which is fine. A vault that is behind its key is an older copy, and one that is missing while its
key has counted was taken away: both are refused. Not noticed is a vault that is put back together with its key, as a
restored disk does, and, where the process died between the two, the copy from before that writing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from casemate.errors import VaultUnavailable
from casemate.vault.keys import Key, KeyFile, Keyring, Keys, key_path
from casemate.vault.private_files import open_lock, read_private, replace_private
from casemate.vault.sealed import KEY_BYTES, MOST, Contents, Damaged, Head, check_library, head_of, seal, unseal
from casemate.vault.store import Kept


class EncryptedFile:
    """The vault at ``path``, made with its key when a first secret is set. Usable from any thread and process.

    ``keys``: where its key is; None for the user's keyring where there was a working one when it was made, else a file
    in the user's folder for configuration, which ``environ`` names. Raises ``VaultUnavailable``, as every method does.
    """

    def __init__(
        self, path: str | os.PathLike[str], keys: Keys | None = None, *, environ: Mapping[str, str] | None = None
    ) -> None:
        check_library()
        self.path = Path(os.path.abspath(path))
        self._keys = keys
        self._environ = environ or {}

    def get(self, namespace: str, name: str) -> Kept | None:
        return self._contents().get(namespace, {}).get(name)

    def names(self, namespace: str) -> tuple[str, ...]:
        return tuple(sorted(self._contents().get(namespace, {})))

    def set(self, namespace: str, name: str, value: Kept) -> None:
        def put(contents: Contents) -> bool:
            contents.setdefault(namespace, {})[name] = value
            return True

        self._change(put)

    def delete(self, namespace: str, name: str) -> bool:
        def take(contents: Contents) -> bool:
            return contents.get(namespace, {}).pop(name, None) is not None

        return self._change(take)

    def _contents(self) -> Contents:
        keys, key, sealed = self._read()
        return self._opened(keys, key, sealed) if sealed is not None and key is not None else {}

    def _read(self) -> tuple[Keys, Key | None, bytes | None]:
        """Its key, then itself: whoever writes meanwhile makes it newer than the key says, never older."""
        keys = self._keys or self._keys_of(read_private(self.path, MOST))
        key = keys.load()
        sealed = read_private(self.path, MOST)
        if sealed is None and key is not None and key.counter:
            raise VaultUnavailable(
                f"the vault {str(self.path)!r} is missing: its key has been used {key.counter} times",
                reason="missing",
                remediation="Put it back; or to begin anew, delete its key (docs/how-to/secrets.md says where it is).",
            )
        if sealed is not None and key is None:
            raise VaultUnavailable(
                f"the vault {str(self.path)!r} is there, but its key is not",
                reason="key",
                remediation="Bring the key back (see docs/how-to/secrets.md); without it nothing can be read.",
            )
        return keys, key, sealed

    def _keys_of(self, sealed: bytes | None) -> Keys:
        """Where the key is that the file speaks of; of one that is not there, where one is or would be made."""
        in_file = KeyFile(key_path(self.path, self._environ))
        if sealed is not None:
            return Keyring(self.path) if self._head(sealed).key == "keyring" else in_file
        return Keyring(self.path) if in_file.load() is None and Keyring.works() else in_file

    def _opened(self, keys: Keys, key: Key, sealed: bytes) -> Contents:
        head = self._head(sealed)
        try:
            contents = unseal(sealed, key.secret)
        except Damaged as error:
            raise self._damaged(error) from None
        if head.counter < key.counter or head.key != keys.place:
            raise VaultUnavailable(
                f"the vault {str(self.path)!r} is an older copy: it was written {head.counter} times, its key says "
                f"{key.counter}",
                reason="older",
                remediation="Put the newest one back. What was changed since the copy was made is not in it.",
            )
        return contents

    def _head(self, sealed: bytes) -> Head:
        try:
            return head_of(sealed)
        except Damaged as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Damaged) -> VaultUnavailable:
        return VaultUnavailable(
            f"the vault {str(self.path)!r} is not as it was left: {error}",
            reason="damaged",
            remediation="Put a good copy back, the newest one.",
        )

    def _change(self, change: Callable[[Contents], bool]) -> bool:
        """Apply ``change``, alone; whether it changed anything."""
        with self._locked():
            keys, key, sealed = self._read()
            key = key or Key(os.urandom(KEY_BYTES), 0)
            contents = {} if sealed is None else self._opened(keys, key, sealed)
            if not change(contents):
                return False
            counter = 1 + (0 if sealed is None else self._head(sealed).counter)
            if sealed is None:
                keys.store(key)  # before there is anything that only it can open
            replace_private(self.path, seal(contents, Head(counter, keys.place), key.secret))
            keys.store(Key(key.secret, counter))
            return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else writes meanwhile (flock(2)): no other thread, and no other process."""
        lock = open_lock(self.path.with_name(f"{self.path.name}.lock"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
