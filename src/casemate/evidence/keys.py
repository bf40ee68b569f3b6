"""The installation's Ed25519 signing keys, in one file (mode 0600) in the user's state folder. One key is current.

The first signature creates the key. A rotation is a statement "key A is followed by key B", signed by both keys.
:func:`unseal` follows rotations from any trusted key, so statements signed with a retired key stay verifiable.

The user and root can read the file, and can therefore sign as the installation.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate.errors import NotProved, Unavailable
from casemate.evidence.dsse import Envelope, PublicKey, base64_of, read, wrap
from casemate.files.private_files import open_lock, read_private, replace_private, turn
from casemate.files.user_folders import user_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ROTATION = "application/vnd.casemate.rotation+json"
ROTATIONS = "casemate_rotations"  # the envelope's field of rotations, oldest first. Other readers ignore it.
_MOST = 1 << 20  # bytes of the file: a rotation takes about one KiB


@dataclass(frozen=True, slots=True)
class _KeyPair:
    private: Ed25519PrivateKey
    public: PublicKey
    rotations: tuple[Envelope, ...]  # oldest first

    def sign(self, data: bytes) -> tuple[str, bytes]:
        return self.public.id, self.private.sign(data)


class Signer:
    """Signs with the current key in ``folder``. Works from any thread and process. First use reads or creates the key.

    Each method raises :class:`casemate.Unavailable` if the keys cannot be read or written, or are open to other users.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "keys.json"
        self._read: tuple[tuple[int, int] | None, _KeyPair] | None = None  # the file's version, and its keys

    def sign(self, data: bytes) -> tuple[str, bytes]:
        """Sign ``data``: the id of the current key, and the signature."""
        return self._keys().sign(data)

    def public_keys(self) -> list[PublicKey]:
        """The current key, then the retired keys, latest first."""
        kept = self._keys()
        retired = [read(one, ROTATION, ())[0] for one in reversed(kept.rotations)]
        return [kept.public, *(replace(PublicKey.from_pem(one["previous"]), retired=one["at"]) for one in retired)]

    def seal(self, payload_type: str, payload: bytes) -> Envelope:
        """Put ``payload`` in a signed envelope. It carries all rotations, which lead from each key to the next."""
        kept = self._keys()
        rotations = {ROTATIONS: list(kept.rotations)} if kept.rotations else {}
        return wrap(payload_type, payload, kept.sign) | rotations

    def rotate(self) -> PublicKey:
        """Replace the current key with a new one. This destroys the old private key."""
        with self._turn():
            old, new = self._load() or _make(), _make()
            at = datetime.now(UTC).isoformat(timespec="seconds")
            said = json.dumps({"at": at, "next": new.public.pem, "previous": old.public.pem}).encode()
            self._store(replace(new, rotations=(*old.rotations, wrap(ROTATION, said, old.sign, new.sign))))
        return new.public

    def _keys(self) -> _KeyPair:
        if self._read is None or self._read[0] != self._version():  # another process may have rotated meanwhile
            with self._turn():
                kept = self._load() or self._store(_make())
                self._read = self._version(), kept
        return self._read[1]

    def _version(self) -> tuple[int, int] | None:
        try:
            there = os.stat(self._path)
        except OSError:
            return None
        return there.st_ino, there.st_mtime_ns

    def _turn(self) -> AbstractContextManager[None]:
        """A lock between threads and processes."""
        return turn(open_lock(self._path.with_name("lock")))

    def _load(self) -> _KeyPair | None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        text = read_private(self._path, _MOST)
        if text is None:
            return None
        try:
            fields = json.loads(text)
            private = Ed25519PrivateKey.from_private_bytes(base64.b64decode(fields["private"], validate=True))
            return _KeyPair(private, PublicKey.of(private.public_key()), tuple(fields["rotations"]))
        except (ValueError, KeyError, TypeError):
            raise Unavailable(
                f"{str(self._path)!r} does not hold signing keys of casemate's",
                remediation="Bring the file back; without it a new key is made, which proves nothing older.",
            ) from None

    def _store(self, kept: _KeyPair) -> _KeyPair:
        fields = {"private": base64_of(kept.private.private_bytes_raw()), "rotations": kept.rotations}
        replace_private(self._path, json.dumps(fields).encode())
        return kept


def own_signer(environ: Mapping[str, str]) -> Signer:
    """The user's signer. Raises :class:`casemate.Unavailable` if the environment names no home folder."""
    return Signer(user_folder(environ, "state", "there is no folder for the signing key") / "signing")


def unseal(envelope: object, payload_type: str, trusted: Iterable[PublicKey]) -> tuple[Any, PublicKey]:
    """The JSON in an envelope, and its signing key: a ``trusted`` key, or a key that rotations link to a trusted key.

    Raises :class:`casemate.NotProved`.
    """
    rotations = envelope.get(ROTATIONS) if isinstance(envelope, dict) else None
    keys = follow(trusted, rotations if isinstance(rotations, list) else ())
    payload, signers = read(envelope, payload_type, keys.values())
    if not signers:
        raise NotProved(
            "no trusted key has signed it, or it was changed since",
            remediation="casemate keys export prints the signer's key; casemate verify takes it as --key.",
        )
    return payload, signers[0]


def follow(trusted: Iterable[PublicKey], rotations: Iterable[object]) -> dict[str, PublicKey]:
    """The ``trusted`` keys and all keys linked to them by rotations, by id. Ignores invalid rotations."""
    known, links = {key.id: key for key in trusted}, []
    for rotation in rotations:
        try:
            said = read(rotation, ROTATION, ())[0]
            pair = replace(PublicKey.from_pem(said["previous"]), retired=said["at"]), PublicKey.from_pem(said["next"])
            if len(read(rotation, ROTATION, pair)[1]) == len(pair):
                links.append(pair)
        except (NotProved, ValueError, KeyError, TypeError):
            continue
    for previous, following in (*links, *reversed(links)):  # first toward newer keys, then toward older keys
        if previous.id in known or following.id in known:
            known[previous.id] = previous
            known.setdefault(following.id, following)
    return known


def _make() -> _KeyPair:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    return _KeyPair(private, PublicKey.of(private.public_key()), ())
