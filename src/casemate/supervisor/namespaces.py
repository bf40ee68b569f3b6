"""How the supervisor enters its namespaces, as an ordinary user or as root, and the identities of its cells."""

from __future__ import annotations

import _socket
import errno
import os
import select
import stat

from casemate.supervisor import kernel, wire

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

# Uids and gids of the cells of root's supervisors: unused by any account, and never 0. Each supervisor's pid gives its
# range (pid_max bounds pids, proc(5)), so no two cells share what the kernel counts per user.
_CELL_IDS, _PIDS, _IDS_EACH = 0x6361_0000, 1 << 22, 1 << 9
_DONE = bytes(4)  # in place of an errno
_INOTIFY_PART = 4  # cells get a quarter of the user's limit


class SetupError(Exception):
    """The machine refuses something that cells need. Has the stage and the errno."""

    def __init__(self, stage: str, error: OSError) -> None:
        super().__init__(f"{stage}: {error}")
        self.stage = stage
        self.errno = error.errno or 0


def own_namespaces() -> tuple[str, range]:
    """Enter new mount and pid namespaces, and a user namespace if needed. The next child is pid 1.

    Returns the mode and the ids of cells in our namespace. The mode is ``"root"`` if the supervisor keeps its user
    namespace, ``"contained root"`` if it is root but may not (in a container), else ``"user"``, where the only id is
    its own. Raises :class:`SetupError`."""
    if os.geteuid() != 0:
        with setup_stage("id maps"):
            _enter_alone()
        return _unshare_mounts("user", range(1))
    if is_only_id():  # cells use the ordinary user's id that root maps to
        return _unshare_mounts("user", range(1))
    cells = cell_ids()
    if _can_unshare_as_root():
        return "root", cells
    with setup_stage("id maps"):
        _enter_mapped_from_outside(cells)
    return _unshare_mounts("contained root", cells)


def _unshare_mounts(mode: str, cells: range) -> tuple[str, range]:
    with setup_stage("namespaces"):
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWPID)
    return mode, cells


def is_only_id() -> bool:
    """Whether only root's id is mapped here and it is an ordinary user outside; cells then share it. Raises
    :class:`SetupError` if it is real root."""
    outside, mapped = _map_of_root()
    if mapped == 1 and outside == 0:
        raise SetupError("id maps", OSError(1, "only root itself is mapped here, and a cell must not be root"))
    return mapped == 1


def cell_ids() -> range:
    """The ids of cells of a root supervisor: mapped, unused by any account, and never 0."""
    mapped = _map_of_root()[1]
    if mapped < _CELL_IDS + _PIDS * _IDS_EACH:
        return range(mapped - 1, mapped)
    first = _CELL_IDS + os.getpid() * _IDS_EACH
    return range(first, first + _IDS_EACH)


def _map_of_root() -> tuple[int, int]:
    with open("/proc/self/uid_map") as file:
        return map_of_root(file.read())


def map_of_root(uid_map: str) -> tuple[int, int]:
    """What id 0 maps to outside, and how many ids from 0 on are mapped without a gap (user_namespaces(7)). Rootless
    Podman maps root in one line and the next ids in another."""
    outside = mapped = 0
    for begin, above, count in sorted(tuple(map(int, line.split())) for line in uid_map.splitlines()):
        if begin != mapped:
            break
        outside = above if begin == 0 else outside
        mapped += count
    return outside, mapped


def _can_unshare_as_root() -> bool:
    try:
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWPID)
    except PermissionError:  # root in a container without CAP_SYS_ADMIN
        return False
    return True


def _enter_alone() -> None:
    uid, gid = os.geteuid(), os.getegid()
    with setup_stage("user namespace"):
        kernel.unshare(kernel.CLONE_NEWUSER)
    write_maps("self", f"0 {uid} 1", f"0 {gid} 1", deny_setgroups=True)


def _enter_mapped_from_outside(cells: range) -> None:
    """Enter a user namespace with root and the cells' ids, so that no cell is root. A child outside writes the maps."""
    ready_read, ready_write = os.pipe()
    us, ids = os.getpid(), f"0 0 1\n{cells[0]} {cells[0]} {len(cells)}"
    mapper = os.fork()
    if mapper == 0:
        os.close(ready_write)
        if os.read(ready_read, 1):
            write_maps(us, ids, ids, deny_setgroups=False)
        os._exit(0)
    os.close(ready_read)
    try:
        with setup_stage("user namespace"):
            kernel.unshare(kernel.CLONE_NEWUSER)
        os.write(ready_write, b"x")
    finally:
        os.close(ready_write)
        _, status = os.waitpid(mapper, 0)
    if status:
        raise OSError(1, "the ids of the cells may not be mapped")


def write_maps(pid: int | str, uid_map: str, gid_map: str, *, deny_setgroups: bool) -> None:
    """Write the id maps of ``pid``'s user namespace (user_namespaces(7))."""
    if deny_setgroups:
        kernel.write_file(f"/proc/{pid}/setgroups", "deny")
    kernel.write_file(f"/proc/{pid}/gid_map", gid_map)
    kernel.write_file(f"/proc/{pid}/uid_map", uid_map)


