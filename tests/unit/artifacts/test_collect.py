"""Collecting from a hostile tree: what is handed out, what is not, and that nothing blocks, follows or fails."""

from __future__ import annotations

import gc
import hashlib
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casemate.artifacts.collect import CollectedFiles, collect
from casemate.files.bounds import TreeBounds
from casemate.redaction.redaction import Redaction
from casemate.supervisor.trees.walk import Entry, open_file

NOTHING: Mapping[str, str] = {}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    return tree


def collected(
    tree: Path, *, under: tuple[str, ...] = (), given: Mapping[str, str] = NOTHING, bounds: TreeBounds | None = None
) -> CollectedFiles:
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return collect(root, under=under, inputs=given, bounds=bounds)
    finally:
        os.close(root)


def contents(outcome: CollectedFiles) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in outcome.files}


def reasons(outcome: CollectedFiles) -> dict[str, str]:
    return {skipped.name: skipped.reason for skipped in outcome.skipped}


def test_only_the_named_folder_is_collected(tree: Path) -> None:
    """AR-08."""
    (tree / "output").mkdir()
    (tree / "output" / "mine").write_bytes(b"1")
    (tree / "other").write_bytes(b"2")
    assert contents(collected(tree, under=("output",))) == {"output/mine": b"1"}
    assert collected(tree, under=("missing",)) == CollectedFiles((), (), True)


def test_no_link_is_followed(tree: Path, tmp_path: Path) -> None:
    """AR-01."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_bytes(b"SECRET")
    (tree / "plain").write_bytes(b"mine")
    links = {
        "absolute": "/etc/passwd",
        "environ": "/proc/self/environ",
        "up": "../secret/key",
        "folder": str(secret),
        "twice": "up",
        "inner": "plain",
        "dangling": "nowhere",
        "loop": "loop",
    }
    for name, target in links.items():
        (tree / name).symlink_to(target)
    outcome = collected(tree)
    assert contents(outcome) == {"plain": b"mine"}
    assert reasons(outcome) == dict.fromkeys(links, "it is a link")
    assert outcome.complete


def test_a_link_in_place_of_the_output_folder_is_not_followed(tree: Path, tmp_path: Path) -> None:
    """AR-01."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_bytes(b"SECRET")
    (tree / "output").symlink_to("../secret")
    outcome = collected(tree, under=("output",))
    assert (outcome.files, reasons(outcome)) == ((), {"output": "it is not a folder"})


def test_a_hard_link_is_a_copy_under_each_name(tree: Path) -> None:
    """AR-02: in a file system of its own, both names are the run's."""
    (tree / "one").write_bytes(b"same")
    (tree / "two").hardlink_to(tree / "one")
    assert contents(collected(tree)) == {"one": b"same", "two": b"same"}


def test_fifos_sockets_and_devices_are_skipped_without_blocking(tree: Path) -> None:
    """AR-03."""
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(tree)
        listener.bind("socket")
        os.chdir(here)
        assert reasons(collected(tree)) == {"fifo": "it is a fifo", "socket": "it is a socket"}


@pytest.mark.root_only
def test_devices_are_never_opened_and_whiteouts_are_no_files(tree: Path) -> None:
    """AR-03."""
    os.mknod(tree / "zero", 0o20666, os.makedev(1, 5))
    os.mknod(tree / "disk", 0o60666, os.makedev(7, 200))
    os.mknod(tree / "removed", 0o20000, os.makedev(0, 0))
    assert reasons(collected(tree)) == {"zero": "it is a device", "disk": "it is a device"}


