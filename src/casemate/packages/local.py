"""Packages in the operator's folders, as in pip's find-links and ``file:`` indexes."""

from __future__ import annotations

import os
from urllib.parse import quote, unquote, urlsplit

from casemate.packages.names import project_in
from casemate.packages.pages import PageLink

SCHEME = "file"
_ENDS = (".whl", ".tar.gz", ".zip")


def folder_of(text: str) -> str | None:
    """The folder that a path or a ``file:`` address names; None if it does not exist, which pip ignores, too."""
    parts = urlsplit(text)
    path = unquote(parts.path) if parts.scheme == SCHEME else text
    return os.path.realpath(path) if os.path.isabs(path) and os.path.isdir(path) else None


def links_in(folder: str, project: str, *, is_flat: bool) -> list[PageLink] | None:
    """The files of ``project`` in a folder: in its own subfolder or, if ``is_flat``, among all others. None if there
    are none. Raises ``OSError``."""
    page = address_of(folder)
    folder = folder if is_flat else os.path.join(folder, project)
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return None
    names = [name for name in names if name.endswith(_ENDS)]
    if is_flat:
        names = [name for name in names if (found := project_in(name)) is not None and found[0] == project]
    paths = [(name, os.path.join(folder, name)) for name in names]
    links = [PageLink(name, f"{SCHEME}://{quote(path)}", page=page) for name, path in paths if os.path.isfile(path)]
    return links or None


def address_of(folder: str) -> str:
    """A folder as the address of an index."""
    return f"{SCHEME}://{quote(folder)}/"
