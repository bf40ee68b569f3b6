"""Change what belongs to the host: FILES by every means there is, and new files in FOLDERS.

Each operation is one that leaves a trace in what stat(2) says, and none does harm: the targets are canaries.
"""

from __future__ import annotations

import mmap
import os
import shutil

from tests.escapes.payloads.attempts import attempt, checked, finish, libc

MS_REMOUNT_BIND = 32 | 4096
MS_BIND = 4096


def append(path: str) -> None:
    with open(path, "a") as file:
        file.write("changed")


def reopen_for_writing(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        again = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
        os.write(again, b"changed")
    finally:
        os.close(fd)


def map_shared(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 4) as mapped:
        mapped[:1] = b"!"
    os.close(fd)


def swap(path: str) -> None:
    """A race between a name of ours and the target: a symlink that is now here, now there."""
    for _ in range(50):
        os.symlink(path, "swapped")
        os.rename("swapped", "target")
        with open("target", "a") as file:
            file.write("changed")


def on_file(path: str, nth: int) -> None:
    attempt(f"append {path}", lambda: append(path))
    attempt(f"truncate {path}", lambda: os.truncate(path, 1))
    attempt(f"reopen {path}", lambda: reopen_for_writing(path))
    attempt(f"map {path}", lambda: map_shared(path))
    attempt(f"chmod {path}", lambda: os.chmod(path, 0o640))
    attempt(f"utime {path}", lambda: os.utime(path, (1, 1)))
    attempt(f"chown {path}", lambda: os.chown(path, os.getuid(), os.getgid()))
    attempt(f"xattr {path}", lambda: os.setxattr(path, "user.changed", b"1"))
    attempt(f"hard link {path}", lambda: os.link(path, f"hard-{nth}"))
    attempt(f"write by hard link {path}", lambda: append(f"hard-{nth}"))
    attempt(f"link {path}", lambda: os.symlink(path, f"link-{nth}"))
    attempt(f"write by link {path}", lambda: append(f"link-{nth}"))
    for prefix in ("/proc/self/root", "/proc/1/root", "/proc/self/cwd/../../.."):
        attempt(f"append {prefix}{path}", lambda prefix=prefix: append(prefix + path))  # type: ignore[misc]
    attempt(f"swap {path}", lambda: swap(path))
    attempt(f"move over {path}", lambda: shutil.move("mine", path))
    attempt(f"rename {path}", lambda: os.rename(path, f"{path}.gone"))
    attempt(f"remove {path}", lambda: os.unlink(path))


def in_folder(folder: str) -> None:
    if os.path.isdir("/program"):  # in a cell only: bare, root would change the host's own mounts
        attempt(f"remount {folder}", lambda: remount(folder))
    for name in ("sitecustomize.py", "evil.pth", ".bashrc", "new"):
        attempt(f"new {folder}/{name}", lambda name=name: append(f"{folder}/{name}"))  # type: ignore[misc]
    attempt(f"folder in {folder}", lambda: os.mkdir(f"{folder}/made"))


def remount(folder: str) -> None:
    for target in (folder, "/", "/usr"):
        checked(libc.mount(b"none", target.encode(), None, MS_REMOUNT_BIND, None))
        checked(libc.mount(b"/tmp", target.encode(), None, MS_BIND, None))


for nth, path in enumerate(filter(None, os.environ["FILES"].split(":"))):
    with open("mine", "w") as file:
        file.write("changed")
    on_file(path, nth)
for folder in filter(None, os.environ["FOLDERS"].split(":")):
    in_folder(folder)
finish()
