"""``python -m tests.surface OLD [NEW]`` prints how the public surface differs between two commits.

The surface is operations with their schemas, options of the command line, exit codes, MCP tools of every toolset, and
exported names with their signatures. Descriptions are left out. NEW defaults to the working tree.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import enum
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parents[1]
_TEXTS = ("description", "title", "examples")


def lines() -> Iterator[str]:
    """One line for each part of the surface of the casemate that this interpreter imports."""
    yield from sorted([*_operations(), *_options(), *_exit_codes(), *_tools(), *_exported()])


def _operations() -> Iterator[str]:
    from casemate.operations.catalogue import catalogue

    for name, one in catalogue().items():
        yield f"operation {name}: {one.audience.value} approver={one.approver} streams={one.streams}"
        for kind, schema in (("takes", one.params_schema()), ("returns", one.result_schema())):
            yield from _schema_lines(f"operation {name} {kind}", schema)


def _schema_lines(prefix: str, schema: dict[str, Any]) -> Iterator[str]:
    for name, about in (schema.get("properties") or {"": schema}).items():
        required = name in schema.get("required", ())
        yield f"{prefix} {name} {json.dumps(_bare(about), sort_keys=True)}{' required' if required else ''}"
    for name, about in schema.get("$defs", {}).items():
        yield f"{prefix} of {name}: {json.dumps(_bare(about), sort_keys=True)}"


def _bare(about: Any) -> Any:
    """The schema ``about`` without texts for people."""
    if isinstance(about, list):
        return [_bare(one) for one in about]
    if not isinstance(about, dict):
        return about
    return {
        key: {name: _bare(one) for name, one in value.items()} if key in ("properties", "$defs") else _bare(value)
        for key, value in about.items()
        if key not in _TEXTS
    }


def _options() -> Iterator[str]:
    from casemate.surfaces.cli import application

    waiting: list[tuple[str, Any]] = [("casemate", application())]
    while waiting:
        command, app = waiting.pop()
        yield f"command {command}"
        waiting += [(f"{command} {name}", app[name]) for name in app if not name.startswith("-")]
        if app.default_command is None:
            continue
        for one in app.assemble_argument_collection():
            hint, default = getattr(one.hint, "__name__", one.hint), one.field_info.default
            if not one.name.startswith("*"):  # a group; its options are in the list, too
                yield f"command {command} {' '.join(one.names)} {hint} required={one.required} default={default!r}"


def _exit_codes() -> Iterator[str]:
    from casemate.surfaces.cli import failures

    for table in ("_OF_KIND", "_OF_STATUS", "_OF_CAUSE"):
        yield from (f"exit code of {name}: {code}" for name, code in getattr(failures, table).items())


def _tools() -> Iterator[str]:
    from casemate.surfaces.mcp.toolsets import Toolset

    for toolset in get_args(Toolset):
        for tool in asyncio.run(_list_tools(toolset)):
            yield from _schema_lines(f"tool {tool.name} of {toolset} takes", tool.input_schema)
            yield from _schema_lines(f"tool {tool.name} of {toolset} returns", tool.output_schema or {})


async def _list_tools(toolset: str) -> list[Any]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    with tempfile.TemporaryDirectory() as home:
        environment = {"HOME": home, "PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "casemate", "serve", "--toolset", toolset], env=environment, cwd=home
        )
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await session.initialize()
            return list((await session.list_tools()).tools)


def _exported() -> Iterator[str]:
    import casemate
    import casemate.sync

    for module in (casemate, casemate.sync):
        for name in module.__all__:
            yield from _named(f"{module.__name__}.{name}", getattr(module, name))


def _named(name: str, what: Any) -> Iterator[str]:
    if not inspect.isclass(what):
        yield f"name {name}{_signature(what)}"
        return
    yield f"name {name}{'' if issubclass(what, (dict, enum.Enum)) else _signature(what)}"
    for part in sorted({*dir(what)} | {one.name for one in _fields(what)}):
        if not part.startswith("_") and part not in dir(dict) and part not in dir(Exception):
            member = inspect.getattr_static(what, part, None)
            yield f"name {name}.{part}{_signature(getattr(what, part)) if callable(member) else ''}"


def _fields(what: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(what) if dataclasses.is_dataclass(what) else ()


def _signature(what: Any) -> str:
    try:
        return str(inspect.signature(what)) if callable(what) else ""
    except (TypeError, ValueError):
        return ""


def _lines_of(tree: Path) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.surface", "--print"]
    return subprocess.run(
        command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()


def main(arguments: list[str]) -> None:
    """Print the lines of this tree, or the lines that differ between two commits."""
    if arguments == ["--print"]:
        print("\n".join(lines()))
        return
    with tempfile.TemporaryDirectory() as folder:
        trees = []
        for commit in arguments:
            tree = Path(folder, commit)
            tree.mkdir(parents=True)
            packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
            subprocess.run(["tar", "-x", "-C", tree], input=packed.stdout, check=True)
            trees.append(tree)
        old, new = map(_lines_of, [*trees, ROOT][:2])
        differences = [
            line for line in difflib.unified_diff(old, new, n=0, lineterm="") if line[:2] not in ("--", "++", "@@")
        ]
        print("\n".join(differences) or "no difference")


if __name__ == "__main__":
    main(sys.argv[1:])
