"""The README's first two commands work in a clone on an empty Debian. Ubuntu is not tried.

The Debian is debootstrap's smallest, entered by pivot_root: the kernel refuses user namespaces in a chroot (clone(2)).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.distribution.engines import debootstrap

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = re.findall(r"^```sh fragment\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)[:2]
CLONE = "/home/new/casemate"
OWN = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child")
PASSED_ON = ("NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty Debian with sudo, a user ``new`` who may use it, and that user's clone of this repository."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("it needs root and debootstrap")
    root = tmp_path_factory.mktemp("debian")
    root.chmod(0o755)
    debootstrap(root)
    enter(root, "apt-get update -qq && apt-get install -qq -y --no-install-recommends sudo git", user="root")
    enter(root, "useradd --create-home new && echo 'new ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/new", user="root")
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), f"{root}{CLONE}"], check=True)
    enter(root, f"chown -R new: {CLONE}", user="root")
    yield root
    subprocess.run(["rm", "-rf", "--one-file-system", root], check=True)


def enter(root: Path, command: str, *, user: str, folder: str = "/") -> str:
    """Run a command in a Debian, as process 1 of a process namespace, so that it leaves none behind. What it prints."""
    mounts = [
        f"mount --bind {root} {root}", f"mount -t proc proc {root}/proc", f"mount --rbind /sys {root}/sys",
        f"mount --rbind /dev {root}/dev", f"mount -t tmpfs tmpfs {root}/run", f"mkdir {root}/run/lock",
        f"cp -L /etc/resolv.conf /etc/hosts {root}/etc", f"cd {root}", "pivot_root . .", "umount -l .", "cd /",
    ]  # fmt: skip
    variables = [f"{name}={os.environ[name]}" for name in PASSED_ON if name in os.environ]
    inside = f"cd {folder} && {command}"
    run = ["runuser", "-u", user, "--", "env", "-i", "PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin", *variables]
    run += [f"HOME={'/root' if user == 'root' else f'/home/{user}'}", "LANG=C.UTF-8", "bash", "-ec", inside]
    script = "set -e; " + "; ".join([*mounts, f"exec {shlex.join(run)}"])
    done = subprocess.run(
        [*OWN, "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def test_the_first_command_leaves_a_picture_and_says_where(debian: Path) -> None:
    said = enter(debian, COMMANDS[0], user="new", folder=CLONE)
    found = re.search(r"^casemate: saved in (\S+): .*\b(\w+\.png)", said, re.MULTILINE)
    assert found, said
    assert Path(f"{debian}{CLONE}", found[1], found[2]).read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def said(debian: Path) -> str:
    """What the second command prints. It takes longer than a test may; a fixture has no such bound."""
    return enter(debian, f"git config --global --add safe.directory '*' && {COMMANDS[1]}", user="root", folder=CLONE)


def test_the_second_command_passes_the_tests(said: str) -> None:
    assert said.rstrip().endswith("== passed")
