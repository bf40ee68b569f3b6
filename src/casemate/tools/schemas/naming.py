"""Names that programs can write for names that strangers chose. Pure.

Wire names of tools and keys of JSON may be anything: empty, a keyword, two that differ only by case, 128 characters of
punctuation. Each gets an identifier of its own, and what is unchanged keeps its name.
"""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Collection, Iterable

LONGEST = 100  # characters of a module's name: with its ending it must be a file's name everywhere
# What the package `mcptools` defines itself: a server of that name is another module.
OWN_NAMES = frozenset((
    "Audio", "Blob", "Image", "InvalidArguments", "Link", "Object", "Output", "Resource", "Text", "ToolDenied",
    "ToolError", "ToolTimeout", "ToolUnavailable", "UNSET", "content_of", "on_progress", "register", "search",
))  # fmt: skip


def identifier(text: str, empty: str = "unnamed") -> str:
    """An identifier of Python and JavaScript that resembles ``text``; no keyword, and it begins with no underscore.

    Python reads identifiers in Unicode's form NFKC (PEP 3131), so that is the form of the result.
    """
    normal = unicodedata.normalize("NFKC", text[: 2 * LONGEST])
    name = "".join(c if ("_" + c).isidentifier() else "_" for c in normal).lstrip("_")[:LONGEST].rstrip("_" * LONGEST)
    if name and not name.isidentifier():
        name = f"x{name}"
    name = unicodedata.normalize("NFKC", name)  # what was cut, stripped or begun anew may have another form
    if not name.isidentifier():
        return empty
    return f"{name}_" if keyword.iskeyword(name) else name


def unique_names(
    keys: Iterable[str],
    reserved: Collection[str] = (),
    *,
    empty: str = "unnamed",
    fold: bool = False,
    in_turn: bool = False,
) -> dict[str, str]:
    """An identifier for each of ``keys``, none twice and none of ``reserved``, in the order of ``keys``.

    The result depends on the set of keys, not on their order; ``in_turn``: on their order, so that no key takes its
    name from one that came before. ``fold``: names that differ only by case are too alike.
    """
    wanted = {key: identifier(key, empty) for key in dict.fromkeys(keys)}

    def alike(name: str) -> str:
        return name.casefold() if fold else name

    taken = {alike(name) for name in reserved}
    given: dict[str, str] = {}
    for key in wanted if in_turn else sorted(wanted, key=lambda key: (wanted[key] != key, key)):
        name, number = wanted[key], 1
        if alike(name) in taken and alike(f"{name}_") not in taken and name in reserved:
            name = f"{name}_"
        while alike(name) in taken:
            number += 1
            name = f"{wanted[key]}_{number}"
        taken.add(alike(name))
        given[key] = name
    return {key: given[key] for key in wanted}


def module_names(tools: Iterable[str]) -> dict[str, str]:
    """The module of each tool of one server: one to one, also where a file system does not know case."""
    return unique_names(tools, fold=True)


def package_names(servers: Iterable[str]) -> dict[str, str]:
    """The package of each server, in the order in which they came: one to one, and none hides what `mcptools` defines
    itself. One that comes later changes no name: else it could take the place of another."""
    return unique_names(servers, {name.casefold() for name in OWN_NAMES} | OWN_NAMES, fold=True, in_turn=True)


def class_name(text: str, empty: str = "Value") -> str:
    """A class's name that resembles ``text``: `list_options` is `ListOptions`."""
    words = identifier(text, empty).split("_")
    name = "".join(word[:1].upper() + word[1:] for word in words if word)[:LONGEST]
    return name if name.isidentifier() and not keyword.iskeyword(name) else empty
