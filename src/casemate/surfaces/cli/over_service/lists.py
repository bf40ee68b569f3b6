"""What commands that list something have in common: filters, and handles alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from cyclopts import Parameter

from casemate.errors import InvalidArgument
from casemate.surfaces.cli.answers import print_json, print_lines
from casemate.surfaces.cli.over_service.connection import Asked

Filter = Annotated[tuple[str, ...], Parameter(name=("--filter", "-f"), negative=(), allow_leading_hyphen=True)]
Quiet = Annotated[bool, Parameter(name=("--quiet", "-q"), negative=())]
_NAMESPACE = "namespace"  # whose list is asked for, where the others choose from it


def wanted(filters: Sequence[str], asked: Asked) -> tuple[Asked, dict[str, list[str]] | None]:
    """What KEY=VALUE filters ask for: whom to ask, and the ``filters`` of the operation. Raises ``InvalidArgument``."""
    chosen: dict[str, list[str]] = {}
    for one in filters:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise InvalidArgument("filters", f"{one[:100]!r} is not KEY=VALUE")
        chosen.setdefault(key, []).append(value)
    for namespace in chosen.pop(_NAMESPACE, ()):
        if asked.namespace not in (None, namespace):
            raise InvalidArgument("filters", f"one namespace at a time: {asked.namespace!r} is asked for already")
        asked = replace(asked, namespace=namespace)
    return asked, chosen or None


def print_listed(rows: Sequence[Mapping[str, Any]], handle: str, *, quiet: bool) -> None:
    """Rows for programs: as JSON, or with ``quiet`` their handles alone, one a line."""
    if quiet:
        print_lines(row[handle] for row in rows)
    else:
        print_json(rows)
