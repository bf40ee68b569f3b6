"""The rules of the project that no linter knows: sizes, names, who may use what, and documents that match the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests.structure import ROOT, SOURCE, files, lines_of, nodes_of, tree_of

import casemate

FILES = files()
GUEST_SUFFIXES = (".py", ".cjs", ".mjs", ".js", ".sh")

MOST_FILE_LINES = 500
MOST_FUNCTION_LINES = 60
BROAD_EXCEPTS_PER_THOUSAND_LINES = 1
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "manager", "managers", "common", "misc"}

# What may be used in some folders only: dotted name -> (folders, reason).
PLACES = {
    "subprocess": (
        {"walls", "languages", "tools/connections", "packages", "surfaces/clients", "audit/outside"},
        "code runs behind a wall; only walls, searches for interpreters, MCP servers and a question to pip start any, "
        "`casemate install` tries casemate itself, and the operator's command takes signed heads of the record",
    ),
    "os.environ": (
        {"surfaces", "api", "walls", "languages", "tools/connections", "remote"},
        "what a run depends on is read once, where it is configured, and handed on as a value; a server's reaper "
        "passes its own on",
    ),
    "os.getenv": ({"surfaces", "api", "walls", "languages"}, "as os.environ"),
    "os.fork": ({"supervisor"}, "the host process has threads: it starts others by exec only"),
    "ctypes": (
        {"supervisor", "walls", "tools/connections"},
        "system calls are made where cells are made, and where an MCP server's processes are kept together",
    ),
    "unicodedata.category": ({"policy/shown"}, "casemate.visible decides what does not show; there marks are counted"),
    "sqlite3": ({"audit", "surfaces/http"}, "the record has one writer, and so has what outlives the service"),
}

DECISIONS = [
    (
        "is_private is_global is_link_local is_loopback is_multicast is_reserved is_unspecified is_site_local "
        "ipv4_mapped sixtofour teredo",
        "model/addresses",
    ),
    ("isprintable", "visible"),
]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def folder_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def is_in(path: Path, folders: set[str]) -> bool:
    place = path.relative_to(SOURCE).with_suffix("").as_posix()
    return any(f"{place}/".startswith(f"{folder}/") for folder in folders)


def functions_of(nodes: Iterable[ast.AST]) -> Iterator[Function]:
    return (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def length_of(function: Function) -> int:
    """Lines from ``def`` to the end, docstring excluded."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        docstring = function.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines


