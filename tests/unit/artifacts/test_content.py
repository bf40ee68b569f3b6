"""Content on the host: the same bytes in memory and in a file, and nothing left when nobody holds it."""

from __future__ import annotations

import gc
import hashlib
import os
import resource
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.artifacts.content import IN_MEMORY, ContentStore, Slice, Spool, media_type_of


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(0, 100))
def test_slices_give_back_what_was_stored_wherever_it_is_kept(parts: list[bytes], in_memory: int) -> None:
    store = ContentStore(in_memory=in_memory)
    slices = []
    for part in parts:
        slices.append(Slice(store, store.size, len(part)))
        store.append(part)
    assert [piece.read_bytes() for piece in slices] == parts
    assert store.read(0, store.size) == b"".join(parts)


@pytest.mark.parametrize("in_memory", [0, 100])
def test_what_is_cut_off_is_replaced_by_what_comes_next(in_memory: int) -> None:
    store = ContentStore(in_memory=in_memory)
    store.append(b"keep")
    store.append(b"forget")
    store.cut(4)
    store.append(b"new")
    assert store.read(0, 100) == b"keepnew"


def test_small_content_needs_no_file_and_large_content_one_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gc.collect()  # what earlier tests left
    before = open_files()
    store = ContentStore()
    store.append(b"x" * IN_MEMORY)
    assert open_files() == before
    store.append(b"y")
    assert open_files() == before + 1
    assert list(tmp_path.iterdir()) == []
    assert store.read(IN_MEMORY - 1, 2) == b"xy"


def test_the_file_is_gone_with_the_last_slice() -> None:
    gc.collect()  # what earlier tests left
    before = open_files()
    store = ContentStore(in_memory=0)
    store.append(b"content")
    one, two = Slice(store, 0, 3), Slice(store, 3, 4)
    del store, one
    gc.collect()
    assert two.read_bytes() == b"tent"
    del two
    gc.collect()
    assert open_files() == before


def test_saving_replaces_a_file_and_a_link_but_not_its_target(tmp_path: Path) -> None:
    store = ContentStore(in_memory=0)
    store.append(b"new")
    (tmp_path / "victim").write_bytes(b"victim")
    (tmp_path / "link").symlink_to("victim")
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "old").chmod(0o4755)
    for name in ("link", "old", "none"):
        Slice(store, 0, 3).save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == b"new"
        assert (tmp_path / name).stat().st_mode & 0o7000 == 0
    assert (tmp_path / "victim").read_bytes() == b"victim"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link", "none", "old", "victim"]


def test_saving_to_a_folder_fails_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        Slice(ContentStore(), 0, 0).save(tmp_path / "folder")
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


def test_saving_to_a_device_writes_into_it(tmp_path: Path) -> None:
    store = ContentStore()
    store.append(b"x")
    Slice(store, 0, 1).save("/dev/null")
    assert Path("/dev/null").is_char_device()


def test_a_spool_hands_out_what_was_written_so_far() -> None:
    spool = Spool()
    spool.write(b"first ")
    early = spool.artifact("stdout.txt")
    spool.write(b"second")
    late = spool.artifact("stdout.txt", "text/plain")
    assert (early.read_bytes(), late.read_bytes()) == (b"first ", b"first second")
    assert late.sha256 == hashlib.sha256(b"first second").hexdigest()
    assert (early.size, late.size, spool.size) == (6, 12, 12)


def test_a_spool_on_a_full_disk_keeps_what_it_has() -> None:
    spool = Spool()
    spool.write(b"x" * 1000)
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
    try:
        with pytest.raises(OSError, match="large"):
            spool.write(b"y" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert spool.artifact("x").sha256 == hashlib.sha256(b"x" * 1000).hexdigest()
    spool.write(b"z")
    assert spool.artifact("x").read_bytes() == b"x" * 1000 + b"z"


def test_the_type_is_what_the_extension_claims() -> None:
    assert media_type_of("a/b.PNG") == "image/png"
    assert media_type_of("a.png/b") == "application/octet-stream"
    assert media_type_of("png") == media_type_of(".png") == media_type_of("") == "application/octet-stream"
