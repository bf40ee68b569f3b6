"""What programs import of tools, written into a folder of the user's."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import casemate
from casemate.errors import InvalidArgument

if TYPE_CHECKING:
    from casemate.tools.modules.catalogue import Catalogue

_PACKAGE = "mcptools"
_MARK = "_wire.py"  # a file that every package which was written here has


def package_into(folder: Path, catalogue: Catalogue) -> None:
    """Write ``folder/mcptools``, in place of one of an earlier time. Raises ``InvalidArgument`` where something else
    is there, and ``OSError``."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / _PACKAGE
    if target.is_symlink() or (target.exists() and not (target / _MARK).is_file()):
        raise InvalidArgument("folder", f"there is a {target} that is not of casemate's making; name another folder")
    own = Path(casemate.__file__).parent / "guest" / "modules" / _PACKAGE
    runtime = {path.name: path.read_text(encoding="utf-8") for path in sorted(own.glob("*.py"))}
    made = Path(tempfile.mkdtemp(prefix=f".{_PACKAGE}-", dir=folder))
    try:
        for name, text in catalogue.package(runtime).items():
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        (made / _PACKAGE / "py.typed").touch()
        if target.exists():
            target.rename(made / "before")
        (made / _PACKAGE).rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def declarations_into(folder: Path, catalogue: Catalogue) -> None:
    """Write ``folder/mcptools.d.ts``. Raises ``OSError``."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{_PACKAGE}.d.ts"
    if target.is_symlink():
        raise InvalidArgument("folder", f"{target} is a link; name another folder")
    target.write_text(f'declare module "{_PACKAGE}" {{\n{catalogue.declarations()}}}\n', encoding="utf-8")
