"""The catalogue of all tools at one moment: modules, sources (generated on use), problems, search and descriptions."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from casemate.tools.modules.generate import (
    PACKAGE,
    Readable,
    declarations,
    documentation,
    one_line,
    package_source,
    tool_source,
)
from casemate.tools.requests import Detail
from casemate.tools.schemas.schema import Document, Unreadable, read
from casemate.tools.schemas.types import module_names, package_names
from casemate.tools.schemas.validation import Validator
from casemate.tools.tool import Problem, Tool

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LONGEST_QUERY = 1_000
_MOST_WORDS = 32  # of a query
_SHORTEST_STEM = 3
_IN_NAME = 3.0  # weight of a word in a name; in a description it is 1


def rank(query: str, rows: Sequence[tuple[str, ...]]) -> list[int]:
    """The indexes of ``rows`` that match words of ``query``, best first. The last text of a row is its description, the
    others are names. Rare words weigh more."""
    wanted = list(dict.fromkeys(_words(query[:_LONGEST_QUERY])))[:_MOST_WORDS]
    places: dict[str, list[tuple[int, float]]] = {}
    for n, row in enumerate(rows):
        for words, weight in ((_words(" ".join(row[:-1])), _IN_NAME), (_words(row[-1]), 1.0)):
            for word in set(words):
                places.setdefault(word, []).append((n, weight))
    known = sorted(places)
    scores = [0.0] * len(rows)
    for word in wanted:
        hits: dict[int, float] = {}
        for other, fit in _alike(word, known, places):
            for n, weight in places[other]:
                hits[n] = max(hits.get(n, 0.0), fit * weight)
        rare = math.log(1 + len(rows) / (1 + len(hits)))
        for n, hit in hits.items():
            scores[n] += hit * rare
    return [n for n in sorted(range(len(rows)), key=lambda n: (-scores[n], n)) if scores[n] > 0]


def _alike(word: str, known: Sequence[str], places: Container[str]) -> Iterator[tuple[str, float]]:
    """The words of ``known``, which is sorted, that match ``word``, each with a score."""
    if word in places:
        yield word, 1.0
    stem = word[:-1] if word.endswith("s") and len(word) > 3 else word
    if len(stem) < _SHORTEST_STEM:
        return
    for n in range(bisect_left(known, stem), len(known)):
        if not known[n].startswith(stem):
            break
        yield known[n], 0.5
    for length in range(_SHORTEST_STEM, len(stem)):
        if stem[:length] in places:
            yield stem[:length], 0.5


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(_HUMP.sub(" ", text))]


MOST_FOUND = 20


class Catalogue:
    """``tools`` in order, with modules ``mcptools.<package>.<module>``. The first of equal names on the wire counts."""

    def __init__(self, tools: Iterable[Tool], servers: Iterable[str] = (), before: Catalogue | None = None) -> None:
        """``servers``: all of them, even those whose tools are not known yet, so that package names stay the same.
        ``before``: an earlier catalogue, whose unchanged tools are reused."""
        self._found: dict[str, dict[str, Readable]] = {}  # by package and module
        self.problems: list[tuple[str, Problem]] = []  # why tools are missing, by server
        self._made: dict[str, tuple[str, bool]] = {}  # generated sources
        by_server: dict[str, dict[str, Tool]] = {}
        for tool in tools:
            known = by_server.setdefault(tool.server, {})
            if tool.name in known:
                self._refuse(tool, "duplicate", "its server has another tool of the same name")
            else:
                known[tool.name] = tool
        self._packages = package_names(dict.fromkeys([*servers, *by_server]))
        for server, named in by_server.items():
            modules = module_names(named)
            readable = {modules[name]: self._read(tool, modules[name], before) for name, tool in named.items()}
            self._found[self._packages[server]] = {module: one for module, one in readable.items() if one is not None}

    def cached_source(self, module: str) -> tuple[str, bool] | None:
        """Like :meth:`source`, but None if the source is not generated yet."""
        return self._made.get(module)

    def source(self, module: str) -> tuple[str, bool] | None:
        """The source of ``module``, and whether it is a package; None for an unknown module."""
        root, _, rest = module.partition(".")
        package, _, name = rest.partition(".")
        if module not in self._made and root == PACKAGE and package in self._found:
            if not name:
                self._made[module] = self._package_source(package), True
            elif (readable := self._found[package].get(name)) is not None:
                self._made[module] = tool_source(readable), False
        return self._made.get(module)

    def modules(self, server: str) -> list[str]:
        """The names of a server's modules."""
        return list(self._found.get(self._packages.get(server, ""), ()))

    def by_path(self, path: str) -> Tool | None:
        """The tool that people write as ``server.tool``, with the names on the wire or those of its module."""
        for package, modules in self._found.items():
            for module, readable in modules.items():
                tool = readable.tool
                if path in (f"{package}.{module}", f"{tool.server}.{tool.name}", f"{PACKAGE}.{package}.{module}"):
                    return tool
        return None

    def list_rows(self) -> list[dict[str, Any]]:
        """Every tool: ``server`` and ``tool`` as on the wire, ``module``, and the first words of its description."""
        return [self._row(one) for modules in self._found.values() for one in modules.values()]

    def search(self, query: str, detail: Detail = "brief") -> tuple[str, list[dict[str, Any]]]:
        """The tools that match ``query`` best, as text and as rows; all tools for an empty query."""
        rows = self.list_rows()
        if not rows:
            return "There are no tools.", []
        found = rank(query, [(row["module"], row["tool"], row["about"]) for row in rows]) if query.strip() else None
        chosen = rows if found is None else [rows[n] for n in found[:MOST_FOUND]]
        if not chosen:
            return "No tool fits. An empty search lists all of them.", []
        return "\n".join(self._describe(row, detail) for row in chosen), chosen

    def describe(self, server: str, tool: str) -> str | None:
        """Everything that a program needs to call a tool; None for an unknown tool."""
        readable = self._readable(server, tool)
        return None if readable is None else self._describe(self._row(readable), "full")

    def package(self, runtime: Mapping[str, str]) -> dict[str, str]:
        """The package as files by path: those of ``runtime`` (`mcptools` itself, by name) and one for each tool."""
        files = {f"{PACKAGE}/{name}": text for name, text in runtime.items()}
        for package, modules in self._found.items():
            files[f"{PACKAGE}/{package}/__init__.py"] = self._package_source(package)
            for module in modules:
                source = self.source(f"{PACKAGE}.{package}.{module}")
                assert source is not None
                files[f"{PACKAGE}/{package}/{module}.py"] = source[0]
        return files

    def declarations(self) -> str:
        """The TypeScript declarations (``.d.ts``) of all tools."""
        return declarations(self._found)

    # --------------------------------------------------------------------------------------------------- inside

    def _readable(self, server: str, tool: str) -> Readable | None:
        modules = self._found.get(self._packages.get(server, ""), {})
        return next((one for one in modules.values() if one.tool.name == tool), None)

    def _read(self, tool: Tool, module: str, before: Catalogue | None) -> Readable | None:
        """Read a tool's schemas. Without an input schema it is refused; a bad output schema is ignored."""
        same = None if before is None else before._readable(tool.server, tool.name)
        if before is not None and same is not None and same.module == module and _is_same(same, tool):
            if (made := before._made.get(before._path(tool.server, module))) is not None:
                self._made[self._path(tool.server, module)] = made
            return same
        try:
            parameters = read(tool.input_schema)
            Validator(tool.input_schema, parameters)  # raises if arguments cannot be validated
        except Unreadable as error:
            self._refuse(tool, error.code, f"its input schema cannot be used: {error}")
            return None
        return Readable(
            tool, module, parameters, self._describe_result(tool), None if tool.samples is None else read(tool.samples)
        )

    def _describe_result(self, tool: Tool) -> Document | None:
        try:
            return None if tool.output_schema is None else read(tool.output_schema)
        except Unreadable as error:
            self._refuse(tool, error.code, f"its output schema is ignored: {error}")
            return None

    def _refuse(self, tool: Tool, code: str, message: str) -> None:
        self.problems.append((tool.server, Problem(tool.name, code, message)))

    def _package_source(self, package: str) -> str:
        modules = {module: readable.tool for module, readable in self._found[package].items()}
        server = next(server for server, name in self._packages.items() if name == package)
        return package_source(server, package, modules)

    def _row(self, readable: Readable) -> dict[str, Any]:
        tool = readable.tool
        about = one_line(tool.description or tool.title, 300)
        module = self._path(tool.server, readable.module)
        return {"server": tool.server, "tool": tool.name, "module": module, "about": about}

    def _path(self, server: str, module: str) -> str:
        return f"{PACKAGE}.{self._packages[server]}.{module}"

    def _describe(self, row: Mapping[str, Any], detail: Detail) -> str:
        if detail == "names":
            return str(row["module"])
        if detail == "brief":
            return f"{row['module']}: {one_line(row['about'], 160)}".rstrip(": ")
        readable = self._readable(row["server"], row["tool"])
        assert readable is not None
        return f"from {row['module']} import run\n\n{documentation(readable)}\n"


def _is_same(read: Readable, tool: Tool) -> bool:
    """Whether reading ``tool`` would give ``read`` again, problems included. Schemas are compared by identity, because
    equal ones may differ, as true and 1 do."""
    known = read.tool
    return (
        known.input_schema is tool.input_schema
        and known.output_schema is tool.output_schema
        and (tool.output_schema is None or read.result is not None)
        and (known.description, known.title, known.samples) == (tool.description, tool.title, tool.samples)
    )
