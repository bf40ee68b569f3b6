"""A request, the secrets that go with it, and the isolation of its execution as data, printable before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

from casemate.model.call_options import Priority
from casemate.model.isolation import LAYERS, WALLS
from casemate.model.limits import Limits
from casemate.model.operation import OrNone


@dataclass(frozen=True, slots=True)
class Placeholder:
    """What a program has instead of a secret.

    ``text``: what its variable holds. ``value``: what the egress proxy puts in its place, at ``places`` alone
    (canonical name and port), in the field ``header``, whose whole value is ``format`` with ``{}`` for the secret.
    """

    name: str
    text: str
    value: str = field(repr=False)
    places: frozenset[tuple[str, int]]
    header: str
    format: str


class Secrets:
    """Values by name. Only :meth:`reveal` gives them; a repr, a copy as data or JSON of it has the names at most.

    ``placeholders``: for the values that the program does not get.
    """

    __slots__ = ("_values", "placeholders")

    def __init__(self, values: Mapping[str, str], placeholders: Sequence[Placeholder] = ()) -> None:
        self._values = dict(values)
        self.placeholders = tuple(placeholders)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def reveal(self) -> dict[str, str]:
        """The values by name, for the program that they are for and for what finds them in its output."""
        return dict(self._values)

    def for_program(self) -> Secrets:
        """What the program gets: placeholders in place of the values that only the egress proxy puts in."""
        return Secrets({**self._values, **{one.name: one.text for one in self.placeholders}})

    def __bool__(self) -> bool:
        return bool(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"

    def __copy__(self) -> Secrets:
        return self

    def __deepcopy__(self, memo: object) -> Secrets:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("secrets are not pickled")


NO_SECRETS = Secrets({})


class TurnTerms(NamedTuple):
    """How a request waits for its turn. ``start_within``: seconds that it may, None for as long as it takes."""

    priority: Priority = "normal"
    start_within: float | None = None


AT_ITS_TURN = TurnTerms()


@dataclass(frozen=True, slots=True)
class Request:
    """One execution as asked for.

    ``code``: the program's bytes (valid UTF-8, no NUL); ``program_name``: the file name that
    tracebacks show; ``timeout``: seconds or None for the operator's cap; ``files``: relative
    name to content (``bytes``) or to a regular file on the host (``Path``). ``session``: the one of which it is a step;
    ``has_stdin``: whether a step was given any. ``allowed_domains``: None for all that the sandbox allows.
    ``secrets``: variables besides ``env``, whose values nobody else sees.
    """

    id: str
    namespace: str
    language: str
    program_name: str
    arguments: tuple[str, ...]
    timeout: float | None
    env: Mapping[str, str]
    code: bytes = b""
    limits: Limits | None = None
    files: Mapping[str, bytes | Path] = field(default_factory=dict)
    stdin: bytes = b""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    session: str | None = None
    has_stdin: bool = False
    allowed_domains: tuple[str, ...] | None = None
    secrets: Secrets = NO_SECRETS
    turn: TurnTerms = AT_ITS_TURN


@dataclass(frozen=True, slots=True)
class Shown:
    """A file or folder of the host's that appears at ``places``, read-only, without what is ``hidden`` beneath it (an
    empty path is all of it). ``copied``: a folder that can be written to, too, for as long as the cell lives."""

    source: str
    places: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    copied: bool = False


# Where things are inside every cell.
WORKSPACE = "/workspace"
OUTPUT_NAME = "output"
OUTPUT = f"{WORKSPACE}/{OUTPUT_NAME}"
PROGRAM = "/program"
STEPS = f"{PROGRAM}/steps"  # where the pipes of a session's steps are
GUEST = "/opt/casemate"
BESIDE_PROGRAM = f"..{GUEST}"  # the same, from the folder of the program: on walls without mounts it lies elsewhere
MODULES = f"{GUEST}/modules"  # modules of casemate that Python programs may import
PROGRAMS = f"{GUEST}/bin"
HOME = "/home/user"
LAYERED = "/packages/python"  # where packages that were installed are shown
LAYERED_NODE = "/packages/node"  # likewise
NODE_PACKAGES = f"{LAYERED_NODE}/node_modules"  # with casemate's modules; Node programs and children look here last
NODE_PROGRAMS = f"{NODE_PACKAGES}/.bin"
PROXY_ADDRESS = "198.18.0.1"  # the host answers here; 198.18.0.0/15 is set aside for tests of devices (RFC 2544)


@dataclass(frozen=True, slots=True)
class Bind:
    """``source`` on the host appears at ``target``, read-only, nosuid and nodev (a device: as that device)."""

    source: str
    target: str
    device: bool = False


@dataclass(frozen=True, slots=True)
class Symlink:
    """A symbolic link at ``target`` that says ``points_to``."""

    target: str
    points_to: str


@dataclass(frozen=True, slots=True)
class SynthesizedFile:
    """A small synthesised file at ``target``."""

    target: str
    content: str


@dataclass(frozen=True, slots=True)
class MountPoint:
    """An empty folder or file at ``target``, for a cell to mount something over."""

    target: str
    folder: bool


Entry = Bind | Symlink | SynthesizedFile | MountPoint

Network = Literal["none", "listed", "public"]  # which hosts a cell may reach, from the narrowest


class ListeningSocket(NamedTuple):
    """Where the host answers in a cell's network."""

    kind: Literal["tcp", "udp"]
    address: str
    port: int


