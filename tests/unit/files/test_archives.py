"""Archives: what goes into one, and what comes out of one that somebody else has made."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from casemate.errors import InvalidArgument
from casemate.files import archives
from casemate.files.archives import Carried, Packer, unpack
from casemate.files.bounds import TreeBounds
from casemate.files.heads import LATEST, Heads

Member = tuple[tarfile.TarInfo, bytes]


def packed(folder: Path) -> tuple[Carried, io.BytesIO]:
    """What Packer makes of a folder."""
    out = io.BytesIO()
    packer, root = Packer(out), os.open(folder, os.O_RDONLY)
    try:
        packer.tree(root)
    finally:
        os.close(root)
    carried = packer.end()
    out.seek(0)
    return carried, out


def unpacked(archive: io.BytesIO, folder: Path) -> Carried:
    folder.mkdir(exist_ok=True)
    root = os.open(folder, os.O_RDONLY)
    try:
        return unpack(archive, root)
    finally:
        os.close(root)


def archive_of(*members: Member) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, data in members:
            info.size = len(data) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(data))
    out.seek(0)
    return out


def member(name: str, data: bytes = b"x", *, kind: bytes = tarfile.REGTYPE, to: str = "", mode: int = 0o644) -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, to, mode
    return info, data


def tree(folder: Path) -> dict[str, bytes | None]:
    """All that lies beneath a folder: the contents of files."""
    return {str(one.relative_to(folder)): one.read_bytes() if one.is_file() else None for one in folder.rglob("*")}


def reasons(carried: Carried) -> dict[str, str]:
    return {one.name: one.reason for one in carried.left_out}


def test_a_folder_comes_out_as_it_went_in_but_for_links_and_what_is_no_file(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "empty").mkdir(parents=True)
    (source / "a" / ("long" * 50)).write_bytes(bytes(range(256)) * 5000)
    (source / "run.sh").write_text("true")
    (source / "run.sh").chmod(0o4755)
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "fifo")
    carried, archive = packed(source)
    assert (carried.files, carried.folders, carried.is_whole) == (2, 2, True)
    assert set(reasons(carried)) == {"link", "fifo"}
    assert unpacked(archive, tmp_path / "target").left_out == ()
    assert tree(tmp_path / "target") == {
        name: one for name, one in tree(source).items() if name not in ("link", "fifo")
    }
    assert (tmp_path / "target" / "run.sh").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (member("../outside"), "leads out"),
        (member("a/../../outside"), "leads out"),
        (member("/outside"), "leads out"),
        (member("line\nbreak"), "control"),
        (member("back\\slash"), "backslash"),
        (member("link", kind=tarfile.SYMTYPE, to="/etc/passwd"), "neither a regular file"),
        (member("hard", kind=tarfile.LNKTYPE, to="/etc/passwd"), "neither a regular file"),
        (member("device", kind=tarfile.CHRTYPE), "neither a regular file"),
        (member("fifo", kind=tarfile.FIFOTYPE), "neither a regular file"),
        (member("/".join("d" * 70)), "deeper"),
    ],
    ids=lambda one: one[0].name[:20] if isinstance(one, tuple) else "",
)
def test_what_is_hostile_in_an_archive_is_left_out_and_told_and_the_rest_comes_out(
    tmp_path: Path, given: Member, why: str
) -> None:
    carried = unpacked(archive_of(member("before", b"1"), given, member("after", b"2")), tmp_path / "target")
    assert tree(tmp_path / "target") == {"before": b"1", "after": b"2"}
    assert [why in one.reason for one in carried.left_out] == [True]
    assert os.listdir(tmp_path) == ["target"]


def test_a_link_that_lies_in_the_target_is_replaced_and_one_in_place_of_a_folder_is_not_followed(
    tmp_path: Path,
) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    (outside / "kept").write_bytes(b"as it was")
    (target / "file").symlink_to(outside / "kept")
    (target / "folder").symlink_to(outside)
    carried = unpacked(archive_of(member("file", b"new"), member("folder/planted")), target)
    assert tree(outside) == {"kept": b"as it was"}
    assert not (target / "file").is_symlink()
    assert (target / "file").read_bytes() == b"new"
    assert (list(reasons(carried)), carried.is_whole) == (["folder/planted"], False)


@pytest.mark.parametrize("mode", [0o4755, 0o2777, 0o7777, 0o666])
def test_no_file_becomes_setuid_or_anybodys_to_write(tmp_path: Path, mode: int) -> None:
    unpacked(archive_of(member("file", mode=mode)), tmp_path / "target")
    assert (tmp_path / "target" / "file").stat().st_mode & 0o7777 == (0o755 if mode & 0o100 else 0o644)


def _cut(archive: bytes) -> bytes:
    return archive[:700]


def _negative(archive: bytes) -> bytes:
    """The size of the first member as the negative number that GNU's form can have, with a checksum that is right."""
    head = bytearray(archive[:512])
    head[124:136] = b"\xff" * 10 + b"\xfe\x00"  # -512: the next is where this one is
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + archive[512:]


