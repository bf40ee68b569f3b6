"""Prints answers of commands: JSON for programs, tables and lines for people."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from casemate.model.limits import LIMIT_BOUNDS, format_size

_BYTES = {"peak_memory", "memory_total", *(name for name, one in LIMIT_BOUNDS.items() if one.form == "size")}
_SPANS = {"age", "idle", "idle_timeout", "wall"}  # seconds
_MOMENTS = {"since", "expires"}  # seconds since 1970
_HANDLE = re.compile(r"\A[0-9a-f]{32}\Z")
_SHOWN = 12  # characters of a handle in a table; commands accept a prefix


def json_of(value: Any, indent: int | None = 2) -> str:
    """``value`` as ASCII JSON, which is always valid and has nothing that a terminal acts upon."""
    from casemate.operations.documents import sound

    return json.dumps(sound(value), indent=indent, allow_nan=False)


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print ``value`` as :func:`json_of` formats it."""
    sys.stdout.write(json_of(value, indent) + "\n")
    sys.stdout.flush()  # after an error the process ends without a flush


def print_done(_answer: object = None, *, is_json: bool) -> int:
    """Print null as JSON, else nothing, for an operation without an answer. Returns exit code 0."""
    if is_json:
        print_json(None)
    return 0


def print_value(value: Any, *, is_json: bool) -> int:  # noqa: ARG001 - people get JSON, too
    """Print ``value`` as JSON. Returns exit code 0."""
    print_json(value)
    return 0


def print_lines(lines: Iterable[str]) -> None:
    """Print lines that may hold untrusted text, with nothing that a terminal acts upon."""
    from casemate.surfaces.cli.inert import visible

    sys.stdout.writelines(f"{visible(line)}\n" for line in lines)


def print_answer(value: Any, lines: Iterable[str], *, is_json: bool) -> int:
    """Print ``value`` as JSON, or ``lines`` for people. Returns exit code 0."""
    if is_json:
        print_json(value)
    else:
        print_lines(lines)
    return 0


def table_of(
    columns: str = "", empty: str = "", row: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> Callable[..., int]:
    """Make a function that prints a list as JSON, or for people as a table of what ``row`` makes of each entry.

    ``columns``: by default those of the first row. ``empty``: printed on a terminal if there is no row."""

    def show(entries: Sequence[dict[str, Any]], *, is_json: bool) -> int:
        if is_json:
            print_json(entries)
        else:
            rows = [row(one) for one in entries]
            print_table(columns.split() or tuple(rows[0] if rows else ()), rows, empty or "The list is empty.")
        return 0

    return show


def print_document(document: Mapping[str, Any], *, is_json: bool) -> int:
    """Print a document as JSON, or a field per line for people. Returns exit code 0."""
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
    if name in _BYTES and isinstance(value, int):
        return format_size(value)
    if name in _SPANS and isinstance(value, int | float):
        return format_age(value)
    if name in _MOMENTS and isinstance(value, int | float):
        return format_moment(value)
    return _text(value)


def print_sound(settings: int, rules: int, warnings: Sequence[str], *, is_json: bool) -> int:
    """Report that a file is sound, with its counts and warnings. Returns exit code 0."""
    if is_json:
        print_json({"settings": settings, "rules": rules, "warnings": list(warnings)})
        return 0
    from casemate.surfaces.cli.failures import say

    for warning in warnings:
        say(warning)
    sys.stdout.write(f"sound: {settings} settings, {rules} rules, {len(warnings)} warnings\n")
    return 0


def print_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], empty: str) -> None:
    """Print rows by column name. A terminal gets a table with a head, or ``empty``; a program gets lines of fields
    separated by tabs, with tabs and newlines in fields escaped."""
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
    for number, column in enumerate(columns):  # people copy the first one, so it does not wrap
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


def format_moment(seconds: float) -> str:
    """The local date and time of a Unix time."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")


def format_age(seconds: float) -> str:
    """A time span in its largest unit: 42s, 7m, 3h, 2d."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def align_columns(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """``rows`` as indented lines with aligned columns."""
    from casemate.surfaces.cli.inert import visible

    cells = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield ("  " + "  ".join(padded)).rstrip()
