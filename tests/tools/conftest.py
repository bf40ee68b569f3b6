"""The runtime of cells, as a package of this process; generated modules; the tools of real servers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import casemate
from casemate.tools.modules.catalogue import Catalogue
from casemate.tools.tool import Tool

MODULES = Path(casemate.__file__).parent / "guest" / "modules"
CATALOGUES = Path(__file__).parent / "catalogues"
RUNTIME = {path.name: path.read_text(encoding="utf-8") for path in sorted((MODULES / "mcptools").glob("*.py"))}


@pytest.fixture
def runtime() -> Iterator[ModuleType]:
    """`mcptools` as cells have it; it is forgotten afterwards."""
    sys.path.insert(0, str(MODULES))
    try:
        import importlib

        yield importlib.import_module("mcptools")
    finally:
        sys.path.remove(str(MODULES))
        for name in [name for name in sys.modules if name.partition(".")[0] == "mcptools"]:
            del sys.modules[name]
        sys.meta_path[:] = [one for one in sys.meta_path if getattr(one, "__name__", "") != "HostFinder"]


def loaded(tool: Tool) -> Any:
    """The module that is generated for ``tool``, run."""
    catalogue = Catalogue([tool])
    assert catalogue.problems == []
    (row,) = catalogue.list_rows()
    found = catalogue.source(row["module"])
    assert found is not None
    module = ModuleType(row["module"])
    sys.modules[module.__name__] = module
    exec(compile(found[0], f"<{row['module']}>", "exec", dont_inherit=True), vars(module))
    return module


def real_tools() -> list[Tool]:
    """The tools of real servers, as these list them."""
    return [
        Tool(path.stem, row["name"], row.get("description", ""), row["inputSchema"], row.get("outputSchema"))
        for path in sorted(CATALOGUES.glob("*.json"))
        for row in json.loads(path.read_text(encoding="utf-8"))
    ]
