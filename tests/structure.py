"""``python -m tests.structure`` prints figures of the structure of ``src``. ``--list`` also prints what each counts.

The figures come from the source text; nothing is imported. tests/unit/test_structure.py checks them against budgets.
``--set`` lowers these budgets to today's figures.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "casemate"
TEST = ROOT / "tests" / "unit" / "test_structure.py"
# Folders that share a budget of lines. Every other top folder has its own budget.
_TOGETHER = (
    "surfaces/cli",
    "surfaces/mcp",
    "surfaces/http+surfaces/console",
    "surfaces/kernel+surfaces/notebook.py",
    "surfaces/clients",
    "workspace+files+artifacts",
    "audit+evidence",
)
# Words that look like participles but name a thing or an act.
_THINGS = """
bed bleed breed embed exceed feed heed need proceed red seed shed shred speed succeed weed ring string thing king sing
bring spring wing ping being during family apply reply supply multiply fly imply rely comply assembly
"""
_IRREGULAR = """
begun born bound bought brought built caught chosen come done drawn driven fallen felt fit forgotten found frozen given
gone grown had heard held hidden kept known laid led left lent lost made meant met paid put said seen sent shown shut
sold spent spoken stood stuck struck sworn taken taught thought thrown told torn understood woken won worn written woven
ago ahead apart aside away back elsewhere enough ever here meanwhile never now often once soon still then there together
too twice
"""
_MANY_FIELDS, _MOST_OF_THEM = 6, 0.6
_PUBLIC = ("pending", "proved", "narrowed")  # names in the public API: approvals, isolation reports and limits


@cache
def files() -> tuple[Path, ...]:
    """Every Python file of ``src``."""
    return tuple(sorted(SOURCE.rglob("*.py")))


@cache
def tree_of(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_bytes(), filename=str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's syntax tree, cached, because a walk takes longer than reading the file."""
    return tuple(ast.walk(tree_of(path)))


def lines_of(path: Path) -> int:
    """All lines of a file."""
    return len(path.read_bytes().splitlines())


def code_lines_of(path: Path) -> int:
    """Lines of a file without blanks, comments, docstrings and imports."""
    left_out: set[int] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and body:
            first = body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                left_out.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    kept: set[int] = set()
    nothing = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type not in nothing and token.type != tokenize.ENDMARKER:
                kept.update(range(token.start[0], token.end[0] + 1))
    return len(kept - left_out)


def is_participle(name: str) -> bool:
    """Whether a function's whole name is a participle or an adverb, which names neither an act nor a thing."""
    word = name.strip("_")
    if name in _PUBLIC or name.startswith("__"):  # Python's own protocols
        return False
    if "_" in word or not word.isalpha() or word in _THINGS.split():
        return False
    return word in _IRREGULAR.split() or (len(word) > 3 and word.endswith(("ed", "ing", "ly")))


def participles() -> Iterator[str]:
    """Functions and methods with such a name, including decorated ones (properties, overrides, fixtures)."""
    for path in files():
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_participle(node.name):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def classes_in_several_files() -> dict[str, list[str]]:
    """Class names defined in several files, with these files. Leading underscores are ignored."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in files():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].add(str(path.relative_to(SOURCE)))
    return {name: sorted(places) for name, places in sorted(found.items()) if len(places) > 1}


def alike() -> set[frozenset[str]]:
    """Pairs of classes that share at least six fields and most fields of the smaller class."""
    found: list[tuple[str, set[str]]] = []
    for path in files():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                named = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
                found.append((node.name, {one.id for one in named if isinstance(one, ast.Name)}))
    return {
        frozenset((name, other))
        for (name, own), (other, others) in itertools.combinations(found, 2)
        if len(own & others) >= max(_MANY_FIELDS, _MOST_OF_THEM * min(len(own), len(others)))
    }


def module_of(path: Path) -> str:
    """A file's module name."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports() -> dict[str, set[str]]:
    """The project's modules that each module imports, in functions and for type checking too."""
    known = {module_of(path) for path in files()}
    found: dict[str, set[str]] = {}
    for path in files():
        name = module_of(path)
        targets = found.setdefault(name, set())
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                targets.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
                whole = ".".join(part for part in (base, node.module or "") if part)
                targets.update(
                    f"{whole}.{alias.name}" if f"{whole}.{alias.name}" in known else whole for alias in node.names
                )
        targets &= known - {name}
    return found