def test_what_exceeds_the_sum_or_the_count_is_skipped_and_said(tree: Path) -> None:
    """AR-04, AR-05."""
    for number in range(4):
        (tree / f"{number}").write_bytes(b"x" * 40)
    outcome = collected(tree, bounds=TreeBounds(total_bytes=100))
    assert (len(outcome.files), outcome.complete) == (2, False)
    assert "together" in reasons(outcome)["2"]
    outcome = collected(tree, bounds=TreeBounds(file_bytes=39))
    assert (len(outcome.files), outcome.complete) == (0, False)
    assert "larger than 39 bytes" in reasons(outcome)["0"]
    outcome = collected(tree, bounds=TreeBounds(files=3))
    assert (len(outcome.files), outcome.complete) == (3, False)
    assert "more than 3 files" in reasons(outcome)["3"]


def test_a_file_is_bounded_by_what_is_read_and_not_by_the_size_it_claims() -> None:
    """AR-04: the kernel's own files claim to be empty."""
    root = os.open("/proc/sys/kernel/random", os.O_RDONLY | os.O_DIRECTORY)
    outcome = collect(root, bounds=TreeBounds(file_bytes=10), unlock=False)
    os.close(root)
    assert "it grew" in reasons(outcome)["boot_id"]
    assert "entropy_avail" in contents(outcome)


def test_a_hundred_thousand_files_are_looked_at_only_up_to_the_bound(tree: Path) -> None:
    """AR-05."""
    for number in range(5_000):
        (tree / f"{number:06}").touch()
    outcome = collected(tree, bounds=TreeBounds(files=10, entries=1_000, reports=5))
    assert (len(outcome.files), outcome.complete) == (10, False)
    assert len(outcome.skipped) == 6
    assert outcome.skipped[-1].reason == "986 more are not listed"


def test_three_thousand_nested_folders_are_neither_a_crash_nor_a_failure(tree: Path) -> None:
    """AR-05."""
    (tree / "before").write_bytes(b"1")
    folder = os.open(tree, os.O_RDONLY)
    for _ in range(3_000):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)
    (tree / "z-after").write_bytes(b"2")
    gc.collect()  # what earlier tests left
    before = len(os.listdir("/proc/self/fd"))
    outcome = collected(tree)
    assert contents(outcome) == {"before": b"1", "z-after": b"2"}
    assert reasons(outcome)["/".join("d" * 33)] == "it lies deeper than 32 folders"
    assert len(os.listdir("/proc/self/fd")) == before
    subprocess.run(["rm", "-rf", tree / "d"], check=True)  # pytest's own clean-up recurses


HOSTILE_NAMES = [
    b"line\nbreak",
    b"\x1b]0;title\x07",
    "rtl\u202egnp".encode(),
    b"..\\up",
    b"latin-\xe9",
    b"\xff",
]


def test_hostile_names_are_skipped_and_shown_escaped(tree: Path) -> None:
    """AR-06."""
    for raw in HOSTILE_NAMES:
        Path(os.fsdecode(os.fsencode(tree) + b"/" + raw)).write_bytes(b"1")
    bad = tree / "bad\nfolder"
    bad.mkdir()
    (bad / "inside").write_bytes(b"1")
    for name in ("-rf", "con", "C:x", "x" * 255):
        (tree / name).write_bytes(b"2")
    outcome = collected(tree)
    assert sorted(contents(outcome)) == sorted(["-rf", "con", "C:x", "x" * 255])
    assert len(outcome.skipped) == len(HOSTILE_NAMES) + 1
    assert all(skipped.name.isprintable() for skipped in outcome.skipped)
    assert "bad\\x0afolder" in reasons(outcome)


def test_twins_are_kept_apart(tree: Path) -> None:
    """AR-06."""
    names = {"\u00fc": b"composed", "u\u0308": b"decomposed", "a": b"small", "A": b"large"}
    for name, content in names.items():
        (tree / name).write_bytes(content)
    assert contents(collected(tree)) == names


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    name=st.binary(min_size=1, max_size=60).filter(
        lambda n: b"/" not in n and b"\0" not in n and n not in (b".", b"..")
    )
)
def test_any_name_is_either_handed_out_as_it_is_or_skipped(
    tmp_path_factory: pytest.TempPathFactory, name: bytes
) -> None:
    """AR-06."""
    tree = tmp_path_factory.mktemp("any")
    Path(os.fsdecode(os.fsencode(tree) + b"/" + name)).write_bytes(b"1")
    outcome = collected(tree)
    assert len(outcome.files) + len(outcome.skipped) == 1
    assert all(file.name.encode() == name for file in outcome.files)