def set_up_pid1() -> None:
    """As pid 1 of the new namespace: die with the parent, receive the host's mounts but send it none, mount /proc."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
    os.setsid()
    with setup_stage("mounts"):
        kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_SLAVE)
    with setup_stage("proc"):
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)


def bound_inotify() -> None:
    """Limit inotify here and in namespaces below to a part of our user's limit; this use counts against it too."""
    with setup_stage("inotify"):
        for name in ("instances", "watches"):
            with open(f"/proc/sys/fs/inotify/max_user_{name}") as file:
                most = int(file.read()) // _INOTIFY_PART
            kernel.write_file(f"/proc/sys/user/max_inotify_{name}", str(max(1, most)))


class setup_stage:  # noqa: N801 - reads as a statement
    """A block that turns ``OSError`` into a :class:`SetupError`, or another ``kind`` of error, with the stage."""

    def __init__(self, stage: str, kind: Callable[[str, OSError], Exception] = SetupError) -> None:
        self.stage = stage
        self.kind = kind

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            raise self.kind(self.stage, error) from error


def userns_with_map(uid_map: str, gid_map: str) -> int:
    """A user namespace with the given maps, as a descriptor, for an idmapped mount."""
    ready_read, ready_write = os.pipe()
    pid = kernel.clone(kernel.CLONE_NEWUSER)
    if pid == 0:
        os.close(ready_write)
        os.read(ready_read, 1)
        os._exit(0)
    try:
        write_maps(pid, uid_map, gid_map, deny_setgroups=False)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready_read)
        os.close(ready_write)
        os.waitpid(pid, 0)


def open_inside(namespace: int, kind: int, action: Callable[[], list[int]], subject: str) -> list[int]:
    """Run ``action`` in ``namespace`` of ``kind`` (``CLONE_NEW*``) and return the descriptors it opens. A child does
    it: an ordinary user's supervisor could not return. Raises ``OSError``, including on a timeout."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        _answer_from_inside(namespace, kind, action, theirs)
    theirs.close()
    poll = select.poll()
    poll.register(ours.fileno(), select.POLLIN)
    if not poll.poll(wire.ANSWER_WITHIN):
        os.kill(pid, 9)  # then reading gives the end of the socket
    try:
        answer, fds = kernel.receive_fds(ours, len(_DONE), wire.MAX_DESCRIPTORS)
    finally:
        ours.close()
        os.waitpid(pid, 0)
    if answer != _DONE:
        number = int.from_bytes(answer, "big") or errno.ETIMEDOUT
        raise OSError(number, os.strerror(number), subject)
    return fds


def _answer_from_inside(
    namespace: int, kind: int, action: Callable[[], list[int]], channel: _socket.socket
) -> NoReturn:
    try:
        kernel.setns(namespace, kind)
        kernel.send_fds(channel, _DONE, action())
    except BaseException as error:  # noqa: BLE001 - this process must end here, whatever happened
        number = getattr(error, "errno", None) or errno.EINVAL
        channel.send(number.to_bytes(len(_DONE), "big"))
    finally:
        os._exit(0)


class Identity:
    """A cell's user and group on the host."""

    def __init__(self, uid: int, gid: int, *, mapped: bool, release: Callable[[int], None] | None = None) -> None:
        self.uid = uid
        self.gid = gid
        self.mapped = mapped  # the supervisor is real root, and must give files to the cell's user
        self.namespaces: dict[tuple[int, int], int] = {}  # user namespaces of idmapped mounts, by the files' owner
        self.release = release  # called with the uid once unused; None if the identity is shared

    def __del__(self) -> None:
        if self.release:
            self.release(self.uid)

    @property
    def owner(self) -> tuple[int, int] | None:
        """The owner to give the cell's files to; None if they already have it."""
        return (self.uid, self.gid) if self.mapped else None

    def chown(self, path: str) -> None:
        """Make the cell's user own ``path``."""
        if self.mapped:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def chown_fd(self, fd: int) -> None:
        """Let the cell reopen ``fd`` (``>/dev/stderr``): make it own a pipe or an unnamed file."""
        status = os.fstat(fd)
        if self.mapped and (stat.S_ISFIFO(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 0)):
            os.fchown(fd, self.uid, self.gid)

    def set_real_ids(self, uid: int, gid: int) -> None:
        """Set our real ids if we are real root: without CAP_SYS_RESOURCE, prlimit(2) needs the target's ids."""
        if self.mapped:
            os.setresgid(gid, -1, -1)
            os.setresuid(uid, -1, -1)

    def idmap_namespace(self, owner: tuple[int, int]) -> int:
        """A user namespace that shows the files of ``owner`` as the cell's own (mount_setattr(2), idmapped mounts)."""
        if owner not in self.namespaces:
            maps = (f"{owner[0]} {self.uid} 1", f"{owner[1]} {self.gid} 1")
            self.namespaces[owner] = userns_with_map(*maps)
        return self.namespaces[owner]


class Identities:
    """Hands out the identities of a supervisor's cells: each a different one while ids last, then ``first``, which its
    zygotes have too. An id is free again once its :class:`Identity` is unreferenced."""

    def __init__(self, ids: range, *, mapped: bool) -> None:
        self.first = Identity(ids[0], ids[0], mapped=mapped)
        self._free = list(ids[:0:-1])
        self._namespaces: dict[int, dict[tuple[int, int], int]] = {}

    def take(self) -> Identity:
        if not self._free:
            return self.first
        uid = self._free.pop()
        identity = Identity(uid, uid, mapped=True, release=self._free.append)
        identity.namespaces = self._namespaces.setdefault(uid, identity.namespaces)
        return identity
