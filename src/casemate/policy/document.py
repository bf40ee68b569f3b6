"""A policy file as values with their lines. YAML, TOML and JSON. Pure.

YAML uses the core schema (YAML 1.2, section 10.3) without custom tags, merge keys or guessed types: ``no``, ``1:30``
and dates are texts. A duplicate key in a mapping is an error in all three formats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from casemate.errors import InvalidArgument

Format = Literal["yaml", "toml", "json"]
Path = tuple[str | int, ...]

MOST_BYTES = 256 << 10  # of one file
_MOST_NODES = 20_000  # values, counted once for each alias
_MOST_DEPTH = 30
_FORMATS: Mapping[str, Format] = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}
_CORE = "tag:yaml.org,2002:"
_NUMBERS = re.compile(r"(?P<int>[-+]?[0-9]+)\Z|(?P<float>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)\Z")
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}


@dataclass(frozen=True, slots=True)
class PolicyDocument:
    name: str  # of the file in messages
    values: Mapping[str, Any]
    lines: Mapping[Path, int]  # the line, from 1, on which the value at each path begins

    def where(self, path: Path) -> str:
        """Return the place of the value at ``path``, or of its nearest container, such as ``policy.yaml:12``."""
        while path and path not in self.lines:
            path = path[:-1]
        line = self.lines.get(path)
        return self.name if line is None else f"{self.name}:{line}"


def format_of(file_name: str) -> Format:
    """Return the format for a file's suffix. Raises ``InvalidArgument``."""
    ending = file_name[file_name.rfind(".") :].lower() if "." in file_name else ""
    if ending not in _FORMATS:
        raise InvalidArgument("policy", f"{file_name!r}: its name must end with one of {', '.join(_FORMATS)}")
    return _FORMATS[ending]


