"""What a cell asks of the tools' service: read strictly, each a noun of its own. Pure.

A request names a server, a tool and arguments, and nothing else: how a server is reached, and with what, is the host's
to know. A key that no request has is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from casemate.errors import InvalidArgument
from casemate.files.lines import read_object

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future
    from contextvars import Context

    from casemate.model.approval import ApprovalVerdict, Question
    from casemate.policy.hosts import HostRules

Detail = Literal["names", "brief", "full"]
_MOST_NAME = 256  # characters of a server's, tool's or module's name
_MOST_QUERY = 1000
_MOST_WORDS = 1000


class CallRequester(Protocol):
    """The run or step that a request comes from."""

    @property
    def namespace(self) -> str:
        """Of its sandbox."""

    @property
    def session(self) -> str | None:
        """None for a run of its own."""

    @property
    def run(self) -> str:
        """Its id."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Where it was begun."""

    @property
    def context(self) -> Context:
        """The same: in whose name casemate's own functions do something."""

    @property
    def hosts(self) -> HostRules | None:
        """What its cell may reach, and casemate's own functions for it; None for nothing."""

    def decide(self, question: Question, *, inline: bool = False) -> Future[ApprovalVerdict]:
        """Whether it may cross. From any thread; ``inline``: which has time for what rules allow."""

    def redact(self, value: Any) -> Any:
        """``value`` without the secrets of that run."""

    def defer(self, job: Callable[[], object]) -> None:
        """Have ``job``, which raises nothing, done in another thread: a little later, and before that run is over."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Call ``tool`` of ``server``. ``progress``: the caller wants to hear how far it is."""

    server: str
    tool: str
    arguments: dict[str, Any]
    progress: bool = False


@dataclass(frozen=True, slots=True)
class ShellCall:
    """What the words of a command line say: a call, or a question about tools."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a module of ``mcptools``; ``language``: python or node."""

    module: str
    language: str = "python"


@dataclass(frozen=True, slots=True)
class ListTools:
    """Which servers and tools there are."""

    detail: Detail = "brief"


@dataclass(frozen=True, slots=True)
class Search:
    """Tools that have to do with ``query``."""

    query: str
    detail: Detail = "brief"


@dataclass(frozen=True, slots=True)
class Describe:
    """Everything about one tool."""

    server: str
    tool: str


@dataclass(frozen=True, slots=True)
class Read:
    """What a resource of a server holds, by a link that a tool gave."""

    server: str
    uri: str


@dataclass(frozen=True, slots=True)
class Register:
    """Add a server, which somebody has to allow."""

    name: str
    definition: dict[str, Any]


Request = ToolCall | ShellCall | Source | ListTools | Search | Describe | Read | Register


def read_request(line: bytes) -> Request:
    """The request that a line is. Raises ``InvalidArgument``."""
    given = read_object(line)
    verb = given.pop("do", None)
    match verb:
        case "call":
            keys = _Keys(given, "server", "tool", "arguments", "progress")
            return ToolCall(keys.text("server"), keys.text("tool"), keys.object("arguments"), keys.flag("progress"))
        case "shell":
            return ShellCall(_Keys(given, "words").texts("words"))
        case "source":
            keys = _Keys(given, "module", "language")
            return Source(keys.text("module"), keys.text("language", default="python"))
        case "list":
            return ListTools(_Keys(given, "detail").detail())
        case "search":
            keys = _Keys(given, "query", "detail")
            return Search(keys.text("query", most=_MOST_QUERY), keys.detail())
        case "describe":
            keys = _Keys(given, "server", "tool")
            return Describe(keys.text("server"), keys.text("tool"))
        case "read":
            keys = _Keys(given, "server", "uri")
            return Read(keys.text("server"), keys.text("uri", most=_MOST_QUERY * 8))
        case "register":
            keys = _Keys(given, "name", "definition")
            return Register(keys.text("name"), keys.object("definition"))
    raise InvalidArgument("request", f"does {verb!r:.40}, which is nothing that can be done")


class _Keys:
    """The values of one request, each of its type."""

    def __init__(self, given: Mapping[str, Any], *known: str) -> None:
        unknown = given.keys() - set(known)
        if unknown:
            raise InvalidArgument("request", f"has {min(unknown)[:80]!a}, which no such request has")
        self._given = given

    def text(self, key: str, *, most: int = _MOST_NAME, default: str | None = None) -> str:
        value = self._given.get(key, default)
        if not isinstance(value, str) or len(value) > most:
            raise InvalidArgument("request", f"{key} is no text of at most {most} characters")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._given.get(key)
        if not isinstance(value, list) or len(value) > _MOST_WORDS or not all(isinstance(one, str) for one in value):
            raise InvalidArgument("request", f"{key} is no list of at most {_MOST_WORDS} texts")
        return tuple(value)

    def object(self, key: str) -> dict[str, Any]:
        value = self._given.get(key)
        if not isinstance(value, dict):
            raise InvalidArgument("request", f"{key} is no object")
        return value

    def flag(self, key: str) -> bool:
        value = self._given.get(key, False)
        if not isinstance(value, bool):
            raise InvalidArgument("request", f"{key} is neither true nor false")
        return value

    def detail(self) -> Detail:
        value = self._given.get("detail", "brief")
        if value not in get_args(Detail):
            raise InvalidArgument("request", f"detail is none of {', '.join(get_args(Detail))}")
        return value  # type: ignore[no-any-return]
