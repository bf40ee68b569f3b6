"""Hooks of mkdocs.yml: the site has the repository's paths, so that links between documents work on it, too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("*.md", "examples/README.md", "benchmarks/README.md", "packaging/kubernetes.yaml", "packaging/seccomp.json")
_DOCSTRINGS = re.compile(r"^<!-- docstrings: (\S+) (.*?)-->\n(.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE)


def on_config(config: Any) -> None:
    """List every decision in the navigation, the newest first."""
    [(title, folder)] = config.nav[-1].items()
    pages = sorted((ROOT / folder).glob("0*.md"), reverse=True)
    config.nav[-1] = {title: [f"{folder}/{name}" for name in ("README.md", *(page.name for page in pages))]}


def on_files(files: Files, config: Any) -> Files:
    """Give every file of docs its path in the repository, and add what documents link to outside of docs."""
    docs = [path for path in (ROOT / "docs").rglob("*") if path.is_file()]
    paths = [*docs, *(path for pattern in OUTSIDE for path in ROOT.glob(pattern))]
    places = (str(path.relative_to(ROOT)) for path in paths)
    served = [File(place, str(ROOT), config.site_dir, config.use_directory_urls) for place in places]
    return Files([*(file for file in files if file.src_dir != config.docs_dir), *served])


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Have mkdocstrings write what comes from docstrings, and call snippets by their languages alone."""
    markdown = re.sub(r"^(```\w+) fragment$", r"\1", markdown, flags=re.MULTILINE)
    return _DOCSTRINGS.sub(_directive, markdown)


def _directive(found: re.Match[str]) -> str:
    """An object with its members. The heading is its own, under the anchor of the page's heading, if that is marked."""
    members = found[2].split() or "false"
    options = [f"      members: {members}", f"      inherited_members: {members}"]
    lines = ["", f"::: {found[1]}", "    options:", *options]
    if heading := re.match(r"(#+) `(\w+)`", found[3]):
        lines.insert(0, f'<a id="{heading[2].lower()}"></a>')
        lines += ["      show_root_heading: true", f"      heading_level: {len(heading[1])}"]
    return "\n".join(lines)
