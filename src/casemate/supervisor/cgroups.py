"""Memory and cpu limits of a whole cell: cgroup v2 if delegated, v1 as root, otherwise none.

Sources: the kernel's admin-guide/cgroup-v2 and cgroup-v1/memory. Every setting is read back; one that does not read
back is not offered. Directories are held by descriptor, because the supervisor later mounts its stage over /sys.
"""

from __future__ import annotations

import os
import time

from casemate.supervisor import kernel

_PERIOD = 100_000  # microseconds; the kernel's default period for cpu bandwidth
_PREFIX = "casemate-"
_REMOVE_TRIES, _REMOVE_PAUSE = 50, 0.02  # one second in all: the kernel may hold a dead cell's group for a moment


class Controller:
    """A cgroup hierarchy in which each cell gets a group."""

    def __init__(self, name: str, version: int, parent: int, group: str) -> None:
        self.name = name
        self.version = version
        self.parent = parent  # descriptor of our directory's parent
        self.group = group  # our directory's name in it
        self.fd = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)


class Cgroups:
    """The usable hierarchies; ``memory`` and ``cpu`` are None if there is none."""

    def __init__(self, memory: Controller | None, cpu: Controller | None) -> None:
        self.memory = memory
        self.cpu = cpu

    def create(self, name: str) -> CellCgroup | None:
        """A group for one cell, still without limits; None without a hierarchy."""
        return CellCgroup(self, name) if self.memory or self.cpu else None

    def remove(self) -> None:
        """Remove our directories and those of cells that died with the supervisor. Gives up after a second each."""
        for controller in (self.memory, self.cpu):
            if controller is not None:
                for _ in range(_REMOVE_TRIES):
                    if _remove_tree(controller.group, controller.parent):
                        break
                    time.sleep(_REMOVE_PAUSE)

    def describe(self) -> dict[str, str | None]:
        """The cgroup version used for memory and for cpu, or None, for the report."""
        return {
            "memory": f"cgroup v{self.memory.version}" if self.memory else None,
            "cpu": f"cgroup v{self.cpu.version}" if self.cpu else None,
        }


class CellCgroup:
    def __init__(self, cgroups: Cgroups, name: str) -> None:
        self.name = name
        self._cgroups = cgroups
        self._folders: list[tuple[Controller, int]] = []
        self._memory: int | None = None
        self.oom_fd: int | None = None  # readable when the cell reaches the memory limit
        try:
            if cgroups.memory:
                self._memory = self._folder(cgroups.memory)
            if cgroups.cpu:
                self._folder(cgroups.cpu)
        except BaseException:
            self.remove()
            raise

    def limit(self, *, memory: int, cpus: float) -> None:
        """Limit the cell to ``memory`` bytes, including its tmpfs pages, and to ``cpus`` cores."""
        if self._cgroups.memory:
            self._limit_memory(self._cgroups.memory.version, memory)
        if self._cgroups.cpu:
            self._limit_cpu(self._folder(self._cgroups.cpu), self._cgroups.cpu.version, cpus)

    def _folder(self, controller: Controller) -> int:
        for known, fd in self._folders:
            if known.fd == controller.fd:
                return fd
        os.mkdir(self.name, 0o755, dir_fd=controller.fd)
        fd = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=controller.fd)
        self._folders.append((controller, fd))
        return fd

    def _limit_memory(self, version: int, memory: int) -> None:
        assert self._memory is not None
        if version == 2:
            kernel.write_file("memory.max", str(memory), self._memory)
            kernel.write_file("memory.oom.group", "1", self._memory)
            _try_write(self._memory, "memory.swap.max", "0")
            return
        _try_write(self._memory, "memory.memsw.limit_in_bytes", "-1")  # it must never be below the next one
        kernel.write_file("memory.limit_in_bytes", str(memory), self._memory)
        _try_write(self._memory, "memory.kmem.tcp.limit_in_bytes", str(memory))  # v1 counts these buffers separately
        _try_write(self._memory, "memory.memsw.limit_in_bytes", str(memory))
        if self.oom_fd is not None:
            return
        self.oom_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        control = os.open("memory.oom_control", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._memory)
        try:
            kernel.write_file("cgroup.event_control", f"{self.oom_fd} {control}", self._memory)
        finally:
            os.close(control)

    def _limit_cpu(self, fd: int, version: int, cpus: float) -> None:
        quota = max(1000, int(cpus * _PERIOD))
        if version == 2:
            kernel.write_file("cpu.max", f"{quota} {_PERIOD}", fd)
        else:
            kernel.write_file("cpu.cfs_quota_us", str(quota), fd)

    def lift_cpu_limit(self) -> None:
        """Lift the cpu limit: a cell that used up its quota could not even exit before the next period."""
        for controller, fd in self._folders:
            if controller is self._cgroups.cpu:
                name, value = ("cpu.max", f"max {_PERIOD}") if controller.version == 2 else ("cpu.cfs_quota_us", "-1")
                _try_write(fd, name, value)

    def open_procs(self) -> list[int]:
        """A descriptor for each group; a process that writes ``0`` to it enters. The caller closes them."""
        flags = os.O_WRONLY | os.O_CLOEXEC
        return [os.open("cgroup.procs", flags, dir_fd=fd) for _, fd in self._folders]

    @property
    def counts_memory(self) -> bool:
        return self._memory is not None

    def memory_in_use(self, files: int) -> int:
        """Bytes of private memory, shared memory beyond the tmpfs's ``files``, and socket buffers. No page cache."""
        if self._memory is None:
            return 0
        private, shared = 0, 0
        sockets = int(_read(self._memory, "memory.kmem.tcp.usage_in_bytes") or 0)  # TCP; v1 counts it separately
        for line in _read(self._memory, "memory.stat").splitlines():
            key, _, value = line.partition(" ")
            if key in ("anon", "total_rss"):
                private = int(value)
            elif key in ("shmem", "total_shmem"):
                shared = int(value)
            elif key == "sock":
                sockets = int(value)
        return private + max(0, shared - files) + sockets

    def out_of_memory(self) -> bool:
        """Whether the kernel killed something in the cell at the memory limit."""
        if self._memory is None:
            return False
        for name in ("memory.events", "memory.oom_control"):
            for line in _read(self._memory, name).splitlines():
                key, _, count = line.partition(" ")
                if key == "oom_kill" and int(count) > 0:
                    return True
        return False

    def remove(self) -> bool:
        """Remove the groups of a dead cell. Returns False if the kernel still holds one. Call again in that case."""
        if self.oom_fd is not None:
            os.close(self.oom_fd)
            self.oom_fd = None
        remaining = []
        for controller, fd in self._folders:
            try:
                os.rmdir(self.name, dir_fd=controller.fd)
                os.close(fd)
            except FileNotFoundError:
                os.close(fd)
            except OSError:
                remaining.append((controller, fd))
        self._folders = remaining
        return not remaining


