"""Packs packaging/mcpb into an .mcpb bundle: `python packaging/bundle.py dist/casemate.mcpb`.

A bundle is a zip archive with manifest.json at its root. It has no dependencies in it: its client has uv install the
casemate of the same version. The same files make the same bytes.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

SOURCE = Path(__file__).parent / "mcpb"
FILES = ("manifest.json", "pyproject.toml", "src/server.py")
_LONG_AGO = (2020, 2, 2, 0, 0, 0)  # as hatchling has it in wheels


def pack(target: Path) -> None:
    """Write the bundle. Raises ``OSError``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name in FILES:
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.external_attr = 0o644 << 16
            bundle.writestr(entry, (SOURCE / name).read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    pack(Path(sys.argv[1] if len(sys.argv) > 1 else "dist/casemate.mcpb"))
