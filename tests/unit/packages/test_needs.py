"""Which packages need which, of archives that an index served: hostile ones say nothing, and cost little."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from casemate.model.overview import InstalledPackage
from casemate.packages.needs import needed_by
from casemate.packages.store import PackageStore

SAYS = b'{"dependencies": {"beta": "1"}}'
METADATA = "Metadata-Version: 2.1\nName: alpha\nVersion: 1.0\nRequires-Dist: beta{}\n"


def tgz(*members: tuple[str, bytes], head: bytes = b"", zeros: int = 0) -> bytes:
    """An archive of npm's, perhaps behind a ``head`` and behind a file of so many zeros."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        file.write(head)
        if zeros:
            big = tarfile.TarInfo("package/zeros")
            big.size = zeros
            file.write(big.tobuf())
            for _ in range(zeros >> 20):
                file.write(bytes(1 << 20))
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name, content in members:
                one = tarfile.TarInfo(name)
                one.size = len(content)
                archive.addfile(one, io.BytesIO(content))
    return packed.getvalue()


def wheel(marker: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("alpha-1.0.dist-info/METADATA", METADATA.format(marker))
    return packed.getvalue()


def huge_head() -> bytes:
    """An extended head of 48 MiB."""
    head = tarfile.TarInfo("package/PaxHeaders/x")
    head.type, head.size = tarfile.XHDTYPE, 48 << 20
    return head.tobuf() + bytes(head.size)


def found_in(folder: Path, content: bytes, language: str) -> dict[str, list[str]]:
    """What of alpha, whose file this is, and beta, the question says."""
    sha256 = hashlib.sha256(content).hexdigest()
    (folder / sha256).write_bytes(content)
    packages = [
        InstalledPackage(name=name, version="1.0", file=f"{name}.x", source="", sha256=digest, size=1)
        for name, digest in (("alpha", sha256), ("beta", "0" * 64))
    ]
    return needed_by(packages, ["alpha"], language, PackageStore(folder))


@pytest.mark.parametrize(("content", "is_said"), [
    (tgz(("package/package.json", SAYS)), True),
    (tgz(("package/a.js", b"x" * 5000), ("package/package.json", SAYS)), True),
    (tgz(("package/package.json", SAYS), zeros=96 << 20), False),
    (tgz(("package/package.json", SAYS), head=huge_head()), False),
    (tgz(("package/package.json", b"[1]")), False),
    (tgz(("package/package.json", SAYS))[:60], False),
    (b"no archive", False),
], ids=["plain", "later", "zeros", "huge head", "a list", "cut", "no archive"])  # fmt: skip
def test_an_archive_of_npm_is_read_within_bounds(tmp_path: Path, content: bytes, is_said: bool) -> None:
    tracemalloc.start()
    try:
        found = found_in(tmp_path, content, "node")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert found == ({"beta@1.0": ["alpha@1.0"]} if is_said else {})


@pytest.mark.parametrize(("marker", "is_said"), [
    ("", True), ("; extra == 'more'", False), ("; python_version > '3'", True),
    ("; extra == 'more' and python_version ~= 'x'", False),
])  # fmt: skip
def test_a_wheels_markers_never_end_an_installation(tmp_path: Path, marker: str, is_said: bool) -> None:
    assert found_in(tmp_path, wheel(marker), "python") == ({"beta==1.0": ["alpha==1.0"]} if is_said else {})