def find(owner: str) -> Cgroups:
    """The usable hierarchies, each with a new directory named for ``owner``."""
    group = f"{_PREFIX}{owner}-{_pid_namespace()}"
    unified, legacy = _mounts()
    memory = cpu = None
    if unified:
        memory, cpu = _open_unified(*unified, group)
    if memory is None and "memory" in legacy:
        memory = _open_legacy("memory", legacy["memory"], group)
    if cpu is None and "cpu" in legacy:
        cpu = _open_legacy("cpu", legacy["cpu"], group)
    return Cgroups(memory, cpu)


def _mounts() -> tuple[tuple[str, str] | None, dict[str, str]]:
    """The mount point of v2 and our group's folder in it, and our group's folder for each v1 controller."""
    own = {}
    for line in _read_path("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            own[controller] = path
    unified, legacy = None, {}
    for line in _read_path("/proc/self/mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        root, where = fields.split(" ")[3:5]
        kind, _, options = rest.split(" ", 2)
        if kind == "cgroup2":
            unified = (where, _below(where, root, own.get("", "/")))
        elif kind == "cgroup":
            for controller in ("memory", "cpu"):
                if controller in options.split(","):
                    legacy[controller] = _below(where, root, own.get(controller, "/"))
    return unified, legacy


def _below(where: str, root: str, path: str) -> str:
    inside = path.removeprefix(root.rstrip("/")) if path.startswith(root) else "/"
    return (where + inside).rstrip("/")


def _open_unified(mount: str, own: str, group: str) -> tuple[Controller | None, Controller | None]:
    """Our directory in the nearest ancestor group that delegates its memory and cpu controllers."""
    folder = own
    while folder.startswith(mount):
        enabled = _read_path(f"{folder}/cgroup.subtree_control").split()
        if "memory" in enabled:
            parent = _own_folder(folder, group)
            if parent is not None:
                ours = f"{folder}/{group}"
                enabled_here = [name for name in ("memory", "cpu") if _enable(ours, name)]
                unified = Controller("unified", 2, parent, group) if enabled_here else None
                if unified is None:
                    _remove_tree(group, parent)
                return (unified if "memory" in enabled_here else None, unified if "cpu" in enabled_here else None)
        if folder == mount:
            break
        folder = os.path.dirname(folder)
    return None, None


def _enable(folder: str, controller: str) -> bool:
    try:
        with open(f"{folder}/cgroup.subtree_control", "w") as file:
            file.write(f"+{controller}")
    except OSError:
        return False
    return controller in _read_path(f"{folder}/cgroup.subtree_control").split()


def _open_legacy(controller: str, folder: str, group: str) -> Controller | None:
    parent = _own_folder(folder, group)
    return None if parent is None else Controller(controller, 1, parent, group)


def _own_folder(folder: str, group: str) -> int | None:
    """Make our directory in ``folder``. Returns the descriptor of ``folder``, or None without permission."""
    try:
        parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.mkdir(group, 0o755, dir_fd=parent)
    except OSError:
        os.close(parent)
        return None
    _remove_orphans(parent)
    return parent


def _remove_tree(name: str, parent: int) -> bool:
    """Remove one of our directories with its cells' directories. Returns whether it is gone."""
    try:
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return True
    try:
        for cell in os.listdir(folder):
            if cell.isdigit():
                os.rmdir(cell, dir_fd=folder)
        os.rmdir(name, dir_fd=parent)
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def _remove_orphans(parent: int) -> None:
    """Remove the directories of supervisors that died together with their parent, if they ran in this pid namespace."""
    namespace = _pid_namespace()
    for name in os.listdir(parent):
        owner = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and name.endswith(f"-{namespace}") and owner.isdigit():
            try:
                os.kill(int(owner), 0)
            except ProcessLookupError:
                _remove_tree(name, parent)
            except PermissionError:
                pass


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _try_write(folder: int, name: str, text: str) -> None:
    try:
        kernel.write_file(name, text, folder)
    except OSError:
        pass  # many kernels have no swap accounting


def _read(folder: int, name: str) -> str:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return ""
    try:
        return os.read(fd, 4096).decode()
    finally:
        os.close(fd)


def _read_path(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