def imports_of(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Every absolute import; relative ones stay within their package."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def names_used(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Everything imported, and every ``module.attribute`` read."""
    yield from imports_of(nodes)
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.lineno, f"{node.value.id}.{node.attr}"


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Whether it catches everything and does not end by raising."""
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    broad = any(n is None or (isinstance(n, ast.Name) and n.id in {"Exception", "BaseException"}) for n in named)
    return broad and not isinstance(handler.body[-1], ast.Raise)


def promised_methods() -> set[str]:
    """Names of methods that a Protocol or an abstract class documents: who implements them need not repeat it."""
    return {
        method.name
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
        if node.name == "Visitor" or any(ast.unparse(base).startswith(("Protocol", "ABC")) for base in node.bases)
        for method in functions_of(ast.walk(node))
        if ast.get_docstring(method)
    }


def public_without_docstring(tree: ast.Module, promised: set[str]) -> Iterator[str]:
    """Public functions and methods, but for properties (their names say what they are) and promised methods."""

    def search(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from search(node.body, f"{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
                exempt = marks & {"property", "override", "overload"} or (prefix and node.name in promised)
                if ast.get_docstring(node) is None and not exempt:
                    yield f"{prefix}{node.name}"

    return search(tree.body, "")


def texts_in(expressions: list[ast.expr]) -> set[str]:
    """Every literal text in them that could be a code."""
    constants = [node.value for e in expressions for node in ast.walk(e) if isinstance(node, ast.Constant)]
    return {value for value in constants if isinstance(value, str) and value.isidentifier()}


def test_no_source_file_is_longer_than_a_reader_can_hold() -> None:
    guests = [path for path in SOURCE.rglob("*") if path.suffix in GUEST_SUFFIXES and path.parent.name != "vendor"]
    lengths = {relative(path): lines_of(path) for path in {*FILES, *guests}}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_FILE_LINES} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{relative(path)}:{function.lineno} {function.name}": length_of(function)
        for path in FILES
        for function in functions_of(nodes_of(path))
        if length_of(function) > MOST_FUNCTION_LINES
    }
    assert long == {}


def test_hardly_anything_swallows_every_exception() -> None:
    host = [
        path for path in FILES if folder_of(path) != "guest"
    ]  # a guest asks the user's objects, which raise anything
    lines = sum(map(lines_of, host))
    broad = [
        f"{relative(path)}:{node.lineno}"
        for path in host
        for node in nodes_of(path)
        if isinstance(node, ast.ExceptHandler) and is_broad(node)
    ]
    allowed = max(1, round(lines / 1000 * BROAD_EXCEPTS_PER_THOUSAND_LINES))
    assert len(broad) <= allowed, f"{len(broad)} in {lines} lines: {broad}"


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [relative(path) for path in SOURCE.rglob("*") if path.stem.strip("_") in VAGUE_NAMES] == []


def test_nothing_is_left_unfinished() -> None:
    marks = []
    for path in FILES:
        with tokenize.open(path) as file:
            comments = [t for t in tokenize.generate_tokens(file.readline) if t.type == tokenize.COMMENT]
        marks += [(path, t.start[0]) for t in comments if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", t.string)]
        raised = [node for node in nodes_of(path) if isinstance(node, ast.Raise) and node.exc]
        marks += [(path, node.lineno) for node in raised if "NotImplementedError" in ast.unparse(node)]
    assert marks == []


def test_every_public_function_says_what_it_does() -> None:
    promised = promised_methods()
    silent = [
        f"{relative(path)} {name}" for path in FILES for name in public_without_docstring(tree_of(path), promised)
    ]
    assert silent == []


# Names of arguments that Python alone has; `model/foreign.py` answers those who call it from Python.
PYTHON_CALL = re.compile(r"\b(Sandbox|Limits)\(|\b(approve|allow_local|allowed_domains|network|limits|audit|vault)=")


def test_no_error_names_a_call_that_only_python_has() -> None:
    said = (
        (path, node.lineno, node.value)
        for path in FILES
        if folder_of(path) not in {"model", "guest", "supervisor"}
        for call in nodes_of(path)
        if isinstance(call, ast.Call)
        for node in ast.walk(call)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    found = {f"{relative(path)}:{line}: {text}" for path, line, text in said if PYTHON_CALL.search(text)}
    assert not found


@pytest.mark.parametrize("name", sorted(PLACES))
def test_what_needs_care_is_used_only_where_it_belongs(name: str) -> None:
    folders, reason = PLACES[name]
    elsewhere = [
        f"{relative(path)}:{line} {used}"
        for path in FILES
        if not is_in(path, {*folders, "guest"})
        for line, used in names_used(nodes_of(path))
        if used == name or used.startswith(f"{name}.")
    ]
    assert elsewhere == [], reason


@pytest.mark.parametrize(("names", "module"), DECISIONS)
def test_what_is_decided_in_one_module_is_decided_in_no_other(names: str, module: str) -> None:
    elsewhere = [
        f"{relative(path)}:{node.lineno} {node.attr}"
        for path in FILES
        if not is_in(path, {module, "guest", "supervisor"})
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr in names.split()
        # Of ASCII all that prints is plain.
        if not (node.attr == "isprintable" and "isascii()" in path.read_text().splitlines()[node.lineno - 1])
    ]
    assert elsewhere == [], f"casemate/{module}.py decides it"


@pytest.mark.parametrize("zone", ["supervisor", "guest"])
def test_a_trust_zone_of_its_own_needs_the_standard_library_only(zone: str) -> None:
    foreign = [
        f"{relative(path)}:{line} {name}"
        for path in FILES
        if folder_of(path) == zone
        for line, name in imports_of(nodes_of(path))
        if name.partition(".")[0] not in sys.stdlib_module_names
        and not name.startswith(("casemate.supervisor", "_casemate"))  # itself; in a cell the guest's name is _casemate
        # A session of Python runs on the environment's IPython, and what looks at its steps reads them as that does.
        and not (path.name.startswith(("session", "check")) and name.partition(".")[0] in {"IPython", "traitlets"})
        # What reads pages runs on casemate's own environment, with the extra ``web``.
        and not (
            path.name.startswith("web") and name.partition(".")[0] in {"trafilatura", "html2text", "pypdfium2", "ddgs"}
        )
    ]
    assert foreign == []


def test_nobody_on_the_host_imports_what_runs_in_a_cell() -> None:
    importers = [
        f"{relative(path)}:{line}"
        for path in FILES
        for line, name in imports_of(nodes_of(path))
        if name.startswith("casemate.guest")
    ]
    assert importers == []


def test_what_says_that_it_is_pure_is_held_to_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    pure = next(contract["source_modules"] for contract in contracts if contract["id"] == "pure")
    unheld = [
        name
        for path in FILES
        if re.search(r"\bPure\.", ast.get_docstring(tree_of(path)) or "")
        and not {"os", "signal", "urllib"} & {used.partition(".")[0] for _, used in imports_of(nodes_of(path))}
        for name in [".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")]
        if not any(f"{name}.".startswith(f"{held}.") for held in pure)
    ]
    assert unheld == []


def test_importing_casemate_loads_neither_asyncio_nor_pydantic() -> None:
    program = "import casemate, sys; print(*sorted({'asyncio', 'pydantic', 'cyclopts', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_sandbox_is_there_before_asyncio_and_tls_are_loaded() -> None:
    """They load while the supervisor starts: together they take longer than a bare interpreter."""
    program = (
        "import casemate, sys; casemate.Sandbox; print(*sorted({'asyncio', 'ssl', 'tempfile'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_client_of_a_service_loads_without_what_only_linux_has() -> None:
    only = ("O_PATH", "O_TMPFILE", "memfd_create", "pidfd_open", "eventfd", "sched_getaffinity", "getresuid", "splice")
    program = f"""
import os, select, socket
for name in {only}: delattr(os, name)
del select.epoll, socket.AF_NETLINK, socket.SO_PEERCRED
import casemate
assert callable(casemate.Sandbox.connect)
import casemate.remote.facade
"""
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)


@pytest.mark.parametrize("name", dir(casemate))
def test_every_public_name_can_be_had_and_is_documented(name: str) -> None:
    assert getattr(casemate, name) is not None
    pages = (ROOT / "docs" / "reference" / page for page in ("api.md", "python.md"))
    assert any(f"`{name}" in page.read_text(encoding="utf-8") for page in pages)


def test_every_reason_for_having_no_wall_is_documented() -> None:
    walls = (ROOT / "docs" / "explanation" / "walls.md").read_text(encoding="utf-8")
    reasons: set[str] = set()
    for call in (node for path in FILES for node in nodes_of(path) if isinstance(node, ast.Call)):
        maker = ast.unparse(call.func).rpartition(".")[2]
        if maker == "WallUnavailable":
            reasons |= texts_in([keyword.value for keyword in call.keywords if keyword.arg == "reason"])
        elif maker == "Refusal":
            reasons |= texts_in(call.args[:1])
    assert {reason for reason in reasons if f"`{reason}`" not in walls} == set()


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]


def in_documents(pattern: str) -> Iterator[tuple[Path, str]]:
    """What matches ``pattern`` in any document, with the document."""
    for path in documents():
        yield from ((path, match) for match in re.findall(pattern, path.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_link_in_a_document_leads_somewhere() -> None:
    links = in_documents(r"\]\((?!https?:|mailto:|#)([^)#]+)")
    assert [f"{relative(path)}: {link}" for path, link in links if not (path.parent / link).exists()] == []


def test_no_document_holds_both_sides_of_a_merge() -> None:
    assert list(in_documents(r"^(?:<{7}|>{7}) .*")) == []


def test_every_source_file_that_a_document_names_exists() -> None:
    names = in_documents(r"`((?:src|tests|benchmarks|examples|docs)/[\w./-]+)`")
    assert [f"{relative(path)}: {name}" for path, name in names if not (ROOT / name).exists()] == []


def test_the_readme_names_the_command_that_ci_runs() -> None:
    assert "\n./test\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1] == "exec ./test"


def test_the_readme_shows_the_example_that_is_run() -> None:
    example = (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")
    assert f"```python\n{example}```\n" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_cells_of_tables_are_short(page: Path) -> None:
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert [cell for row in rows for cell in re.split(r"(?<!\\)\|", row) if len(cell) > 300] == []


def test_every_cause_code_is_documented() -> None:
    reference = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    codes = re.findall(r"``([a-z_]+)``", (casemate.Cause.__doc__ or "").partition("message:")[0])
    assert len(codes) > 5
    assert [code for code in codes if f"`{code}`" not in reference] == []


# Phrases of a dialect in which no page or source is written any more.
_DIALECT = re.compile(
    r"\b(whoever|anew|is told|such a one|nobody who|harmless when repeated|that there is)\b", re.IGNORECASE
)


def test_nothing_that_people_read_is_in_dialect() -> None:
    pages = [page for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if page.parent.name != "decisions"]
    sources = [one for one in SOURCE.rglob("*") if one.suffix in (*GUEST_SUFFIXES, ".json", ".html", ".css")]
    read = {path: path.read_text(encoding="utf-8") for path in (*pages, *sources)}
    assert len(read) > 500
    assert [(relative(path), found[0]) for path, text in read.items() for found in _DIALECT.finditer(text)] == []