def test_folders_and_files_without_permission_bits_are_handed_out(tree: Path) -> None:
    """AR-13."""
    (tree / "closed" / "deeper").mkdir(parents=True)
    (tree / "closed" / "deeper" / "file").write_bytes(b"1")
    (tree / "closed" / "deeper" / "file").chmod(0)
    (tree / "setuid").write_bytes(b"2")
    (tree / "setuid").chmod(0o6755)
    for folder in (tree / "closed" / "deeper", tree / "closed"):
        folder.chmod(0)
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    tree.chmod(0)
    outcome = collect(root)
    os.close(root)
    assert contents(outcome) == {"closed/deeper/file": b"1", "setuid": b"2"}
    assert outcome.complete


def test_product_names_are_names_like_any_other(tree: Path) -> None:
    """AR-14."""
    for name in ("manifest.json", ".sig", "audit.db"):
        (tree / name).write_bytes(name.encode())
    assert sorted(contents(collected(tree))) == sorted([".sig", "audit.db", "manifest.json"])


def test_what_was_handed_out_stays_when_the_tree_changes(tree: Path) -> None:
    """AR-07."""
    (tree / "file").write_bytes(b"before")
    outcome = collected(tree)
    (tree / "file").write_bytes(b"after!")
    (file,) = outcome.files
    assert file.read_bytes() == b"before"
    assert file.sha256 == hashlib.sha256(b"before").hexdigest()


def test_a_name_that_turns_into_a_link_after_it_was_seen_is_not_opened(tree: Path) -> None:
    """AR-07."""
    (tree / "file").write_bytes(b"mine")
    (tree / "other").write_bytes(b"other")
    root = os.open(tree, os.O_RDONLY)
    entry = Entry((b"file",), os.stat(b"file", dir_fd=root), root)
    for swap in ("symlink_to", "hardlink_to"):
        (tree / "file").unlink()
        getattr(tree / "file", swap)(tree / "other")
        with pytest.raises(OSError, match="changed"):
            open_file(entry)
    os.close(root)


def test_a_folder_that_is_not_ours_keeps_its_permission_bits(tree: Path) -> None:
    """AR-13: a caller's folder that a run wrote straight into is read as it is."""
    (tree / "closed").mkdir(mode=0)
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    collect(root, unlock=False)
    os.close(root)
    assert (tree / "closed").stat().st_mode & 0o777 == 0


def test_a_device_that_is_full_costs_the_file_and_not_the_outcome(tree: Path) -> None:
    """AR-04."""
    (tree / "a-large").write_bytes(b"x" * 3_000_000)
    (tree / "b-small").write_bytes(b"1")
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        outcome = collected(tree)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert contents(outcome) == {"b-small": b"1"}
    assert "cannot be copied" in reasons(outcome)["a-large"]
    assert not outcome.complete


@pytest.mark.parametrize("bounds", [TreeBounds(file_bytes=100_000), TreeBounds(total_bytes=100_000)])
def test_a_file_that_markers_make_larger_is_bounded_as_well(tree: Path, bounds: TreeBounds) -> None:
    (tree / "much.txt").write_text("password" * 10_000)
    (tree / "some.txt").write_text("password" * 100)
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        outcome = collect(root, bounds=bounds, redaction=Redaction({"A_LONG_NAME": "password"}))
    finally:
        os.close(root)
    assert contents(outcome) == {"some.txt": b"[secret:A_LONG_NAME]" * 100}
    assert "too large" in reasons(outcome)["much.txt"]
    assert not outcome.complete
