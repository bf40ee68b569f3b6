"""From what a caller gives as ``vault`` to a store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from casemate.errors import InvalidArgument, VaultUnavailable
from casemate.vault.store import EnvironmentStore, Layered, MemoryStore, Store

_METHODS = ("get", "set", "delete", "names")


def store_for(given: object, environ: Mapping[str, str]) -> Store:
    """The store: None is one in memory over the host's environment, a path an encrypted file, else a store itself.

    Raises ``InvalidArgument`` and ``VaultUnavailable``.
    """
    if given is None:
        return Layered(MemoryStore(), EnvironmentStore(environ))
    if isinstance(given, str | os.PathLike):
        from casemate.vault.encrypted_file import EncryptedFile

        path = os.fspath(given)
        if not isinstance(path, str) or not path or "\0" in path:
            raise InvalidArgument("vault", f"{given!r} is not a path")
        store = EncryptedFile(Path(path).expanduser(), environ=environ)
        store.names("")  # what is wrong with it is known now, not when a program needs it
        return store
    if all(callable(getattr(given, method, None)) for method in _METHODS):
        return given  # type: ignore[return-value]  # as far as can be told
    raise InvalidArgument("vault", f"{type(given).__name__} is neither a path nor a store with {', '.join(_METHODS)}")


def users_store(environ: Mapping[str, str]) -> Store:
    """The user's own secrets, over those of the host's environment. Raises ``VaultUnavailable``."""
    from casemate.vault.encrypted_file import EncryptedFile

    path, variables = default_path(environ), EnvironmentStore(environ)
    try:
        return Layered(EncryptedFile(path, environ=environ), variables)
    except VaultUnavailable:
        if os.path.lexists(path):
            raise
        return variables  # there is none, and the library for one is missing


def default_path(environ: Mapping[str, str]) -> Path:
    """Where the command line keeps secrets: in the user's state folder.

    Raises ``VaultUnavailable`` when the environment names neither that folder nor a home.
    """
    for variable, below in (("XDG_STATE_HOME", ()), ("HOME", (".local", "state"))):
        folder = environ.get(variable, "")
        if os.path.isabs(folder):
            return Path(folder, *below, "casemate", "vault", "secrets")
    raise VaultUnavailable(
        "the vault has no place: neither XDG_STATE_HOME nor HOME is set to an absolute path",
        reason="file",
        remediation="Set HOME.",
    )
