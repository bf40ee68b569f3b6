"""What a cell that could not be made means for the caller: whose fault it is, which argument's, and what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING

from casemate.errors import CasemateError, Fault, InvalidArgument, SandboxClosed, Unavailable
from casemate.walls.native import refusal

if TYPE_CHECKING:
    from casemate.walls.native.running import Unlaunched

_CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)  # what was there a moment before is not


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """What goes wrong before anything has started, as what it means for the caller."""
    try:
        yield
    except OSError as error:
        raise _why_unprepared(error) from None


def _why_unprepared(error: OSError) -> CasemateError:
    """What an error of this process, before anything started, means for the caller."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        remedy = "Where that is as it should be, try again."
        return InvalidArgument("workspace", f"{error.filename!r} is no longer there", remediation=remedy)
    return Unavailable(
        f"a run could not be prepared: {error.strerror}",
        remediation="When too many files are open: raise the limit (ulimit -n), or lower concurrency.",
    )


def why_unlaunched(error: Unlaunched) -> CasemateError:
    """What a cell that could not be made means for the caller: whose fault, which argument, what to do."""
    if error.stage in ("files", "program", "scratch") and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InvalidArgument("files", f"they do not fit into limits.disk and limits.inodes ({error.detail})")
    if error.stage == "files":
        return InvalidArgument("files", f"could not be put into the workspace: {error.detail}")
    if error.stage == "workspace":
        return _workspace(error)
    if error.stage == "root":
        return Unavailable(f"what the cell needs to read cannot be shown to it: {error.detail}")
    if error.stage == "descriptors" or error.errno in (errno.EMFILE, errno.ENFILE):
        return Unavailable(
            f"there are too few descriptors for this run: {error.detail}",
            remediation="Raise the limit on open files (ulimit -n), lower concurrency, or wait for other runs to end.",
        )
    if error.stage == "environment":
        return InvalidArgument("environment", f"cannot be shown to a cell: {error.detail}")
    if error.stage == "exec":
        return InvalidArgument("environment", f"its interpreter cannot be started in the cell: {error.detail}")
    explained = refusal.explain(error.stage, error.errno, error.detail, refusal.facts())
    return explained.error() if explained.reason != "refused" else Fault(f"a cell could not be made: {error}")


def _workspace(error: Unlaunched) -> InvalidArgument:
    if error.errno == errno.EINVAL:
        remedy = "Use a folder on ext4, xfs, btrfs or tmpfs, a folder that an ordinary user owns, or no workspace."
        return InvalidArgument(
            "workspace",
            f"the file system of this folder cannot be layered or mapped here ({error.detail})",
            remediation=remedy,
        )
    remedy = "It was changed while the run was prepared; try again." if error.errno in _CHANGED else ""
    return InvalidArgument("workspace", f"cannot be used: {error.detail}", remediation=remedy)


def why_lost(words: str, *, closing: bool) -> CasemateError:
    """What the end of a supervisor means for whatever ran under it; ``words``: its last."""
    if words:
        return Fault(f"the supervisor failed: {words}")
    if closing:
        return SandboxClosed("the sandbox was closed while this ran")
    return Fault("the supervisor was killed while this ran; the next run starts a new one")
