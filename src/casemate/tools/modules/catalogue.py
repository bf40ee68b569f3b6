"""All tools of one moment: their modules and sources, problems, and what search and describe say. Pure.

A catalogue is made anew when servers or tools change; sources are made when they are first asked for.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from casemate.tools.modules.generate import (
    PACKAGE,
    Readable,
    declarations,
    documentation,
    one_line,
    package_source,
    tool_source,
)
from casemate.tools.schemas.schema import Document, Unreadable, read
from casemate.tools.schemas.types import module_names, package_names
from casemate.tools.schemas.validation import Validator
from casemate.tools.tool import Problem, Tool

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LONGEST_QUERY = 1_000
_MOST_WORDS = 32  # of a query
_SHORTEST_STEM = 3
_IN_NAME = 3.0  # a word of a name tells more than one of a description


def rank(query: str, rows: Sequence[tuple[str, ...]]) -> list[int]:
    """The numbers of the ``rows`` that have any word of ``query`` (or begin with it), best first.

    The last text of a row is its description, those before are its names. A word that few rows have counts more; of a
    query with very many words the first ones count.
    """
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
    """Those of the ``known`` words, which are in order, that ``word`` fits, and how well."""
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


Detail = Literal["names", "brief", "full"]
MOST_FOUND = 20


class Catalogue:
    """``tools`` in order; of two with the same names on the wire the first counts. ``problems``: why others are
    missing.

    Modules are ``mcptools.<package>.<module>``, one to one to the names on the wire.
    """

    def __init__(self, tools: Iterable[Tool], servers: Iterable[str] = (), before: Catalogue | None = None) -> None:
        """``servers``: all that there are, also those whose tools are not known yet: no name changes with them.
        ``before``: another catalogue, of which what has not changed is taken."""
        found: dict[str, dict[str, Readable]] = {}
        self.problems: list[tuple[str, Problem]] = []
        self._validators: dict[tuple[str, str], Validator] = {}
        self._sources: dict[int, str] = {}  # by what was read of a tool, which is kept
        self._made: dict[str, tuple[str, bool]] = {}
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
            found[self._packages[server]] = {module: one for module, one in readable.items() if one is not None}
        self._found = found

    def cached_source(self, module: str) -> tuple[str, bool] | None:
        """As :meth:`source`, at once: None, too, where it was not asked for before."""
        return self._made.get(module)

    def source(self, module: str) -> tuple[str, bool] | None:
        """The source of ``module``, and whether it is a package; None where there is none of that name."""
        found = self._source_of(module)
        if found is not None:
            self._made[module] = found
        return found

    def _source_of(self, module: str) -> tuple[str, bool] | None:
        root, _, rest = module.partition(".")
        package, _, name = rest.partition(".")
        if root != PACKAGE or package not in self._found:
            return None
        if not name:
            return self._package_source(package), True
        readable = self._found[package].get(name)
        if readable is None:
            return None
        if id(readable) not in self._sources:
            self._sources[id(readable)] = tool_source(readable)
        return self._sources[id(readable)], False

    def modules(self, server: str) -> list[str]:
        """The names of a server's modules."""
        return list(self._found.get(self._packages.get(server, ""), ()))

    def find(self, server: str, tool: str) -> Tool | None:
        """The tool with exactly these names on the wire."""
        readable = self._readable(server, tool)
        return None if readable is None else readable.tool

    def validator(self, server: str, tool: str) -> Validator:
        """What decides whether arguments are the tool's. Raises ``KeyError`` where there is no such tool."""
        return self._validators[server, tool]

    def by_path(self, path: str) -> Tool | None:
        """The tool that people call ``server.tool``, by its names on the wire or those of its module."""
        for package, modules in self._found.items():
            for module, readable in modules.items():
                tool = readable.tool
                if path in (f"{package}.{module}", f"{tool.server}.{tool.name}", f"{PACKAGE}.{package}.{module}"):
                    return tool
        return None

    def list_rows(self) -> list[dict[str, Any]]:
        """Every tool: ``server`` and ``tool`` as on the wire, ``module``, and the first words of its description."""
        return [self._row(package, one) for package, modules in self._found.items() for one in modules.values()]

    def search(self, query: str, detail: Detail = "brief") -> tuple[str, list[dict[str, Any]]]:
        """What fits ``query`` best, as text and as rows; everything (its names) for an empty one."""
        rows = self.list_rows()
        if not rows:
            return "There are no tools.", []
        found = rank(query, [(row["module"], row["tool"], row["about"]) for row in rows]) if query.strip() else None
        chosen = rows if found is None else [rows[n] for n in found[:MOST_FOUND]]
        if not chosen:
            return "No tool fits. An empty search lists all of them.", []
        wanted = detail if detail in get_args(Detail) else "brief"
        return "\n".join(self._describe(row, wanted) for row in chosen), chosen

    def describe(self, server: str, tool: str) -> str | None:
        """All that a program needs to know in order to call it."""
        readable = self._readable(server, tool)
        return None if readable is None else self._describe(self._row(self._packages[server], readable), "full")

    def package(self, runtime: Mapping[str, str]) -> dict[str, str]:
        """The package as files, by path: ``runtime`` (the files of `mcptools` itself, by name) and every tool."""
        files = {f"{PACKAGE}/{name}": text for name, text in runtime.items()}
        for package, modules in self._found.items():
            files[f"{PACKAGE}/{package}/__init__.py"] = self._package_source(package)
            for module in modules:
                source = self.source(f"{PACKAGE}.{package}.{module}")
                assert source is not None
                files[f"{PACKAGE}/{package}/{module}.py"] = source[0]
        return files

    def declarations(self) -> str:
        """The same for TypeScript: the text of a ``.d.ts``."""
        return declarations(self._found)

    # --------------------------------------------------------------------------------------------------- inside

    def _readable(self, server: str, tool: str) -> Readable | None:
        modules = self._found.get(self._packages.get(server, ""), {})
        return next((one for one in modules.values() if one.tool.name == tool), None)

    def _read(self, tool: Tool, module: str, before: Catalogue | None) -> Readable | None:
        """Without its arguments' schema a tool cannot be called; without its result's it gives what it gives."""
        same = None if before is None else before._readable(tool.server, tool.name)
        if before is not None and same is not None and same.module == module and _is_same(same, tool):
            self._validators[tool.server, tool.name] = before._validators[tool.server, tool.name]
            if (source := before._sources.get(id(same))) is not None:
                self._sources[id(same)] = source
            return same
        try:
            parameters = read(tool.input_schema)
            self._validators[tool.server, tool.name] = Validator(tool.input_schema, parameters)
        except Unreadable as error:
            self._refuse(tool, error.code, f"its input schema cannot be used: {error}", error.where)
            return None
        return Readable(
            tool, module, parameters, self._describe_result(tool), None if tool.samples is None else read(tool.samples)
        )

    def _describe_result(self, tool: Tool) -> Document | None:
        try:
            return None if tool.output_schema is None else read(tool.output_schema)
        except Unreadable as error:
            self._refuse(tool, error.code, f"its output schema is ignored: {error}", error.where)
            return None

    def _refuse(self, tool: Tool, code: str, message: str, where: str = "") -> None:
        self.problems.append((tool.server, Problem(tool.name, code, message, where)))

    def _package_source(self, package: str) -> str:
        modules = {module: readable.tool for module, readable in self._found[package].items()}
        server = next(server for server, name in self._packages.items() if name == package)
        return package_source(server, package, modules)

    def _row(self, package: str, readable: Readable) -> dict[str, Any]:
        tool = readable.tool
        about = one_line(tool.description or tool.title, 300)
        module = f"{PACKAGE}.{package}.{readable.module}"
        return {"server": tool.server, "tool": tool.name, "module": module, "about": about}

    def _describe(self, row: Mapping[str, Any], detail: str) -> str:
        if detail == "names":
            return str(row["module"])
        if detail == "brief":
            return f"{row['module']}: {one_line(row['about'], 160)}".rstrip(": ")
        readable = self._readable(row["server"], row["tool"])
        assert readable is not None
        return f"from {row['module']} import run\n\n{documentation(readable)}\n"


def _is_same(read: Readable, tool: Tool) -> bool:
    """Whether reading ``tool`` would give just that, problems included. Only of the very same schemas: equal ones may
    differ, as true and 1 do."""
    known = read.tool
    return (
        known.input_schema is tool.input_schema
        and known.output_schema is tool.output_schema
        and (tool.output_schema is None or read.result is not None)
        and (known.description, known.title, known.samples) == (tool.description, tool.title, tool.samples)
    )
