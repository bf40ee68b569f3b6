"""Explains why a machine refuses the native wall, or why a cell could not be made, and what would help."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

from casemate.errors import CasemateError, Fault, InvalidArgument, SandboxClosed, Unavailable, WallUnavailable
from casemate.model.plan import GUEST

_RIGHTS_OF_ROOT = {1: "DAC_OVERRIDE", 6: "SETGID", 7: "SETUID", 8: "SETPCAP"}  # capabilities(7)
_OLDEST_KERNEL = (5, 14)  # RLIMIT_NPROC counted per user namespace, mount_setattr, unprivileged overlay
# A cell needs all of them; an engine ignores options for features that its host lacks.
_ENGINE_OPTIONS = (
    "Start the container with all of: --security-opt seccomp=seccomp.json --security-opt systempaths=unconfined "
    "--security-opt apparmor=unconfined. seccomp.json is packaging/seccomp.json of casemate's repository, and in its "
    "image /usr/local/lib/casemate/seccomp.json. docs/how-to/containers.md says what each permits, and how Kubernetes "
    "calls them."
)


class Facts(NamedTuple):
    """What is known of this machine; None where it cannot be read."""

    system: str
    kernel: tuple[int, int]
    in_container: bool
    seccomp_filtered: bool
    max_user_namespaces: int | None
    unprivileged_userns_clone: int | None
    apparmor_restricts_userns: int | None
    wsl1: bool = False
    missing_rights: tuple[str, ...] = ()  # capabilities that root needs and lacks
    in_cell: bool = False  # whether this process seems to run in a cell


def _refusal(reason: str, message: str, remedy: str) -> WallUnavailable:
    return WallUnavailable(message, reason=reason, remediation=remedy)


def facts() -> Facts:
    """Gather what decides whether this machine can have the wall."""
    release = os.uname().release if hasattr(os, "uname") else ""
    filtered = "\nSeccomp:\t2" in _text("/proc/self/status")
    return Facts(
        system=sys.platform,
        kernel=_kernel_version(release),
        in_container=os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"),
        seccomp_filtered=filtered,
        max_user_namespaces=_number("/proc/sys/user/max_user_namespaces"),
        unprivileged_userns_clone=_number("/proc/sys/kernel/unprivileged_userns_clone"),
        apparmor_restricts_userns=_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        wsl1="Microsoft" in release and "microsoft-standard" not in release,
        missing_rights=rights_not_in(_text("/proc/self/status")) if os.geteuid() == 0 else (),
        in_cell=filtered and ("CASEMATE_OUTPUT" in os.environ or os.path.exists(GUEST)),
    )


def rights_not_in(status: str) -> tuple[str, ...]:
    """Return the capabilities that root needs and that ``status``, of ``/proc/PID/status``, lacks."""
    effective = int(status.partition("\nCapEff:\t")[2][:16] or "0", 16)
    return tuple(name for number, name in _RIGHTS_OF_ROOT.items() if not effective >> number & 1)


def too_old_or_foreign(known: Facts) -> WallUnavailable | None:
    """Return the refusal if the system or its kernel can never hold a cell. Tries nothing."""
    if known.system == "win32":
        return _refusal(
            "windows",
            "casemate does not run on Windows itself.",
            "Run it inside WSL2: wsl --install, then pip install casemate there.",
        )
    if known.system != "linux":
        return _refusal(
            "not_linux",
            f"The native wall needs Linux; this is {known.system}.",
            "Run casemate on Linux, or in a Linux virtual machine.",
        )
    if known.wsl1:
        return _refusal(
            "wsl1",
            "WSL1 has no Linux kernel, so it cannot hold a cell.",
            "Convert the distribution: wsl --set-version <name> 2",
        )
    if known.kernel < _OLDEST_KERNEL:
        version = ".".join(map(str, known.kernel))
        return _refusal(
            "old_kernel",
            f"The kernel is {version}; the native wall needs 5.14 or newer.",
            "Update the kernel.",
        )
    if known.in_cell:
        return _refusal(
            "in_a_cell",
            "This process already runs in a cell of casemate, and a cell cannot make others.",
            "Start casemate outside. A program in a cell can run other programs as its children.",
        )
    if known.missing_rights:
        added = " ".join(f"--cap-add {name}" for name in known.missing_rights)
        return _refusal(
            "root_without_capabilities",
            f"This is root without {', '.join(known.missing_rights)}, so its cells cannot run as other users.",
            "Run casemate as an ordinary user, who needs no capability (--user 10001:10001), or give root these: "
            f"{added}",
        )
    return None


def explain(stage: str, number: int, detail: str, known: Facts) -> WallUnavailable:
    """Explain a failure at ``stage`` with errno ``number`` on this machine."""
    if stage in ("proc", "masks"):
        return _refusal(
            "masked_proc",
            f"A fresh /proc may not be mounted here, because this machine's own /proc is masked ({detail}).",
            _ENGINE_OPTIONS,
        )
    if (stage == "user namespace" and number == errno.ENOSPC) or known.max_user_namespaces == 0:
        return _refusal(
            "userns_limit",
            "User namespaces are switched off: user.max_user_namespaces is 0 or used up.",
            "As root: sysctl -w user.max_user_namespaces=15000",
        )
    if known.unprivileged_userns_clone == 0:
        return _refusal(
            "userns_disabled",
            "Ordinary users may not make user namespaces: kernel.unprivileged_userns_clone is 0.",
            "As root: sysctl -w kernel.unprivileged_userns_clone=1",
        )
    is_filtered = known.seccomp_filtered and number in (errno.EPERM, errno.ENOSYS)
    if known.in_container and (is_filtered or number == errno.EACCES):
        return _explain_confinement("container_seccomp", detail)
    if known.apparmor_restricts_userns == 1 and number in (errno.EPERM, errno.EACCES):
        return _refusal(
            "apparmor",
            "AppArmor on this Ubuntu removes all rights in user namespaces of programs without a profile.",
            f"As root{' of the host' * known.in_container}, allow this interpreter: "
            "write /etc/apparmor.d/casemate with\n"
            f'  profile casemate "{os.path.realpath(sys.executable)}" flags=(unconfined) {{ userns, }}\n'
            "then: apparmor_parser -r /etc/apparmor.d/casemate",
        )
    if is_filtered:
        return _explain_confinement("seccomp", detail)
    return _refusal(
        "refused",
        f"The kernel refused a step that the native wall needs: {detail}",
        "casemate doctor shows what this machine offers; docs/explanation/walls.md lists known reasons.",
    )


def _explain_confinement(reason: str, detail: str) -> WallUnavailable:
    message = f"A seccomp filter or AppArmor profile around this process forbids namespaces or mounts ({detail})"
    return _refusal(reason, f"{message}; Docker's default ones do.", _ENGINE_OPTIONS)


def _kernel_version(release: str) -> tuple[int, int]:
    parts = release.replace("-", ".").split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        return (0, 0)


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(65536)
    except OSError:
        return ""


def _number(path: str) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


_CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)  # the folder has changed meanwhile


@contextlib.contextmanager
def explain_os_errors() -> Iterator[None]:
    """Turn an ``OSError`` before a cell has started into an error for the caller."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        remedy = "If that is expected, try again."
        raise InvalidArgument("workspace", f"{error.filename!r} no longer exists", remediation=remedy) from None
    except OSError as error:
        raise Unavailable(
            f"a run could not be prepared: {error.strerror}",
            remediation="If too many files are open, raise the limit (ulimit -n) or lower concurrency.",
        ) from None


