"""``python -m tests.reference [FOLDER]`` writes the generated files of a repository.

These are the page of the public API (from docstrings), the page and the table of operations, and the parts of other
pages between the marks of `BLOCKS`. The command line reads the table, and reviews see every change of an operation.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import casemate
from casemate.api.keys_page import other_words, tables
from casemate.api.options import RunOptions, SandboxOptions, SessionOptions
from casemate.languages.catalogue import LANGUAGES, runtime_for
from casemate.model.limits import LimitOptions
from casemate.model.options import defaults_of, docs_of
from casemate.operations import PARTS
from casemate.operations.catalogue import Operation, catalogue
from casemate.operations.documents import type_named
from casemate.remote.facade import ConnectedSandbox
from casemate.remote.session import Files
from casemate.sessions.files import SessionFiles

PAGE, TABLE = Path("docs", "reference", "operations.md"), Path("src", "casemate", "operations", "table.json")
_BEGIN = """# Operations

All operations of casemate, by name. A service serves each as `POST /v1/` with dots as slashes; the command line, MCP
and Python have them too. Arguments and results are JSON. An argument that is not listed, or a value out of bounds, is
refused before anything happens. *agent* marks operations for agents and operators; the others are for operators only.
*approver* marks those that are also for agents through which a person approves. An agent sees only its own sessions,
runs and uploads, and a caller only its own plans. An operation marked *events* answers with a stream of events.

Files are given as `{"text": ...}`, `{"base64": ...}` or `{"handle": ...}` of an upload; they are read by name, of a
session or of a run. This page is generated: `python -m tests.reference` writes it, and
`src/casemate/operations/table.json`, which the command line reads.
"""


def table() -> str:
    """The table of operations as JSON: names, descriptions, audiences and schemas. Shared definitions occur once."""
    shared: dict[str, Any] = {}
    operations = {}
    for name, one in catalogue().items():
        params, result = one.params_schema(), one.result_schema()
        for schema in (params, result):
            shared |= {known: _bare(about) for known, about in schema.pop("$defs", {}).items()}
        operations[name] = {
            "audience": one.audience.value,
            "approver": one.approver,
            "description": one.description,
            "streams": one.streams,
            "params": _bare(params),
            "result": _bare(result),
        }
    return json.dumps({"operations": operations, "$defs": shared}, indent=1, sort_keys=True) + "\n"


def _bare(schema: Any) -> Any:
    """The schema without titles, which only repeat names."""
    if isinstance(schema, dict):
        return {name: _bare(one) for name, one in schema.items() if not (name == "title" and isinstance(one, str))}
    return [_bare(one) for one in schema] if isinstance(schema, list) else schema


def page() -> str:
    """The page of operations as Markdown: the purpose and the arguments of each."""
    return "\n".join([_BEGIN, *(_section(one) for one in catalogue().values())])


def options_table(definition: type) -> str:
    """A Markdown table of the options of a definition."""
    docs = docs_of(definition)
    rows = [
        f"| `{name}` | `{_default_text(default)}` | {docs[name]} |" for name, default in defaults_of(definition).items()
    ]
    return "\n".join(["| argument | unless given | meaning |", "|---|---|---|", *rows, ""])


def _default_text(default: object) -> str:
    return json.dumps(default) if isinstance(default, str) else repr(default)


PYTHON = Path("docs", "reference", "python.md")
_BEGIN_PYTHON = """# Python API

Every public name with its fields and methods, by their docstrings: `python -m tests.reference` writes this page.
[api.md](api.md) says how they belong together. `casemate.sync.Sandbox` has the same methods without `await`.

