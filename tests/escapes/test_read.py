"""Nothing of the host, of its processes or of another cell can be read."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.escapes import host
from tests.escapes.cells import Attack, attack, bare, held, told, without
from tests.support.waiting import until

from casemate import sync
from casemate.model.events import Output
from casemate.model.plan import Bind


def _env(canaries: host.Canaries, victim: host.Victim, *, scan: bool) -> dict[str, str]:
    return {
        "PATHS": ":".join(map(str, canaries.paths.values())),
        "DIGESTS": "/etc/group:/etc/shadow",
        "PIDS": str(victim.pid),
        "SCAN": "1" if scan else "",
        "NEEDLE": "canary-file",
    }


def _digest(path: str) -> str:
    return f"sha256:{hashlib.sha256(Path(path).read_bytes()).hexdigest()}"


@pytest.fixture(scope="module")
def inherited(canaries: host.Canaries, scratch: Path) -> str:
    """A secret in a descriptor of the host's that its children inherit, and in no file any more."""
    secret = host.secret()
    (scratch / "inherited").write_text(secret)
    descriptor = os.open(scratch / "inherited", os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    (scratch / "inherited").unlink()
    return secret


def test_secrets_of_the_host_stay_unread(
    canaries: host.Canaries, inherited: str, victim: host.Victim, sandbox: sync.Sandbox, language: str
) -> None:
    """Files by many names, other processes, inherited descriptors, the environment; then everything in sight."""
    seen = told(attack(sandbox, Attack("read", language), _env(canaries, victim, scan=True)))
    everything = {**canaries.secrets, **victim.secrets, "inherited": inherited}
    assert [place for place, secret in everything.items() if secret in seen] == []
    if os.geteuid() == 0:
        assert _digest("/etc/shadow") not in seen


def test_the_users_of_this_machine_stay_unread(sandbox: sync.Sandbox, language: str) -> None:
    env = {"PATHS": "", "DIGESTS": "/etc/group", "PIDS": "", "SCAN": "", "NEEDLE": "canary-file"}
    assert _digest("/etc/group") not in told(attack(sandbox, Attack("read", language), env))


def test_control_bare_the_same_attack_reads_them_all(
    canaries: host.Canaries, inherited: str, victim: host.Victim, tmp_path: Path, language: str
) -> None:
    env = {**_env(canaries, victim, scan=False), "ESCAPES_SECRET": canaries.secrets["environment"]}
    seen = bare(Attack("read", language), env, tmp_path / "bare", close_fds=False).text
    expected = {**canaries.secrets, **victim.secrets, "inherited": inherited}
    if language != "python":
        del expected["cwd"], expected["memory"]  # read by Python alone: by globbing its cwd and by its descriptor
        expected["cwd"] = canaries.secrets["cwd"]
    assert [place for place, secret in expected.items() if secret not in seen] == []
    assert _digest("/etc/group") in seen
    if os.geteuid() == 0:
        assert _digest("/etc/shadow") in seen


def test_the_record_and_the_state_of_casemate_stay_unread(sandbox: sync.Sandbox, scratch: Path) -> None:
    """An earlier program, its path known, is in the audit database; a cell has neither that file nor the cache."""
    secret = host.secret()
    assert sandbox.run(f"'{secret}'").ok
    records = [path for path in scratch.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert records, "the control: the record holds the program"
    cache = Path.home() / ".cache/casemate"
    env = {"PATHS": ":".join(map(str, [*records, cache / f"selftest-{os.geteuid()}.json"])), "DIGESTS": ""}
    seen = told(attack(sandbox, Attack("read"), {**env, "PIDS": "", "SCAN": "1", "NEEDLE": "audit.db"}))
    assert secret not in seen


HOLDER = """
import os, socket, tempfile, time
left = []
for place in (os.getcwd(), tempfile.gettempdir(), os.environ["HOME"], "/dev/shm"):
    try:
        open(f"{place}/canary-file-other", "w").write(os.environ["OTHER"])
        left.append(f"{place}/canary-file-other")
    except PermissionError:
        continue  # of a wall that has no shared memory
tcp = socket.create_server(("127.0.0.1", 47123))
listeners = 1
try:
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\\0" + os.environ["ABSTRACT"])
    abstract.listen()
    listeners += 1
except PermissionError:
    pass  # of a wall that has no abstract names
print("ready", ":".join(left), listeners, flush=True)
time.sleep(60)
"""
SEARCHER = """
import os, socket
from tests.escapes.payloads.attempts import attempt, finish
def meet(family, address):
    with socket.socket(family) as client:
        client.connect(address)
        return b"canary-" + b"0" * 32
attempt("abstract", lambda: meet(socket.AF_UNIX, "\\0" + os.environ["ABSTRACT"]))
attempt("tcp", lambda: meet(socket.AF_INET, ("127.0.0.1", 47123)))
"""


def test_another_cells_files_sockets_and_environment_stay_unread(
    canaries: host.Canaries, sandbox: sync.Sandbox
) -> None:
    other = host.secret()
    env = {"OTHER": other, "ABSTRACT": "escapes-other"}
    events = sandbox.stream(HOLDER, env=env, arguments=(other,))
    try:
        while not (isinstance(event := next(iter(events)), Output) and "ready" in event.text):
            pass
        search = {"PATHS": event.text.split()[1], "ABSTRACT": env["ABSTRACT"]}
        search |= {"DIGESTS": "", "PIDS": "", "SCAN": "1", "NEEDLE": "canary-file"}
        seen = told(attack(sandbox, Attack("read"), search))
        assert other not in seen
        met = attack(sandbox, Attack("search", source=SEARCHER + "finish()"), search)
        assert "canary-" not in met.stdout
    finally:
        events.close()  # type: ignore[attr-defined]


LEAVER = """
import os, tempfile
from tests.escapes.payloads.attempts import attempt, finish
def leave(folder):
    with open(f"{folder}/canary-file-left", "w") as file:
        file.write(os.environ["LEFT"])
places = ["/", "/dev", os.getcwd(), os.path.abspath("output"), os.environ["HOME"], tempfile.gettempdir()]
for root in ("", "/dev", "/proc"):
    attempt(f"list {root}", lambda: places.extend(f"{root}/{name}" for name in os.listdir(root or "/")))
for place in {os.path.realpath(one) for one in places}:
    if os.path.isdir(place) and attempt(place, lambda: leave(place)):
        print("left in", place)
finish()
"""
FINDER = """
import os
from tests.escapes.payloads.attempts import attempt, finish, read
for place in os.environ["PLACES"].split(":"):
    attempt(place, lambda: read(f"{place}/canary-file-left"))
for root in ("/", "/dev", "/proc", "/workspace", "/tmp"):
    names = []
    attempt(f"list {root}", lambda: names.extend(os.listdir(root)))
    for name in names:
        attempt(f"{root}/{name}", lambda: read(f"{root}/{name}/canary-file-left"))
finish()
"""


@pytest.mark.parametrize("missing", [(), ("landlock",), ("seccomp", "capabilities"), ("mounts",)])
def test_what_a_dead_cell_left_anywhere_is_not_found_by_the_next(
    sandbox: sync.Sandbox, missing: tuple[str, ...]
) -> None:
    left = host.secret()
    with without(*missing):
        execution = attack(sandbox, Attack("leave", source=LEAVER), {"LEFT": left})
        places = re.findall(r"^left in (.+)$", execution.stdout, re.MULTILINE)
        assert len(places) >= 3, "the control: it was left where a cell may write"
        assert left not in told(attack(sandbox, Attack("find", source=FINDER), {"PLACES": ":".join(places)}))


def test_control_inside_one_cell_the_same_search_finds_them(sandbox: sync.Sandbox) -> None:
    """Holder and searcher as two processes of one cell."""
    other = host.secret()
    code = f"""
import os, subprocess, sys
holder = subprocess.Popen([sys.executable, "-c", {HOLDER!r}], stdout=subprocess.PIPE)
_, left, listeners = holder.stdout.readline().decode().split()
left = left.split(":")
{SEARCHER}
from tests.escapes.payloads.attempts import read
for path in left:
    attempt(path, lambda: read(path))
print("left at", len(left), "listens at", listeners)
holder.kill()
finish()
"""
    seen = attack(sandbox, Attack("both", source=code), {"OTHER": other, "ABSTRACT": "escapes-own"}).stdout
    assert seen.count(other) == int(seen.split("left at ")[1].split()[0]) >= 3
    assert seen.count("canary-" + "0" * 32) == int(seen.split("listens at ")[1].split()[0])


# ---------------------------------------------------------------------------------------------- one layer at a time


def test_landlock_alone_keeps_unread_what_a_wrong_mount_shows(
    canaries: host.Canaries, victim: host.Victim, sandbox: sync.Sandbox
) -> None:
    """A bind of the home folder by mistake: read without Landlock, and not with it."""
    shown = canaries.paths["home"]
    leak = (Bind(str(shown.parent), "/leak"),)
    env = {**_env(canaries, victim, scan=False), "PATHS": f"/leak/{shown.name}"}
    with without(entries=leak, unruled=("/leak",)):
        assert canaries.secrets["home"] not in told(attack(sandbox, Attack("read"), env))
    with without("landlock", entries=leak, unruled=("/leak",)):
        assert canaries.secrets["home"] in told(attack(sandbox, Attack("read"), env)), "the control"


@pytest.mark.full
@pytest.mark.parametrize("missing", ["landlock", "seccomp", "capabilities", "init", "namespaces", "rlimits", "mounts"])
def test_without_any_one_layer_the_secrets_stay_unread(
    canaries: host.Canaries, inherited: str, victim: host.Victim, sandbox: sync.Sandbox, missing: str
) -> None:
    with without(missing):
        seen = told(attack(sandbox, Attack("read"), _env(canaries, victim, scan=True)))
    everything = {**canaries.secrets, **victim.secrets, "inherited": inherited}
    assert [place for place, secret in everything.items() if secret in seen] == []


KERNEL_FILES = """
import os
from tests.escapes.payloads.attempts import attempt, finish, read
for name in os.environ["NAMES"].split(":"):
    attempt(name, lambda: read(name, 64).hex())
attempt("sysrq", lambda: os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY)))
finish()
"""


_KERNEL_FILES = (
    "kallsyms", "timer_list", "key-users", "cmdline", "interrupts", "softirqs", "diskstats", "pressure/cpu"
)  # fmt: skip


def test_what_proc_tells_of_the_kernel_is_hidden(sandbox: sync.Sandbox) -> None:
    """What tells of the kernel and of other programs has no content in a cell."""
    names = [f"/proc/{name}" for name in _KERNEL_FILES if _has_content(f"/proc/{name}")]
    env = {"NAMES": ":".join((*names, "/proc/kcore"))}
    seen = attack(sandbox, Attack("kernel files", source=KERNEL_FILES), env).stdout
    told_nothing = ("done \n", "PermissionError", "FileNotFoundError")
    for name in (*names, "/proc/kcore"):
        assert any(f"tried {name}: {outcome}" in seen for outcome in told_nothing), seen
    assert "tried sysrq: done" not in seen


def test_control_without_the_masks_proc_tells_of_the_kernel(sandbox: sync.Sandbox) -> None:
    with without("mounts"):
        control = attack(sandbox, Attack("kernel files", source=KERNEL_FILES), {"NAMES": "/proc/kallsyms"}).stdout
    with open("/proc/kallsyms", "rb") as file:
        first = file.read(40)[16:]
    assert first.hex() in control


def _has_content(name: str) -> bool:
    try:
        with open(name, "rb") as file:
            return bool(file.read(64))
    except OSError:
        return False


DISK = """
import os, stat
from tests.escapes.payloads.attempts import attempt, finish, read
number = int(os.environ["DEVICE"])
attempt("make", lambda: os.mknod("/tmp/disk" if os.path.isdir("/program") else "disk", stat.S_IFBLK | 0o600, number))
def superblock(path):
    with open(path, "rb", buffering=0) as file:
        return os.pread(file.fileno(), 16, 1024 + 0x68)
for path in ("/tmp/disk", "disk", *os.environ["NAMES"].split(":")):
    attempt(path, lambda: superblock(path))
finish()
"""


@pytest.mark.root_only
def test_the_disk_stays_unread_as_a_device(sandbox: sync.Sandbox, tmp_path: Path) -> None:
    number = os.stat("/usr").st_dev
    if os.major(number) == 0:
        pytest.skip("the system lies on no block device here")
    try:
        os.mknod(tmp_path / "disk", stat.S_IFBLK | 0o600, number)
        with open(tmp_path / "disk", "rb", buffering=0) as file:
            label = os.pread(file.fileno(), 16, 1024 + 0x68)  # ext4's UUID, at least 16 bytes that do not change
    except PermissionError:
        pytest.skip("root may not read the disk here: run where no devices cgroup forbids it")
    told_by = f"sha256:{hashlib.sha256(label).hexdigest()}"
    env = {"DEVICE": str(number), "NAMES": "/dev/vda:/dev/sda:/dev/root"}
    for layers in ((), ("seccomp",), ("landlock",), ("seccomp", "landlock", "capabilities")):
        with without(*layers):
            assert told_by not in attack(sandbox, Attack("disk", source=DISK), env).stdout


def test_a_held_cell_has_no_descriptor_but_its_own(
    canaries: host.Canaries, inherited: str, sandbox: sync.Sandbox
) -> None:
    """Seen from the host: stdin, the output pipes and the control pipe; nothing of the host's or the supervisor's.

    Standard input is a file in memory, which is empty and sealed, where the cell was ready before.
    """
    with held(sandbox, Attack("read", "shell"), {"PATHS": "", "DIGESTS": "", "PIDS": ""}) as one:
        loaded = ("/etc/ld.so.cache", "/usr/lib/")
        seen: list[str] = []

        def has_loaded() -> bool:
            seen[:] = host.open_files(one.pid)
            return not any(file.startswith(loaded) for file in seen)

        until(has_loaded, "the end of its loading")
        links = list(seen)
        own = ("/dev/null", "/program/main.sh", "/memfd:casemate (deleted)")
        assert [link for link in links if not link.startswith("pipe:") and not link.endswith(own)] == []
        assert links.count("/memfd:casemate (deleted)") <= 1
        assert len(links) <= 5


# ------------------------------------------------------------------------------------ hidden files in a caller's folder


def _hidden(workspace: Path) -> tuple[str, dict[str, str]]:
    """A secret in two hidden files of the folder, and what has the attack look for it."""
    secret = host.secret()
    for name in (".env", "src/.env"):
        (workspace / name).write_text(secret)
    paths = ("/workspace/.env", "/workspace/src/.env", str(workspace / ".env"))
    return secret, {"PATHS": ":".join(paths), "DIGESTS": "", "PIDS": "", "SCAN": "1", "NEEDLE": ".env"}


@pytest.mark.parametrize("mode", ["overlay", "direct"])
def test_hidden_files_of_a_callers_folder_stay_unread(
    scratch: Path, workspace: Path, language: str, mode: Literal["overlay", "direct"]
) -> None:
    secret, env = _hidden(workspace)
    into = workspace if mode == "direct" else None
    given: dict[str, Any] = {"workspace": workspace, "workspace_mode": mode, "audit": scratch / "audit.db"}
    with sync.Sandbox(**given) as sandbox:
        assert secret not in told(attack(sandbox, Attack("read", language), env, into=into))
    assert (workspace / ".env").read_text() == (workspace / "src/.env").read_text() == secret
    with sync.Sandbox(**given, allow_read=[workspace / ".env"]) as sandbox:
        assert secret in told(attack(sandbox, Attack("read", language), env, into=into)), "the control"


@pytest.mark.full
@pytest.mark.parametrize("layer", ["landlock", "seccomp", "capabilities"])
def test_hidden_files_stay_unread_where_another_layer_is_missing(scratch: Path, workspace: Path, layer: str) -> None:
    secret, env = _hidden(workspace)
    given: dict[str, Any] = {"workspace": workspace, "workspace_mode": "direct", "audit": scratch / "audit.db"}
    text = "umount .env; umount -l src/.env; unshare -Urm umount .env; mount --bind / /tmp; cat .env src/.env /tmp/.env"
    with sync.Sandbox(**given) as sandbox, without(layer):
        assert secret not in told(attack(sandbox, Attack("read"), env, into=workspace))
        assert secret not in sandbox.run(text, language="shell").text
    assert (workspace / ".env").read_text() == secret