def _large_head(_archive: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("file")
        info.pax_headers = {"comment": "x" * (2 << 20)}
        tar.addfile(info)
    return out.getvalue()


def _heads(*bodies: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """Extended heads with these bodies, and a member."""
    pieces = []
    for body in bodies:
        info = tarfile.TarInfo("head")
        info.type, info.size = kind, len(body)
        pieces += [info.tobuf(tarfile.GNU_FORMAT), body, bytes(-len(body) % 512)]
    return b"".join((*pieces, tarfile.TarInfo("file").tobuf(), bytes(1024)))


def _record(name: bytes, size: int) -> bytes:
    return b"%d %s=" % (size, name) + b"v" * (size - len(name) - len(b"%d" % size) - 3) + b"\n"


def _saying(name: bytes, value: bytes) -> bytes:
    """The record that says it."""
    rest = b" %s=%s\n" % (name, value)
    length = next(n for n in range(len(rest), len(rest) + 9) if len(b"%d" % n) + len(rest) == n)
    return b"%d%s" % (length, rest)


@pytest.mark.parametrize(
    ("archive", "why"),
    [
        (_heads(b"1" * 4000), "well formed"),
        (_heads(b"2 " * 2000 + b"="), "well formed"),
        (_heads(b"9999 a=b\n"), "well formed"),
        (_heads(b"7 a=bcdefg\n"), "well formed"),
        (_heads(_saying(b"size", b"1" * 5000)), "not a number of bytes"),
        (_heads(_saying(b"size", b"-512")), "not a number of bytes"),
        (_heads(*[_record(b"a", 200_000)] * 6), "too large"),
        (_heads(*[_record(b"a", 200_000)] * 6, kind=tarfile.XGLTYPE), "too large"),
    ],
)
def test_heads_that_take_more_time_or_memory_than_they_are_long_are_refused(
    tmp_path: Path, archive: bytes, why: str
) -> None:
    with pytest.raises(InvalidArgument, match=why):
        unpacked(io.BytesIO(archive), tmp_path / "out")


def test_records_of_heads_are_read_where_they_are_well_formed(tmp_path: Path) -> None:
    archive = _heads(b"16 path=another\n", b"14 comment=ab\n")
    assert unpacked(io.BytesIO(archive), tmp_path / "out").files == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["another"]


def test_records_of_one_member_are_not_those_of_the_next(tmp_path: Path) -> None:
    first = _heads(_saying(b"path", b"first") + _saying(b"mtime", b"77.5") + _saying(b"GNU.sparse.size", b"1"))
    common = _heads(_saying(b"mtime", b"88"), kind=tarfile.XGLTYPE)
    carried = unpacked(io.BytesIO(first[:-1024] + common), tmp_path / "out")
    assert reasons(carried) == {"first": "it is neither a regular file nor a folder"}
    assert {path.name: path.stat().st_mtime for path in (tmp_path / "out").iterdir()} == {"file": 88}


def test_tarfile_is_told_nothing_of_records_but_a_size() -> None:
    body = b"".join(
        _saying(name, b"7" * 200)
        for name in (b"comment", b"path", b"mtime", b"GNU.sparse.size", b"GNU.sparse.map", b"hdrcharset", b"uid")
    )
    heads = Heads(io.BytesIO(_heads(body + _saying(b"size", b"00"))))
    with tarfile.TarFile(fileobj=cast("BinaryIO", heads), tarinfo=heads.member) as tar:
        found = tar.next()
    assert found is not None
    assert found.pax_headers == {"size": "00"}


@pytest.mark.parametrize(
    ("said", "modified"),
    [
        (b"nan", 1000),
        (b"inf", 1000),
        (b"-inf", 1000),
        (b"1e999", 1000),
        (b"yesterday", 1000),
        (b"", 1000),
        (b"1" * 5000, 1000),
        (b"-5", 0),
        (b"1e300", LATEST),
        (b"123456789.987654321", 123456789),
    ],
)
def test_a_file_whose_time_is_no_time_comes_out_with_another(tmp_path: Path, said: bytes, modified: int) -> None:
    file = tarfile.TarInfo("file")
    file.mtime = 1000
    archive = _heads(_saying(b"mtime", said)).replace(tarfile.TarInfo("file").tobuf(), file.tobuf())
    carried = unpacked(io.BytesIO(archive), tmp_path / "out")
    assert (carried.files, carried.is_whole) == (1, True)
    taken = os.stat(tmp_path / "out" / "file").st_mtime
    assert taken == modified or modified > 2**31 - 1 <= taken  # some file systems keep no later one


@pytest.mark.parametrize("name", ["a/" * 2100, "7" * 300_000, "/" * 5000], ids=["deep", "long", "nothing"])
def test_a_member_with_too_long_a_path_is_left_out_and_the_rest_comes_out(tmp_path: Path, name: str) -> None:
    carried = unpacked(archive_of(member(name), member("after")), tmp_path / "out")
    assert [one.reason for one in carried.left_out] == ["its path is longer than 4096 bytes"]
    assert tree(tmp_path / "out") == {"after": b"x"}


def test_archives_are_refused_where_tarfile_reads_heads_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = tarfile.TarInfo.fromtarfile
    monkeypatch.setattr(tarfile.TarInfo, "fromtarfile", classmethod(lambda _cls, archive: read(archive)))
    with pytest.raises(InvalidArgument, match="this version of Python"):
        unpacked(archive_of(member("one", b"1")), tmp_path / "target")


@pytest.mark.parametrize("spoil", [lambda head: b"x" + head[1:], lambda _: b"j" * 512, lambda head: head[:100]])
def test_a_head_that_is_damaged_or_cut_is_not_taken_for_the_end_of_the_archive(
    tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    whole = archive_of(member("first", b"1"), member("second", b"2")).getvalue()
    with pytest.raises(InvalidArgument, match="not a complete tar archive"):
        unpacked(io.BytesIO(whole[:1024] + spoil(whole[1024:1536])), tmp_path / "target")


@pytest.mark.parametrize("spoil", [_cut, _negative, _large_head, lambda _: b"no archive" * 100])
def test_what_is_no_archive_is_told_and_ends(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    whole = archive_of(member("file", b"x" * 2000)).getvalue()
    with pytest.raises(InvalidArgument, match="not a complete tar archive"):
        unpacked(io.BytesIO(spoil(whole)), tmp_path / "target")


def test_so_many_files_and_bytes_are_carried_and_the_rest_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = TreeBounds(files=3, file_bytes=100, total_bytes=150, depth=4, entries=20, reports=5)
    monkeypatch.setattr(archives, "BOUNDS", few)
    sizes = {"a": 100, "b": 100, "c": 40, "d": 1, "e": 1}
    source = tmp_path / "source"
    source.mkdir()
    for name, size in sizes.items():
        (source / name).write_bytes(b"x" * size)
    carried, archive = packed(source)
    assert (carried.files, carried.bytes, carried.is_whole) == (3, 141, False)
    assert {name: "bytes" in why or "files" in why for name, why in reasons(carried).items()} == {"b": True, "e": True}
    out = unpacked(archive_of(*(member(name, b"x" * size) for name, size in sizes.items())), tmp_path / "target")
    assert (out.files, out.bytes, out.is_whole) == (3, 141, False)
    assert unpacked(archive, tmp_path / "target").is_whole
