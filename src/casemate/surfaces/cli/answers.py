"""How the answer of a command looks: JSON for programs, tables and lines for people."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from casemate.model.limits import format_size

if TYPE_CHECKING:
    from casemate.errors import CasemateError


_SIZES = {"memory", "output", "full_output", "disk", "peak_memory", "memory_total"}  # fields that are bytes
_SPANS = {"age", "idle", "idle_timeout", "wall"}  # seconds
_MOMENTS = {"since", "expires"}  # seconds since 1970
_HANDLE = re.compile(r"\A[0-9a-f]{32}\Z")
_SHOWN = 12  # characters of a handle that people see in a table; the beginning of one is enough


def json_of(value: Any, indent: int | None = 2) -> str:
    """``value`` as JSON in ASCII: nothing in it is invalid or acts upon a terminal."""
    from casemate.operations.documents import sound

    return json.dumps(sound(value), indent=indent, allow_nan=False)


def print_json(value: Any, indent: int | None = 2) -> None:
    """``value`` as :func:`json_of` has it."""
    sys.stdout.write(json_of(value, indent) + "\n")
    sys.stdout.flush()  # the process ends without, after an error


def print_error(error: CasemateError) -> None:
    """An error of casemate's own, which programs tell from an execution by its status."""
    said = {"kind": error.kind, "message": error.message, "remediation": error.remediation}
    print_json({"status": "error", **said})


def print_done(*, is_json: bool) -> int:
    """That what was asked for is done and has no answer: null for programs, else nothing; the exit code, 0."""
    if is_json:
        print_json(None)
    return 0


def print_lines(lines: Iterable[str]) -> None:
    """Lines of casemate's own, in which strangers' texts may be: nothing in them acts upon a terminal."""
    from casemate.surfaces.cli.inert import visible

    sys.stdout.writelines(f"{visible(line)}\n" for line in lines)


def print_answer(value: Any, lines: Iterable[str], *, is_json: bool) -> int:
    """``value`` for programs, ``lines`` for people; the exit code, 0."""
    if is_json:
        print_json(value)
    else:
        print_lines(lines)
    return 0


def print_rows(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    empty: str = "",
    *,
    is_json: bool,
    row: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> int:
    """``rows`` for programs, and for people a table of what ``row`` makes of each; the exit code, 0."""
    if is_json:
        print_json(rows)
    else:
        print_table(columns, [row(one) for one in rows], empty)
    return 0


def print_document(document: Mapping[str, Any], *, is_json: bool) -> int:
    """A document as it is for programs, and for people a field in each line; the exit code, 0."""
    return print_answer(document, _lines_of(document), is_json=is_json)


def _lines_of(document: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in document.items():
        title = name.replace("_", " ")
        if isinstance(value, dict) and value:
            yield f"{indent}{title}:"
            yield from _lines_of(value, indent + "  ")
        elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            yield f"{indent}{title}:"
            for one in value:
                yield f"{indent}  " + ", ".join(f"{key} {_text(part)}" for key, part in one.items())
        else:
            yield f"{indent}{title}: {_for_people(name, value)}"


def _for_people(name: str, value: Any) -> str:
    """A field's value in units that people read."""
    if name in _SIZES and isinstance(value, int):
        return format_size(value)
    if name in _SPANS and isinstance(value, int | float):
        return format_age(value)
    if name in _MOMENTS and isinstance(value, int | float):
        return datetime.fromtimestamp(value).astimezone().isoformat(sep=" ", timespec="seconds")
    return _text(value)


def print_sound(settings: int, rules: int, warnings: Sequence[str], *, is_json: bool) -> int:
    """Say of a file that it is sound, how much is in it, and what was noticed; the exit code, 0."""
    if is_json:
        print_json({"settings": settings, "rules": rules, "warnings": list(warnings)})
        return 0
    from casemate.surfaces.cli.failures import say

    for warning in warnings:
        say(warning)
    sys.stdout.write(f"sound: {settings} settings, {rules} rules, {len(warnings)} warnings\n")
    return 0


def print_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], empty: str) -> None:
    """Rows by the names of their columns. A person at a terminal gets a table with a head, or the words ``empty``;
    a program gets lines of fields with tabs between, in which tabs and newlines are escapes."""
    from casemate.surfaces.cli.inert import visible

    cells = [[visible(_text(row.get(column))) for column in columns] for row in rows]
    if not sys.stdout.isatty():
        sys.stdout.writelines("\t".join(line) + "\n" for line in cells)
    elif not cells:
        sys.stdout.write(f"{empty}\n")
    else:
        _print_for_people(columns, cells)


def _print_for_people(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):  # the first is what a person copies
        table.add_column(column.upper().replace("_", " "), overflow="fold", no_wrap=number == 0)
    for line in cells:
        table.add_row(*(Text(_HANDLE.sub(lambda found: found[0][:_SHOWN], one)) for one in line))
    Console(highlight=False).print(table)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "-"
    return str(value)


def format_age(seconds: float) -> str:
    """A span of time, in its largest unit: 42s, 7m, 3h, 2d."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def align_columns(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """``rows`` as indented lines whose columns stand below each other."""
    from casemate.surfaces.cli.inert import visible

    cells = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield ("  " + "  ".join(padded)).rstrip()