Types such as `Name`, `Names`, `Path`, `Port` and `Seconds` are plain values: `str`, lists of `str`, `int`, `float`. The
[operations](operations.md) have their bounds.
"""
_OF_THIS_PROCESS = {"approvals": "open", "packages": "prepare"}  # public methods that a service does not offer
_INTERNAL = {"Session": "show_packages record_open", "Run": "end forget", "Inject": "as_json read"}
_FUNCTIONS = ("allow_all", "widget")
_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$", re.MULTILINE)


def python_page() -> str:
    """The page of all public names as Markdown, classes first."""
    public = [(name, getattr(casemate, name)) for name in dir(casemate) if name[0].isupper()]
    errors = [one for one in public if isinstance(one[1], type) and issubclass(one[1], Exception)]
    classes = [one for one in public if isinstance(one[1], type) and one not in errors]
    sections = [_class_section(name, cls, _methods_of(name, cls)) for name, cls in classes]
    sections += [_class_section(*part) for part in _parts()]
    functions = [_marked(f"casemate.{name}", [], _routine(name, getattr(casemate, name))) for name in _FUNCTIONS]
    sections += ["## Functions\n", *functions]
    sections.append("## Errors\n")
    sections += [_class_section(name, cls, [], "###") for name, cls in errors]
    return "\n".join([_BEGIN_PYTHON, *sections])


def _parts() -> Iterator[tuple[str, type, list[str]]]:
    """The parts of a sandbox and a session: the expression for each, its class, and its public methods."""
    remote: Any = None
    sandbox = ConnectedSandbox(remote)
    found = {f"sandbox.{name}": (type_named(place), getattr(sandbox, name)) for name, place in PARTS.items()}
    for name, (cls, part) in {**found, "session.files": (SessionFiles, Files("", remote))}.items():
        known = {*dir(part), _OF_THIS_PROCESS.get(name.partition(".")[2])}
        yield name, cls, [one for one in _methods_of(cls.__name__, cls) if one in known]


def _methods_of(name: str, cls: type) -> list[str]:
    """The public methods of a class, including those of bases that are not public."""
    internal = _INTERNAL.get(name, "").split()
    bases = [one for one in cls.__mro__[1:] if one.__module__.startswith("casemate.")]
    kinds = [cls, *(one for one in bases if one.__name__ not in dir(casemate))]
    return [one for kind in kinds for one in vars(kind) if not one.startswith("_") and one not in internal]


def _marked(place: str, names: Sequence[str], text: str) -> str:
    """Between marks: there, packaging/site_pages.py has mkdocstrings write the object and its members."""
    return "\n".join([" ".join(["<!-- docstrings:", place, *names, "-->"]), text, "<!-- end -->\n"])


def _class_section(name: str, cls: type, names: Sequence[str], level: str = "##") -> str:
    """The section of a class: docstring, fields, properties, methods."""
    lines = [f"{level} `{name}`\n", _markdown(inspect.getdoc(cls) or ""), ""]
    described = re.findall(r"^ {4}(\w+): ", inspect.getdoc(cls) or "", re.MULTILINE)
    known = [*(one.name for one in fields(cls) if one.repr)] if is_dataclass(cls) else []
    if others := [one for one in known if one not in described and not one.startswith("_")]:
        lines += [f"{'Also' if described else 'Fields'}: {', '.join(f'`{one}`' for one in others)}.", ""]
    members = {one: inspect.getattr_static(cls, one) for one in names}
    for one, member in members.items():
        if isinstance(member, property | cached_property) and (about := inspect.getdoc(member)):
            lines.append(f"- `{one}`: {_markdown(about)}")
    lines += [""] if lines[-1] else []
    for one, member in members.items():
        if isinstance(member, staticmethod | classmethod) or inspect.isfunction(member):
            lines.append(_routine(one, getattr(cls, one), f"{name}."))
    shown = [one for one, member in members.items() if not inspect.ismemberdescriptor(member)]
    if name in dir(casemate):
        return _marked(f"casemate.{name}", shown, "\n".join(lines))
    return "\n".join([lines[0], _marked(f"{cls.__module__}.{cls.__qualname__}", shown, "\n".join(lines[1:]))])


def _routine(name: str, routine: Callable[..., Any], owner: str = "") -> str:
    doc = _markdown(inspect.getdoc(routine) or "")
    return f"### `{owner}{name}`\n\n```python\n{_signature(routine)}\n```\n\n{doc}\n"


def _signature(method: Callable[..., Any]) -> str:
    """The signature from the source. It names the class of the options instead of each option."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    node.body, node.decorator_list = [], []
    return ast.unparse(node).rstrip(":")


def _markdown(doc: str) -> str:
    """Convert a docstring in Google style. The entries of a section become a list."""
    doc = _SECTION.sub(r"**\1**\n", doc).replace("``", "`")
    doc = re.sub(r"\n {6,}", " ", doc)
    doc = re.sub(r":\w+:`([^`]+)`", r"`\1`", doc)
    doc = re.sub(r"^ {4}(\**\w+): ", r"- `\1`: ", doc, flags=re.MULTILINE)
    return re.sub(r"^ {4}", "", doc, flags=re.MULTILINE)