NETWORK_SOCKETS = (
    ListeningSocket("udp", PROXY_ADDRESS, 53),
    ListeningSocket("tcp", PROXY_ADDRESS, 3128),
)  # a cell's resolver and its proxy


@dataclass(frozen=True, slots=True)
class Workspace:
    """``private``: a fresh one. ``overlay``: the caller's ``folder``, and changes are applied at the end.

    ``direct``: the folder is written through. ``reviewed``: the changes of an overlay are kept back until somebody
    allows them. ``place``: where it appears besides /workspace, empty for nowhere.
    ``hidden``, ``kept``: paths beneath it that nobody in the cell reads, or changes, but for what is ``writable``
    in the latter.
    """

    kind: Literal["private", "overlay", "direct"]
    folder: str | None = None
    place: str = ""
    hidden: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    writable: tuple[str, ...] = field(default=(), repr=False)
    reviewed: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """How a language starts a program: everything a runtime decides.

    ``entries``: what the interpreter needs to be readable, besides the common system folders;
    ``argv``: the command inside the cell (absolute program path); ``env``: variables the runtime needs;
    """

    language: str
    version: str
    entries: tuple[Entry, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadyStart:
    """How a program of this language is begun in a cell that was made before the program was known.

    ``argv`` and ``env``: what the waiting process gets, the same for every program; ``order``: what it reads when its
    program is there; ``limits``: what it is made with, which a run may narrow; ``preload``: the modules of the
    zygote that it is forked from, None where it is executed; ``optional``: modules that are not installed are
    passed over; ``stamp``: changes when the environment on the disk does; ``cost``: bytes that one holds.
    ``fuller``: the modules that other programs of the same environment want, and ``fuller_cost`` what those hold.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    order: bytes = field(repr=False)
    limits: Limits
    cost: int
    preload: tuple[str, ...] | None = None
    optional: bool = False
    stamp: tuple[int, ...] = ()
    fuller: tuple[str, ...] = ()
    fuller_cost: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a cell that is decided before it starts.

    Operators see all of it but what ``repr`` leaves out, the values of secrets, and what the caller has given: the
    program, contents of files, standard input. Paths are of the machine that casemate runs on (``source``) and of the
    cell (``target``).

    ``deadline``: seconds from the cell's start; ``control``: whether the program's guest hook holds the
    control pipe; ``reserve``: bytes its interpreter reserves and never touches. ``network``: whether there is one,
    and ``allowed_domains`` what it lets through by itself; ``listeners``: the sockets in the cell's network on which
    the host, and nobody in the cell, answers.
    ``waiting``: how it may be begun in a cell that is ready, or why it may not. ``session``: the program is an
    interpreter that takes one step after the other; ``continues``: the id of the cell whose files it goes on with.
    ``secrets``: variables of the program besides ``env``. ``shown``: what it sees of the host's besides ``entries``.
    A ``deadline`` of infinity is none.
    """

    id: str
    wall: str
    language: str
    entries: tuple[Entry, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    program_name: str
    code: bytes = field(repr=False)
    workspace: Workspace
    files: Mapping[str, bytes | Path] = field(repr=False)
    stdin: bytes = field(repr=False)
    limits: Limits
    deadline: Annotated[float, OrNone()]
    control: bool = True
    reserve: int = 0
    network: Network = "none"
    allowed_domains: tuple[str, ...] = ()
    listeners: tuple[ListeningSocket, ...] = ()
    layers: tuple[str, ...] = LAYERS
    waiting: ReadyStart | str = "nothing is kept ready for it"
    session: bool = False
    continues: str = ""
    secrets: Secrets = NO_SECRETS
    shown: tuple[Shown, ...] = ()

    @property
    def held_by(self) -> tuple[str, ...]:
        """What holds its cell, as its wall names it."""
        return WALLS[self.wall].layers
