"""Every snippet of the documents runs here or in another test, or says that it is a fragment, which is then sound."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from tests.docs.test_quickstart import ROOT, env  # noqa: F401 - a fixture

PAGES = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"]
GENERATED = "python.md"  # whose snippets are signatures
READ_BY_OTHERS = ("quickstart.md", "notebooks.md")  # whose tests run all but fragments
EXAMPLES = {path.read_text(encoding="utf-8"): path.name for path in (ROOT / "examples").glob("*.[py]*")}
TESTS = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
FILES = {
    "analyse.py": "open('output/sum', 'w').write(open('sales.csv').read())", "sales.csv": "1\n", "bad.py": "print(",
    "server.js": "console.log(process.env.PORT)", "data.json": "{}", "clean.py": "print(input())",
    "unknown.py": "", "stock.csv": "item,count\nnuts,8\n", "my.yaml": "network: none\n",
}  # fmt: skip


class Snippet(NamedTuple):
    place: str
    language: str
    is_fragment: bool
    text: str
    shown: str


def _snippets() -> list[Snippet]:
    fences = re.compile(r"^```(\w+)( fragment)?\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
    return [
        Snippet(page.name, found[1], found[2] is not None, found[3], found[4] or "")
        for page in [ROOT / "README.md", *PAGES]
        for found in fences.finditer(page.read_text(encoding="utf-8"))
        if page.name != GENERATED
    ]


SNIPPETS = _snippets()


def _is_run_elsewhere(one: Snippet) -> bool:
    name = EXAMPLES.get(one.text)
    return one.place in READ_BY_OTHERS or (name is not None and f'"{name}"' in TESTS)


def test_what_has_no_language_is_what_the_snippet_before_it_prints() -> None:
    for page in [ROOT / "README.md", *PAGES]:
        text = page.read_text(encoding="utf-8")
        fences = re.findall(r"^```(.*)$", text, re.MULTILINE)
        before = re.findall(r"^```\n\n```$", text, re.MULTILINE)
        assert page.name == GENERATED or fences[::2].count("") == len(before), page


@pytest.mark.parametrize("snippet", [one for one in SNIPPETS if one.is_fragment], ids=lambda one: one.place)
def test_fragments_are_sound(snippet: Snippet) -> None:
    if snippet.language == "python":
        ast.parse("async def main():\n" + textwrap.indent(snippet.text, "    "))
    elif snippet.language in ("json", "yaml"):
        (json.loads if snippet.language == "json" else yaml.safe_load)(snippet.text)
    else:
        assert snippet.language in ("sh", "text")


@pytest.mark.parametrize(
    "snippet",
    [one for one in SNIPPETS if not one.is_fragment and not _is_run_elsewhere(one)],
    ids=lambda one: one.place,
)
def test_what_is_no_fragment_runs(snippet: Snippet, env: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    command = {"python": [sys.executable, "-c"], "sh": ["bash", "-ec"]}[snippet.language]
    ran = subprocess.run([*command, snippet.text], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout if snippet.shown else "") == (0, snippet.shown), ran.stderr
