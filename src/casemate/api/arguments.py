"""Checks of a sandbox's arguments, when it is made. Errors name the argument."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from casemate.errors import InvalidArgument
from casemate.execution.request import check_name, check_timeout
from casemate.model.limits import parse_size
from casemate.model.plan import WORKSPACE

if TYPE_CHECKING:
    from casemate.audit.log import AuditLog
    from casemate.evidence.keys import Signer
    from casemate.model.plan import Request
    from casemate.packages.names import Requirement
    from casemate.vault.store import VaultStore

_DEFAULT_CONCURRENCY = 16  # cells at once where the caller sets no number
_MAX_NAMESPACE = 200  # characters


def opened_store(vault: object, environ: Mapping[str, str]) -> VaultStore:
    """The store of secrets. Raises ``InvalidArgument`` and ``VaultUnavailable``."""
    from casemate.vault.vault import store_for

    return store_for(vault, environ)


def open_log(options: Mapping[str, Any]) -> AuditLog:
    """The record that a sandbox's options name. Raises ``RecordUnavailable`` and ``InvalidArgument``."""
    from casemate.audit.log import AuditLog, default_path
    from casemate.audit.retention import RowRetention

    audit, sync, anchors = options["audit"], options["audit_sync"], options["audit_anchors"]
    path = str(default_path(os.environ) if audit is None else checked_path("audit", audit))
    if sync not in ("grouped", "row"):
        raise InvalidArgument("audit_sync", f"{sync!r} is neither 'grouped' nor 'row'")
    if isinstance(anchors, str) or not all(isinstance(place, str) for place in anchors):
        raise InvalidArgument("audit_anchors", "must be a list of texts")
    max_age, max_size = check_timeout(options["audit_max_age"], "audit_max_age"), options["audit_max_size"]
    try:
        retention = RowRetention(max_age, None if max_size is None else parse_size(max_size))
    except ValueError as error:
        raise InvalidArgument("audit_max_size", str(error)) from None
    outside = None
    if anchors:
        from casemate.audit.outside import Outside

        outside = Outside(anchors, path)
    return AuditLog(path, signer=_own_signer, outside=outside, sync=sync, retention=retention)


def _own_signer() -> Signer:
    """The installation's keys, which are slow to load. Raises ``Unavailable`` if there is no place for them."""
    from casemate.evidence.keys import own_signer

    return own_signer(os.environ)


def check_approver(approve: object) -> None:
    """Raises ``InvalidArgument`` unless it is callable or None."""
    if approve is not None and not callable(approve):
        raise InvalidArgument("approve", f"{approve!r} is not callable")


def check_namespace(namespace: object) -> None:
    """Raises ``InvalidArgument`` for a name that the record cannot hold."""
    sound = isinstance(namespace, str) and not any("\ud800" <= character <= "\udfff" for character in namespace)
    if not sound or not 0 < len(str(namespace)) <= _MAX_NAMESPACE:
        raise InvalidArgument("namespace", f"{namespace!r} is not a name of 1 to {_MAX_NAMESPACE} characters")


def requirements_in(environment: object) -> tuple[Requirement, ...]:
    """The requirements of an environment: from a list, or from a file of them. Raises ``InvalidArgument``."""
    named = os.fspath(environment) if isinstance(environment, str | os.PathLike) else ""
    if named.partition(":")[0].endswith((".txt", ".toml")):
        from casemate.packages.requirement_files import read_file

        environment = read_file(named, "environment")
    if not isinstance(environment, list | tuple):
        return ()
    from casemate.packages.names import requirements

    return requirements(environment, "environment")


def check_preload(preload: object) -> None:
    """Raises ``InvalidArgument`` unless these are names of modules, or None."""
    if preload is None:
        return
    names = list(preload) if isinstance(preload, Sequence) and not isinstance(preload, str | bytes) else None
    if names is None or not all(isinstance(name, str) and _is_module_name(name) for name in names):
        raise InvalidArgument(
            "preload", f"{preload!r} is not a list of names of modules", remediation="Give a list such as ['numpy']."
        )


def _is_module_name(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def check_apart(mode: str, output_dir: Path | None, workspace: Path | None) -> None:
    """Raises ``InvalidArgument`` for an ``output_dir`` within the workspace. In direct mode a program could put a link
    where its artifacts are copied to. In review mode an artifact would get into the folder unreviewed."""
    if mode != "overlay" and output_dir and workspace and output_dir.resolve().is_relative_to(workspace.resolve()):
        kind = "written through" if mode == "direct" else "reviewed"
        raise InvalidArgument("output_dir", f"may not lie in a workspace that is {kind}; give another folder")


def checked_path(name: str, path: object) -> Path:
    """An absolute path, which need not exist. Raises ``InvalidArgument``."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path) or "\0" in str(os.fspath(path)):
        raise InvalidArgument(name, f"{path!r} is not a path")
    return Path(path).expanduser().absolute()


def checked_output_dir(folder: str | os.PathLike[str] | None) -> Path | None:
    """The folder for artifacts, which need not exist. Raises ``InvalidArgument``."""
    if folder is None:
        return None
    path = checked_path("output_dir", folder)
    if path.exists() and not path.is_dir():
        raise InvalidArgument("output_dir", f"{str(path)!r} is not a folder")
    return path


def checked_folder(name: str, folder: str | os.PathLike[str] | None) -> Path | None:
    """A folder that exists and is writable. Raises ``InvalidArgument``."""
    if folder is None:
        return None
    path = checked_path(name, folder)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InvalidArgument(name, f"{str(path)!r}: {error.strerror}; give a folder that exists") from None
    if not stat.S_ISDIR(mode):
        raise InvalidArgument(name, f"{str(path)!r} is not a folder")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise InvalidArgument(name, f"{str(path)!r} is not writable; give a folder that you may read and write")
    return path


def checked_concurrency(concurrency: int | None) -> int:
    """How many cells may run at once. Raises ``InvalidArgument``."""
    if concurrency is None:
        return _DEFAULT_CONCURRENCY
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= 10_000:
        raise InvalidArgument("concurrency", f"{concurrency!r} is not a whole number from 1 to 10000")
    return concurrency


def checked_cwd(cwd: str | None) -> str | None:
    """A folder of the workspace, as a cell sees it. Raises ``InvalidArgument``."""
    if cwd is None:
        return None
    if not isinstance(cwd, str):
        raise InvalidArgument("cwd", f"{cwd!r} is not a str")
    folder = PurePosixPath(WORKSPACE, cwd)
    if not folder.is_relative_to(WORKSPACE):
        raise InvalidArgument("cwd", f"{cwd!r} is not a folder of the workspace, {WORKSPACE}")
    if folder != PurePosixPath(WORKSPACE):
        check_name(str(folder.relative_to(WORKSPACE)), "cwd")
    return str(folder)


def check_files(request: Request, workspace: Path, mode: str) -> None:
    """Raises ``InvalidArgument`` for given files that would replace files of the caller."""
    if request.files and mode == "direct":
        raise InvalidArgument("files", "cannot be given with workspace_mode='direct'; write them into the folder")
    for name in request.files:
        check_name(name)
        if os.path.lexists(workspace / name):
            raise InvalidArgument("files", f"{name!r} exists in the workspace; give it another name")
        for parent in list(Path(name).parents)[:-1]:
            place = workspace / parent
            if os.path.lexists(place) and (place.is_symlink() or not place.is_dir()):
                raise InvalidArgument("files", f"{name!r}: {str(parent)!r} in the workspace is not a folder")
