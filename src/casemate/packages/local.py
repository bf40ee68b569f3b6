"""Packages in folders of the operator's own, as pip's find-links and ``file:`` indexes have them."""

from __future__ import annotations

import os
from urllib.parse import quote, unquote, urlsplit

from casemate.packages.names import normalize
from casemate.packages.pages import PageLink

SCHEME = "file"
_ENDS = (".whl", ".tar.gz", ".zip")


def folder_of(text: str) -> str | None:
    """The folder that a path or a ``file:`` address names; None where there is none, which pip passes over, too."""
    parts = urlsplit(text)
    path = unquote(parts.path) if parts.scheme == SCHEME else text
    return os.path.realpath(path) if os.path.isabs(path) and os.path.isdir(path) else None


def links_in(folder: str, project: str, *, is_flat: bool) -> list[PageLink] | None:
    """The files of ``project`` in a folder: in its own folder below, or where that is flat beside all others; None
    where there are none. Raises ``OSError``."""
    page = address_of(folder)
    folder = folder if is_flat else os.path.join(folder, project)
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return None
    names = [name for name in names if name.endswith(_ENDS) and (not is_flat or project_of(name) == project)]
    paths = [os.path.join(folder, name) for name in names]
    links = [
        PageLink(os.path.basename(path), f"{SCHEME}://{quote(path)}", page=page)
        for path in paths
        if os.path.isfile(path)
    ]
    return links or None


def address_of(folder: str) -> str:
    """A folder as the address of an index."""
    return f"{SCHEME}://{quote(folder)}/"


def project_of(filename: str) -> str:
    """The normalised name of the project that a file belongs to; "" for one that no installer takes."""
    from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename

    try:
        is_wheel = filename.endswith(".whl")
        name = parse_wheel_filename(filename)[0] if is_wheel else parse_sdist_filename(filename)[0]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return ""
    return normalize(name)


def path_of(url: str) -> str:
    """The path that the address of a link in a folder means."""
    return unquote(urlsplit(url).path)
