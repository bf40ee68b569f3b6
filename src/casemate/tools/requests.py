"""A cell's requests to the broker, parsed strictly: an unknown key is an error.

A request cannot say how a server is reached or with which credentials. Only the host knows that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from casemate.errors import InvalidArgument
from casemate.files.lines import read_object

Detail = Literal["names", "brief", "full"]  # how much is shown of each tool
_MOST_NAME = 256  # characters of a server's, tool's or module's name
_MOST_QUERY = 1000
_MOST_WORDS = 1000


@dataclass(frozen=True, slots=True)
class ToolCall:
    server: str
    tool: str
    arguments: dict[str, Any]
    progress: bool = False  # whether the caller wants progress
    line: int | None = None  # of the program, as it says


@dataclass(frozen=True, slots=True)
class ShellCall:
    """Do what a command line of ``tool`` says."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    module: str


@dataclass(frozen=True, slots=True)
class Search:
    """Search tools; an empty ``query`` lists all."""

    query: str
    detail: Detail = "brief"


@dataclass(frozen=True, slots=True)
class Read:
    server: str
    uri: str


@dataclass(frozen=True, slots=True)
class Register:
    name: str
    definition: dict[str, Any]


Request = ToolCall | ShellCall | Source | Search | Read | Register


def read_request(line: bytes) -> Request:
    """Parse a request. Raises ``InvalidArgument``."""
    given = read_object(line)
    verb = given.pop("do", None)
    match verb:
        case "call":
            keys = _Keys(given, "server", "tool", "arguments", "progress", "line")
            arguments, progress = keys.object("arguments"), keys.flag("progress")
            return ToolCall(keys.text("server"), keys.text("tool"), arguments, progress, keys.line())
        case "shell":
            return ShellCall(_Keys(given, "words").texts("words"))
        case "source":
            return Source(_Keys(given, "module").text("module"))
        case "list":
            return Search("", _Keys(given, "detail").detail())
        case "search":
            keys = _Keys(given, "query", "detail")
            return Search(keys.text("query", most=_MOST_QUERY), keys.detail())
        case "read":
            keys = _Keys(given, "server", "uri")
            return Read(keys.text("server"), keys.text("uri", most=_MOST_QUERY * 8))
        case "register":
            keys = _Keys(given, "name", "definition")
            return Register(keys.text("name"), keys.object("definition"))
    raise InvalidArgument("request", f"has an unknown verb, {verb!r:.40}")


class _Keys:
    def __init__(self, given: Mapping[str, Any], *known: str) -> None:
        unknown = given.keys() - set(known)
        if unknown:
            raise InvalidArgument("request", f"has an unknown key, {min(unknown)[:80]!a}")
        self._given = given

    def text(self, key: str, *, most: int = _MOST_NAME) -> str:
        value = self._given.get(key)
        if not isinstance(value, str) or len(value) > most:
            raise InvalidArgument("request", f"{key} must be a string of at most {most} characters")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._given.get(key)
        if not isinstance(value, list) or len(value) > _MOST_WORDS or not all(isinstance(one, str) for one in value):
            raise InvalidArgument("request", f"{key} must be a list of at most {_MOST_WORDS} strings")
        return tuple(value)

    def object(self, key: str) -> dict[str, Any]:
        value = self._given.get(key)
        if not isinstance(value, dict):
            raise InvalidArgument("request", f"{key} must be an object")
        return value

    def flag(self, key: str) -> bool:
        value = self._given.get(key, False)
        if not isinstance(value, bool):
            raise InvalidArgument("request", f"{key} must be true or false")
        return value

    def line(self) -> int | None:
        value = self._given.get("line")
        if value is not None and (type(value) is not int or not 0 < value < 1 << 24):
            raise InvalidArgument("request", "line must be the number of a line")
        return value

    def detail(self) -> Detail:
        value = self._given.get("detail", "brief")
        if value not in get_args(Detail):
            raise InvalidArgument("request", f"detail must be one of {', '.join(get_args(Detail))}")
        return value  # type: ignore[no-any-return]
