"""Engines of the tests' own, started by hand in a folder of their own: Docker with casemate's image, and Podman without
a daemon. ./test --all has one Docker for all tests, and tells them where in a variable.

A dockerd is process 1 of a process namespace and has mounts of its own, so that with it everything ends that it has
started, however it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import MAX_WAIT

# Bookworm is the oldest Debian that has a Python for casemate.
_DEBOOTSTRAP = ("debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm")
_OWN = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_BRIDGE = ("--iptables=false", "--ip6tables=false", "--bip", "198.51.100.1/24")  # within a network of its own
_NO_BRIDGE = ("--iptables=false", "--ip6tables=false", "--bridge=none")
# gVisor; in an engine with namespaces of its own it can make no network; a cell has none.
_RUNTIMES = {"runsc": {"path": "runsc", "runtimeArgs": ["--network=none"]}}


IMAGE = "casemate"
_ROOT = Path(__file__).resolve().parents[2]
_VARIABLE = "CASEMATE_TESTS_ENGINE"


class NoEngine(Exception):
    """There is no engine, or no image, and why."""


@dataclass(frozen=True)
class Docker:
    """The command ``docker`` with a dockerd of ours. ``inside``: what runs a program in that dockerd's network."""

    environ: dict[str, str]
    inside: tuple[str, ...]
    folder: Path

    @staticmethod
    def of_the_whole_run() -> Docker:
        """The one that ./test --all has started. Raises ``NoEngine``."""
        if _VARIABLE not in os.environ:
            raise NoEngine("it takes minutes to build: ./test --all, as root")
        told = json.loads(os.environ[_VARIABLE])
        if "problem" in told:
            raise NoEngine(told["problem"])
        return Docker(dict(os.environ), tuple(told["inside"]), Path(told["folder"]))

    def __call__(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = ["docker", *arguments]
        return subprocess.run(command, env=self.environ, input=stdin, capture_output=True, text=True, check=False)

    def must(self, *arguments: str) -> str:
        """What it says. Fails where it does not succeed."""
        done = self(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


@contextlib.contextmanager
def docker(folder: Path, *, own_network: bool) -> Iterator[Docker]:
    """A dockerd that keeps everything in ``folder``. Raises ``NoEngine``."""
    (folder / "settings").write_text(json.dumps({"runtimes": _RUNTIMES if shutil.which("runsc") else {}}))
    words = ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--host", f"unix://{folder}/socket"]
    words += ["--config-file", f"{folder}/settings"]
    command = " ".join(
        ["exec", "dockerd", "--pidfile", f"{folder}/pid", *words, *(_BRIDGE if own_network else _NO_BRIDGE)]
    )
    network = ["--net", "sh", "-c", f"ip link set lo up && {command}"] if own_network else ["sh", "-c", command]
    log = folder / "log"
    with log.open("w") as said:
        process = subprocess.Popen([*_OWN, *network], stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        engine = Docker({**os.environ, "DOCKER_HOST": f"unix://{folder}/socket"}, (), folder)
        deadline = time.monotonic() + MAX_WAIT
        while engine("version").returncode:
            if process.poll() is not None or time.monotonic() > deadline:
                raise NoEngine(f"dockerd does not start here: {log.read_text()[-600:]}")
            time.sleep(0.1)
        (pid,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield Docker(engine.environ, ("nsenter", "--target", pid, "--net", "--"), folder)
        for container in engine.must("ps", "--all", "--quiet").split():
            engine("rm", "--force", "--volumes", container)
        os.kill(int(pid), signal.SIGTERM)  # what it keeps is whole for the next
        process.wait(MAX_WAIT)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def with_image(group: str) -> Iterator[dict[str, str]]:
    """A Docker that has casemate's image, built from this tree, with Node, uv and no more packages: the variables that
    tell tests where. Users of ``group`` may use it, too."""
    folder = Path(tempfile.mkdtemp(prefix="casemate-engine-", dir="/var/tmp"))  # an image takes gigabytes meanwhile
    folder.chmod(0o755)
    try:
        with contextlib.ExitStack() as stack:
            try:
                engine = stack.enter_context(_built(folder))
            except NoEngine as error:
                yield {_VARIABLE: json.dumps({"problem": str(error)})}
                return
            shutil.chown(folder / "socket", group=group)
            where = {"inside": engine.inside, "folder": str(folder)}
            yield {_VARIABLE: json.dumps(where), "DOCKER_HOST": engine.environ["DOCKER_HOST"]}
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)  # much quicker than Python's own


@contextlib.contextmanager
def _built(folder: Path) -> Iterator[Docker]:
    with docker(folder, own_network=False) as engine:
        make_base(folder, engine, "casemate-base")
        arguments = ["--build-arg=BASE=casemate-base", "--build-arg=EXTRAS=node,packages", "--network=host"]
        engine.must("build", *arguments, "--file", f"{_ROOT}/packaging/Dockerfile", "--tag", IMAGE, str(_ROOT))
    with docker(folder, own_network=True) as engine:
        yield engine


def make_base(folder: Path, engine: Docker, name: str) -> None:
    """Import a small Debian that has this machine's certificates and settings of pip."""
    root = folder / "base"
    debootstrap(root)
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(
            ["docker", "import", "-", name], env=engine.environ, stdin=tar.stdout, capture_output=True, check=True
        )
    shutil.rmtree(root)


def debootstrap(root: Path) -> None:
    """Unpack a small Debian that has this machine's certificates and settings of pip. Raises ``NoEngine``."""
    done = subprocess.run([*_DEBOOTSTRAP, str(root)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoEngine(f"debootstrap does not work here: {done.stdout[-600:]}{done.stderr[-600:]}")
    shutil.copytree("/usr/local/share/ca-certificates", root / "usr/local/share/ca-certificates", dirs_exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.copy("/etc/pip.conf", root / "etc")
    subprocess.run(["chroot", root, "update-ca-certificates"], capture_output=True, check=True)


def podman(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command ``podman`` as root, which keeps everything in ``folder`` and mounts nothing that others see."""
    places = ["--root", f"{folder}/podman", "--runroot", f"{folder}/podman-run", "--runtime", "runc"]
    command: Sequence[str] = ["podman", *places, "--cgroup-manager=cgroupfs", "--events-backend=file", *arguments]
    return subprocess.run(["unshare", "--mount", *command], capture_output=True, text=True, check=False)