def read_document(data: bytes, name: str, form: Format) -> PolicyDocument:
    """Read ``data``. Raises ``InvalidArgument`` with the file and, if known, the line."""
    if len(data) > MOST_BYTES:
        raise InvalidArgument("policy", f"{name}: is longer than {MOST_BYTES >> 10} KiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidArgument("policy", f"{name}:{line}: is not UTF-8") from None
    reader = {"yaml": _read_yaml, "toml": _read_toml, "json": _read_json}[form]
    try:
        values, lines = reader(text, name)
    except RecursionError:
        raise InvalidArgument("policy", f"{name}: is nested too deeply") from None
    if not isinstance(values, dict):
        raise InvalidArgument("policy", f"{name}: is not a mapping of keys to values")
    return PolicyDocument(name, values, lines)


def of_mapping(values: Mapping[str, Any]) -> PolicyDocument:
    """Return the document of a caller's mapping, without lines. Raises ``InvalidArgument``."""
    if not all(isinstance(key, str) for key in values):
        raise InvalidArgument("policy", "is not a mapping of names to values")
    return PolicyDocument("policy", dict(values), {})


# -- YAML


def _read_yaml(text: str, name: str) -> tuple[Any, dict[Path, int]]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Guesses no types: `_plain` applies the core schema."""

        yaml_implicit_resolvers: Any = {}  # noqa: RUF012 - as in its base

    try:
        node = yaml.compose(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = name if mark is None else f"{name}:{mark.line + 1}"
        raise InvalidArgument("policy", f"{place}: is not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise InvalidArgument("policy", f"{name}: is not YAML: {str(error).splitlines()[0]}") from None
    if node is None:
        return {}, {}
    reading = _Nodes(name)
    return reading.value(node, ()), reading.lines


class _Nodes:
    """Converts YAML nodes to values within bounds, with a copy for each alias."""

    def __init__(self, name: str) -> None:
        self.lines: dict[Path, int] = {}
        self._name = name
        self._count = 0

    def value(self, node: Any, path: Path) -> Any:
        """Convert ``node`` at ``path``. Raises ``InvalidArgument``."""
        self._count += 1
        if self._count > _MOST_NODES or len(path) > _MOST_DEPTH:
            self._refuse(
                node, f"is too large: more than {_MOST_NODES} values or {_MOST_DEPTH} levels, aliases included"
            )
        self.lines.setdefault(path, node.start_mark.line + 1)
        if node.tag == f"{_CORE}map" and node.id == "mapping":
            return self._read_mapping(node, path)
        if node.tag == f"{_CORE}seq" and node.id == "sequence":
            return [self.value(one, (*path, place)) for place, one in enumerate(node.value)]
        if node.tag == f"{_CORE}str" and node.id == "scalar":
            return node.value if node.style else _plain(node.value)
        self._refuse(node, f"the tag {node.tag!r} is not for policy files")
        raise AssertionError

    def _read_mapping(self, node: Any, path: Path) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.value(key_node, (*path, "?"))
            if not isinstance(key, str) or key == "<<":
                self._refuse(key_node, f"the key {key!r} is not a text" if key != "<<" else "merge keys are not read")
            if key in made:
                self._refuse(key_node, f"the key {key!r} stands twice in one mapping")
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            made[key] = self.value(value_node, (*path, key))
        return made

    def _refuse(self, node: Any, problem: str) -> None:
        raise InvalidArgument("policy", f"{self._name}:{node.start_mark.line + 1}: {problem}")


def _plain(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    found = _NUMBERS.match(text)
    if found is None or len(text) > 40:
        return text
    return int(text) if found["int"] else float(text)


# -- JSON


def _read_json(text: str, name: str) -> tuple[Any, dict[Path, int]]:
    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise InvalidArgument("policy", f"{name}: the key {twice!r} stands twice in one mapping")
        return made

    try:
        values = json.loads(text, object_pairs_hook=refuse_duplicates)
    except json.JSONDecodeError as error:
        raise InvalidArgument("policy", f"{name}:{error.lineno}: is not JSON: {error.msg}") from None
    except InvalidArgument:
        raise
    except ValueError as error:
        raise InvalidArgument("policy", f"{name}: is not JSON: {error}") from None
    try:
        return values, _read_yaml(text.replace("\t", " "), name)[1]  # JSON is YAML except for tabs between values
    except InvalidArgument:
        return values, {}


# -- TOML


def _read_toml(text: str, name: str) -> tuple[Any, dict[Path, int]]:
    import tomllib

    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line ([0-9]+)", str(error))
        place = f"{name}:{line[1]}" if line else name
        raise InvalidArgument("policy", f"{place}: is not TOML: {error}") from None
    return values, dict(_toml_lines(text))


def _toml_lines(text: str) -> Iterator[tuple[Path, int]]:
    """Yield each path with its line. A statement is the smallest number of lines that is valid TOML by itself."""
    table: Path = ()
    tables: dict[Path, int] = {}
    for line, statement, values in _toml_statements(text):
        path = _only_path(values)
        if statement.lstrip().startswith("["):
            table = _resolve_tables(path, tables)
            if statement.lstrip().startswith("[["):
                tables[table] = tables.get(table, -1) + 1
                table = (*table, tables[table])
            yield table, line
        else:
            for end in range(1, len(path) + 1):
                yield (*table, *path[:end]), line


def _toml_statements(text: str) -> Iterator[tuple[int, str, Any]]:
    import tomllib

    lines = text.splitlines(keepends=True)
    begin = 0
    for end, last in enumerate(lines, 1):
        if end - begin > 1 and last.rstrip().endswith(","):
            continue  # not a complete statement: avoids a try for each line of a long list
        statement = "".join(lines[begin:end])
        try:
            values = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        if values:
            yield begin + 1, statement, values
        begin = end


def _only_path(values: Any) -> Path:
    """Return the keys down to the statement's value, table, or element of an array of tables."""
    path: Path = ()
    while isinstance(values, dict) and len(values) == 1:
        key, values = next(iter(values.items()))
        path = (*path, key)
    return path


def _resolve_tables(path: Path, tables: Mapping[Path, int]) -> Path:
    """Return a header's ``path`` with the index of the last element of each array of tables in it."""
    made: Path = ()
    for place, key in enumerate(path):
        made = (*made, key)
        if made in tables and place < len(path) - 1:
            made = (*made, tables[made])
    return made
