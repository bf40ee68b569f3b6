"""``python -m casemate.operations [FOLDER]`` writes the reference into a repository.

That is the page of operations, their lock file, which makes any change of them visible in review, and in other pages
what stands between the marks of `BLOCKS`: keys of the configuration, options of calls, and methods by their docstrings.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from casemate.api.keys_page import other_words, tables
from casemate.api.options import RunOptions, SandboxOptions, SessionOptions
from casemate.api.sandbox import Sandbox
from casemate.model.limits import LimitOptions
from casemate.model.options import defaults_of, docs_of
from casemate.operations.catalogue import Operation, catalogue

PAGE, LOCK = Path("docs", "reference", "operations.md"), Path("operations.lock.json")
_BEGIN = """# Operations

Everything that can be asked of casemate, by name: in a service as `POST /v1/` with dots as slashes, on the command
line, by MCP and from Python. Arguments and results are JSON. An argument that is not listed is refused, and so is a
value out of bounds, before anything is done. Those marked *agent* are for agents and operators, the others for
operators alone; *approver* are also for agents through which a person approves. An agent sees only its own sessions,
runs and uploads; a plan is its caller's alone, whoever else asks. What *events* comes back from is a stream of them.

Files are given as `{"text": ...}`, `{"base64": ...}` or `{"handle": ...}` of an upload; they are read by name, of a
session or of a run. This page is generated: `python -m casemate.operations` writes it, and `operations.lock.json`.
"""


def lock() -> str:
    """Names, audiences and schemas, as JSON; what several schemas have in common is there once."""
    shared: dict[str, Any] = {}
    operations = {}
    for name, one in catalogue().items():
        params, result = one.params_schema(), one.result_schema()
        for schema in (params, result):
            shared |= {known: _bare(about) for known, about in schema.pop("$defs", {}).items()}
        operations[name] = {
            "audience": one.audience.value,
            "approver": one.approver,
            "streams": one.streams,
            "params": _bare(params),
            "result": _bare(result),
        }
    return json.dumps({"operations": operations, "$defs": shared}, indent=1, sort_keys=True) + "\n"


def _bare(schema: Any) -> Any:
    """Without titles, which only repeat names."""
    if isinstance(schema, dict):
        return {name: _bare(one) for name, one in schema.items() if not (name == "title" and isinstance(one, str))}
    return [_bare(one) for one in schema] if isinstance(schema, list) else schema


def page() -> str:
    """What each is for, and what it takes, as Markdown."""
    return "\n".join([_BEGIN, *(_section(one) for one in catalogue().values())])


def options_table(definition: type) -> str:
    """The options of a definition, as Markdown."""
    docs = docs_of(definition)
    rows = [
        f"| `{name}` | `{_default_text(default)}` | {docs[name]} |" for name, default in defaults_of(definition).items()
    ]
    return "\n".join(["| argument | unless given | meaning |", "|---|---|---|", *rows, ""])


def _default_text(default: object) -> str:
    return json.dumps(default) if isinstance(default, str) else repr(default)


def methods_of(cls: type) -> str:
    """The public methods that have docstrings in Google style, as Markdown."""
    methods = {name: getattr(cls, name) for name in vars(cls) if not name.startswith("_")}
    docs = {name: inspect.getdoc(method) or "" for name, method in methods.items() if inspect.isroutine(method)}
    return "\n".join(
        f"### `{cls.__name__}.{name}`\n\n```python\n{_signature(methods[name])}\n```\n\n{_markdown(doc)}\n"
        for name, doc in docs.items()
        if _SECTION.search(doc)
    )


_SECTION = re.compile(r"^(Args|Returns|Yields|Raises):$", re.MULTILINE)


def _signature(method: Callable[..., Any]) -> str:
    """As it is written, which names the definition of options and not each of them."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    node.body, node.decorator_list = [], []
    return ast.unparse(node).rstrip(":")


def _markdown(doc: str) -> str:
    """A docstring in Google style: what a section says is a list."""
    doc = _SECTION.sub(r"**\1**\n", doc).replace("``", "`")
    doc = re.sub(r"\n {6,}", " ", doc)
    doc = re.sub(r":\w+:`([^`]+)`", r"`\1`", doc)
    doc = re.sub(r"^ {4}(\**\w+): ", r"- `\1`: ", doc, flags=re.MULTILINE)
    return re.sub(r"^ {4}", "", doc, flags=re.MULTILINE)


_API, _CONFIGURATION = Path("docs", "reference", "api.md"), Path("docs", "reference", "configuration.md")
BLOCKS: Mapping[tuple[Path, str], Callable[[], str]] = {
    (_API, "methods: Sandbox"): partial(methods_of, Sandbox),
    (_CONFIGURATION, "aliases: casemate.api.keys_page"): other_words,
    (_CONFIGURATION, "keys: casemate config reference"): tables,
    **{
        (_API, f"options: {one.__name__}"): partial(options_table, one)
        for one in (SandboxOptions, RunOptions, SessionOptions, LimitOptions)
    },
}


def with_blocks(path: Path, text: str) -> str:
    """The text of the page at ``path`` with what stands between its marks as it is now."""
    for (page_path, name), block in BLOCKS.items():
        if page_path == path:
            head, mark, rest = text.partition(f"<!-- {name} -->\n")
            text = head + mark + block() + rest[rest.index("<!-- end -->") :]
    return text


def write(root: Path) -> None:
    """All of it, into the repository at ``root``. Raises ``OSError``."""
    (root / PAGE).write_text(page(), encoding="utf-8")
    (root / LOCK).write_text(lock(), encoding="utf-8")
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
    """A schema in a few words."""
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