def surfaces_table() -> str:
    """A Markdown table of the surfaces on which each setting is tested and enforced."""
    from tests.settings.groups import ELSEWHERE, GROUPS, NOT_KEPT, NOT_OFFERED
    from tests.settings.surfaces import SURFACES

    tried = dict.fromkeys(setting for group in GROUPS.values() for setting in group.holds)
    notes: dict[str, int] = {}
    rows = []
    for setting in tried:
        cells = [
            f"[{notes.setdefault(why, len(notes) + 1)}]"
            if (why := NOT_KEPT.get((setting, surface)))
            else "-"
            if (setting, surface) in NOT_OFFERED
            else "yes"
            for surface in SURFACES
        ]
        rows.append(f"| `{setting}` | {' | '.join(cells)} |")
    places = [f"`{name}` ({place})" for name, place in ELSEWHERE.items()]
    return "\n".join([
        f"| setting | {' | '.join(SURFACES)} |", "|---" * (len(SURFACES) + 1) + "|", *rows, "",
        *(f"[{number}] {why}.\n" for why, number in notes.items()),
        f"Tested apart, as no program exceeds them by running: {', '.join(places)}.", "",
    ])  # fmt: skip


_API, _CONFIGURATION = Path("docs", "reference", "api.md"), Path("docs", "reference", "configuration.md")
_SETTINGS = Path("docs", "reference", "settings.md")


def hints_table() -> str:
    """A Markdown table of the warnings of `validate`."""
    rows = [
        f"| {language} | `{hint.calls.replace('|', chr(92) + '|')}` | {hint.why} | `{hint.code}` |"
        for language in LANGUAGES
        for hint in runtime_for(language).checker.hints
    ]
    return "\n".join(["| in | what | why | `code` |", "|---|---|---|---|", *rows, ""])


BLOCKS: Mapping[tuple[Path, str], Callable[[], str]] = {
    (_CONFIGURATION, "aliases: casemate.api.keys_page"): other_words,
    (_CONFIGURATION, "keys: casemate config reference"): tables,
    (_SETTINGS, "settings by surface: tests.settings"): surfaces_table,
    (Path("docs", "how-to", "validate.md"), "hints: casemate.languages"): hints_table,
    **{
        (_API, f"options: {one.__name__}"): partial(options_table, one)
        for one in (SandboxOptions, RunOptions, SessionOptions, LimitOptions)
    },
}


def with_blocks(path: Path, text: str) -> str:
    """The text of the page at ``path`` with the parts between its marks updated."""
    for (page_path, name), block in BLOCKS.items():
        if page_path == path:
            head, mark, rest = text.partition(f"<!-- {name} -->\n")
            text = head + mark + block() + rest[rest.index("<!-- end -->") :]
    return text


def write(root: Path) -> None:
    """Write all generated files into the repository at ``root``. Raises ``OSError``."""
    (root / PAGE).write_text(page(), encoding="utf-8")
    (root / PYTHON).write_text(python_page(), encoding="utf-8")
    (root / TABLE).write_text(table(), encoding="utf-8")
    for path in {path for path, _ in BLOCKS}:
        if (root / path).exists():
            (root / path).write_text(with_blocks(path, (root / path).read_text(encoding="utf-8")), encoding="utf-8")


def _section(one: Operation) -> str:
    marks = [one.audience.value, *(["events"] if one.streams else []), *(["approver"] if one.approver else [])]
    schema = one.params_schema()
    required = schema.get("required", [])
    rows = [
        f"| `{name}` | {_kind(about, schema)} | {_default(name, about, required)} | {about['description']} |"
        for name, about in schema["properties"].items()
    ]
    table = ["| argument | kind | default | meaning |", "|---|---|---|---|", *rows, ""] if rows else []
    return "\n".join([f"## `{one.name}`", "", f"*{', '.join(marks)}*. {one.description}", "", *table])


def _default(name: str, about: Mapping[str, Any], required: list[str]) -> str:
    return "" if name in required else f"`{json.dumps(about.get('default'))}`"


def _kind(about: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """The kind of a schema's values in a few words."""
    if "$ref" in about:
        return str(about["$ref"]).rpartition("/")[2]
    if "anyOf" in about:
        kinds = [_kind(one, schema) for one in about["anyOf"]]
        return ", or ".join(kind for kind in kinds if kind != "null")
    if "enum" in about:
        return ", ".join(f"`{one}`" for one in about["enum"])
    kind = str(about.get("type", "any value"))
    bounds = [f"{about['minimum']:g}"] if "minimum" in about else []
    bounds += [f"{about['maximum']:.15g}"] if "maximum" in about else []
    most = next((about[name] for name in ("maxLength", "maxItems", "maxProperties") if name in about), None)
    return kind + (f" {' to '.join(bounds)}" if bounds else "") + (f", at most {most}" if most else "")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
