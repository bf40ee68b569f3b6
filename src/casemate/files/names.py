"""Which file names may leave a cell, and how names are displayed.

A name is safe if it is valid UTF-8 of at most 255 bytes, has no backslash, and displays as it is
(``casemate.visible``). Names such as ``-rf``, ``con`` or ``C:x`` are data on Linux and stay as they are.
"""

from __future__ import annotations

from casemate.visible import hidden_in, visible

LONGEST_NAME = 255
LONGEST_PATH = 4096
_LONGEST_SHOWN = 300


def problem(name: bytes) -> str | None:
    """Why a path component is not safe to hand out, or None."""
    if len(name) > LONGEST_NAME:
        return f"its name is longer than {LONGEST_NAME} bytes"
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        return "its name is not valid UTF-8"
    if text in ("", ".", "..") or "/" in text:
        return "its name is not the name of a file"
    if "\\" in text:
        return "its name contains a backslash"
    if hidden_in(text):
        return "its name contains control or formatting characters"
    return None


def path_problem(path: tuple[bytes, ...]) -> str | None:
    """Why a relative path is not safe to hand out, or None. Checks its length and its last component."""
    if sum(map(len, path)) + len(path) > LONGEST_PATH:
        return f"its path is longer than {LONGEST_PATH} bytes"
    return problem(path[-1])


def text_of(path: tuple[bytes, ...]) -> str:
    """A path of safe components as text, with ``/``."""
    return b"/".join(path).decode("utf-8")


def display_path(path: tuple[bytes, ...]) -> str:
    """Any path, escaped for display: without control and format characters, and bounded in length.

    Safe names are unchanged.
    """
    if all(problem(name) is None for name in path):
        text = text_of(path)
    else:
        escaped = (name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace") for name in path)
        text = "/".join(map(visible, escaped))
    if len(text) > _LONGEST_SHOWN:
        half = _LONGEST_SHOWN // 2 - 1
        text = f"{text[:half]}…{text[-half:]}"
    return text or "."
