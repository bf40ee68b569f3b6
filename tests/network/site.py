"""What the tests' internet offers besides greetings: packages for pip and npm."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path


def packages(folder: Path) -> None:
    """``tiny`` as a wheel, in an index, and as a package of npm."""
    (folder / "site").mkdir()
    wheel = io.BytesIO()
    parts = {"tiny.py": b"SAYS = 'tiny'\n"}
    info = "tiny-1.0.dist-info"
    parts[f"{info}/METADATA"] = b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    parts[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    parts[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*parts, f"{info}/RECORD")).encode()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    (folder / "site" / "tiny-1.0-py3-none-any.whl").write_bytes(wheel.getvalue())
    (folder / "site" / "tiny").write_text('<a href="/site/tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a>')
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in (
            ("package.json", b'{"name": "small", "version": "1.0.0"}'),
            ("index.js", b"module.exports = 'small'\n"),
        ):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    (folder / "site" / "small-1.0.0.tgz").write_bytes(made.getvalue())
    digest = "sha512-" + base64.b64encode(hashlib.sha512(made.getvalue()).digest()).decode()
    dist = {"tarball": "https://good.test/site/small-1.0.0.tgz", "integrity": digest}
    version = {"name": "small", "version": "1.0.0", "dist": dist}
    packument = {"name": "small", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (folder / "site" / "small").write_text(json.dumps(packument))