def circles() -> list[list[str]]:
    """Groups of modules that import each other in a circle, largest first (Tarjan 1972)."""
    graph, index, low, stack, out = imports(), {}, {}, [], []  # type: ignore[var-annotated]
    sys.setrecursionlimit(10_000)

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            circle = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(circle) > 1:
                out.append(sorted(circle))

    for node in graph:
        if node not in index:
            visit(node)
    return sorted(out, key=len, reverse=True)


def naming(words: tuple[str, ...], outside: tuple[str, ...]) -> list[str]:
    """Source files that have one of ``words`` as a string. Files in the folders ``outside`` are left out."""
    found = []
    for path in files():
        place = path.relative_to(SOURCE).as_posix()
        if place.startswith(outside):
            continue
        strings = {n.value for n in nodes_of(path) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        if any(one in words for one in strings):
            found.append(place)
    return found


def folder_of(path: Path) -> str:
    """The name of a file's budget; "root" for files in no folder."""
    place = path.relative_to(SOURCE)
    parents = {place.as_posix(), *(parent.as_posix() for parent in place.parents)}
    own = place.parts[0] if len(place.parts) > 1 else "root"
    return next((name for name in _TOGETHER if parents & set(name.split("+"))), own)


def lines_by_folder() -> dict[str, int]:
    """The lines of ``src`` by the name of their budget."""
    found: Counter[str] = Counter()
    for path in files():
        found[folder_of(path)] += lines_of(path)
    return dict(sorted(found.items()))


def lines_of_tests() -> int:
    """The lines of Python in ``tests``."""
    return sum(lines_of(path) for path in (ROOT / "tests").rglob("*.py"))


def figures() -> list[tuple[str, int, list[str]]]:
    """Each figure: its name, its value, and the places it counts."""
    names, twice, round_about = list(participles()), classes_in_several_files(), circles()
    languages = naming(("node", "shell"), ("languages/", "guest/", "supervisor/"))
    return [
        ("lines of Python in src", sum(map(lines_of, files())), []),
        ("without docstrings, imports, comments and blanks", sum(map(code_lines_of, files())), []),
        ("files", len(files()), []),
        ("files of 40 lines or fewer", sum(lines_of(path) <= 40 for path in files()), []),
        ("functions whose name is a participle or an adverb", len(names), names),
        ("class names in more than one file", len(twice), [f"{name}: {', '.join(at)}" for name, at in twice.items()]),
        ("import circles", len(round_about), [" ".join(one) for one in round_about]),
        ("host files with the text node or shell, outside languages", len(languages), languages),
        ("lines of tests", lines_of_tests(), []),
    ]


def set_budgets() -> None:
    """Lower the test's budgets to today's figures. Raise a budget, or add one for a new folder, by hand."""
    today = {name: value for name, value, _ in figures()} | lines_by_folder()

    def lower(found: re.Match[str]) -> str:
        return f'    "{found[1]}": {min(int(found[2]), today.get(found[1], 0)):_},'

    TEST.write_text(re.sub(r'^    "(.+)": ([\d_]+),$', lower, TEST.read_text(), flags=re.MULTILINE))


def main() -> None:
    """Print the figures; with ``--set`` also lower the budgets."""
    if "--set" in sys.argv:
        set_budgets()
    for name, value, places in [*figures(), *((name, lines, []) for name, lines in lines_by_folder().items())]:
        print(f"{value:>7}  {name}")
        for place in places if "--list" in sys.argv else []:
            print(f"           {place}")


if __name__ == "__main__":
    main()
