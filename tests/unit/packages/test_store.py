"""Files of packages: whole or not there, and nothing is left of one that never came."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from casemate.packages.store import PackageStore

DATA = b"wheel" * 100_000
SHA256 = hashlib.sha256(DATA).hexdigest()
RECEIVES = """
import sys
from pathlib import Path
from casemate.packages.store import PackageStore
incoming = PackageStore(Path(sys.argv[1])).begin()
incoming.write(bytes(1 << 20))
print("begun", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=[True, False], ids=["without names", "with names alone"])
def has_unnamed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the file system has files without names."""
    if not request.param:
        opened = os.open

        def refuse(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            return opened(path, flags, *arguments, **more)

        monkeypatch.setattr(os, "open", refuse)
    return bool(request.param)


def test_a_file_that_came_whole_is_there_by_its_hash_and_in_place_of_one_that_was_spoilt(
    tmp_path: Path, has_unnamed: bool
) -> None:
    (tmp_path / SHA256).write_bytes(b"spoilt")
    incoming = PackageStore(tmp_path).begin()
    incoming.write(DATA)
    assert (os.listdir(tmp_path) == [SHA256]) is has_unnamed
    assert incoming.keep() == SHA256
    incoming.drop()
    found = PackageStore(tmp_path).open(SHA256)
    assert found is not None
    with found:
        assert found.read() == DATA
    assert os.listdir(tmp_path) == [SHA256]


def test_nothing_is_left_of_a_file_that_is_dropped(tmp_path: Path, has_unnamed: bool) -> None:
    incoming = PackageStore(tmp_path).begin()
    incoming.write(DATA)
    assert (os.listdir(tmp_path) == []) is has_unnamed
    incoming.drop()
    incoming.drop()
    assert os.listdir(tmp_path) == []


def test_nothing_is_left_of_a_file_whose_process_is_killed(tmp_path: Path) -> None:
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_RDWR))
    except OSError:
        pytest.skip("this file system has no files without names")
    process = subprocess.Popen(
        [sys.executable, "-c", RECEIVES, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert os.listdir(tmp_path) == []