def why_unlaunched(stage: str, number: int, detail: str) -> CasemateError:
    """Return the caller's error for a cell that could not be made: the argument at fault, and what to do.

    The supervisor reports the ``stage`` that failed, the errno and the ``detail``.
    """
    if stage in ("files", "program", "scratch") and number in (errno.ENOSPC, errno.EDQUOT):
        return InvalidArgument("files", f"the files do not fit into limits.disk and limits.inodes ({detail})")
    if stage == "files":
        return InvalidArgument("files", f"could not be put into the workspace: {detail}")
    if stage == "workspace":
        return _workspace(number, detail)
    if stage == "root":
        return Unavailable(f"a path that the cell must read cannot be shown to it: {detail}")
    if stage == "descriptors" or number in (errno.EMFILE, errno.ENFILE):
        return Unavailable(
            f"there are too few descriptors for this run: {detail}",
            remediation="Raise the limit on open files (ulimit -n), lower concurrency, or wait for other runs to end.",
        )
    if stage == "environment":
        return InvalidArgument("environment", f"cannot be shown to a cell: {detail}")
    if stage == "exec":
        return InvalidArgument("environment", f"its interpreter cannot be started in the cell: {detail}")
    refusal = explain(stage, number, detail, facts())
    return refusal if refusal.reason != "refused" else Fault(f"a cell could not be made: {stage}: {detail}")


def _workspace(number: int, detail: str) -> InvalidArgument:
    if number == errno.EINVAL:
        remedy = "Use a folder on ext4, xfs, btrfs or tmpfs, a folder owned by an ordinary user, or no workspace."
        return InvalidArgument(
            "workspace",
            f"the file system of this folder cannot be layered or mapped here ({detail})",
            remediation=remedy,
        )
    remedy = "It changed while the run was being prepared; try again." if number in _CHANGED else ""
    if number == errno.EOPNOTSUPP:
        remedy = "Use a copy: wrap --mode overlay, run --workspace-mode overlay, workspace_mode='overlay'."
    return InvalidArgument("workspace", f"cannot be used: {detail}", remediation=remedy)


def why_lost(words: str, *, closing: bool) -> CasemateError:
    """Return the error for everything that ran under a supervisor that has ended; ``words``: the end of its stderr."""
    if words:
        return Fault(f"the supervisor failed: {words}")
    if closing:
        return SandboxClosed("the sandbox was closed while this ran")
    return Fault("the supervisor was killed while this ran; the next run starts a new one")
