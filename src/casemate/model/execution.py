"""The outcome of one execution: its output, its files, its connections, and how it ended."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from casemate.errors import ExecutionFailed, Unavailable
from casemate.model.isolation import IsolationReport, hidden_notes
from casemate.model.shown import Shown

if TYPE_CHECKING:
    from os import PathLike

    from casemate.model.showing import Summary


@dataclass(frozen=True, slots=True)
class Crossing:
    """All connections to one host and port with the same decision.

    Attributes:
        host: A canonical name, or the requested text, printable, of at most 253 characters.
        port: 0 if only a name was looked up, and denied.
        reason: The rule or answer that decided, or what went wrong, in at most 200 characters.
        bytes_out: Sent by the cell.
        bytes_in: Received by the cell.
        is_reached: Whether there was a connection: an allowed host may have no address, or not answer.
    """

    host: str
    port: int
    decision: Literal["allowed", "denied"]
    reason: str
    connections: int = 1
    bytes_out: int = 0
    bytes_in: int = 0
    is_reached: bool = False


def not_reached(crossings: Iterable[Crossing]) -> list[tuple[str, str]]:
    """The hosts, with ports, that were denied or never reached, and why, in the order of the first attempt."""
    known = list(crossings)
    reached = {(one.host, one.port) for one in known if one.is_reached}
    found: dict[tuple[str, str, str], list[int]] = {}
    for one in known:
        if one.decision == "denied":
            found[f"{one.host}:{one.port}" if one.port else one.host, one.reason, one.decision] = []
        elif not one.is_reached and (one.host, one.port) not in reached:
            found.setdefault((one.host, one.reason, one.decision), []).append(one.port)
    return [
        (f"{where}:{','.join(map(str, ports))}" if ports else where, why) for (where, why, _), ports in found.items()
    ]


def hidden_in_vain(execution: Execution) -> list[str]:
    """What was hidden from a failed program whose output says that it could not open a file."""
    said = execution.stderr + (execution.error.traceback if execution.error else "")
    return [] if execution.ok else hidden_notes(execution.isolation.notes, said)


def since(before: Sequence[Crossing], now: Sequence[Crossing]) -> tuple[Crossing, ...]:
    """The crossings in ``now`` minus those in ``before``. Each host, port, decision and reason is in a list once."""
    known = {(one.host, one.port, one.decision, one.reason): one for one in before}
    return tuple(
        new for one in now if (new := _less(one, known.get((one.host, one.port, one.decision, one.reason)))) is not None
    )


def _less(now: Crossing, before: Crossing | None) -> Crossing | None:
    if before is None:
        return now
    if now == before:
        return None
    return replace(
        now,
        connections=now.connections - before.connections,
        bytes_out=now.bytes_out - before.bytes_out,
        bytes_in=now.bytes_in - before.bytes_in,
    )


class Content(Protocol):
    """Bytes on the host, out of reach of all cells."""

    def read_bytes(self) -> bytes:
        """The whole content."""

    def save(self, path: str | PathLike[str]) -> None:
        """Copy it to ``path``, replacing an existing file, without setuid bits."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a run left: ``name`` (relative, with ``/``), ``size`` in bytes, ``sha256`` in hex, ``media_type``."""

    name: str
    size: int
    sha256: str
    media_type: str
    content: Content = field(repr=False, compare=False)

    def read_bytes(self) -> bytes:
        """The file's bytes, which ``sha256`` is the hash of."""
        return self.content.read_bytes()

    def save(self, path: str | PathLike[str]) -> None:
        """Copy the file to ``path``, replacing an existing one.

        Raises:
            OSError: The file cannot be written.
        """
        self.content.save(path)


@dataclass(frozen=True, slots=True)
class Download(Artifact):
    """A file that a page downloaded; ``base64``: its content."""

    @property
    def base64(self) -> bytes:
        return self.read_bytes()


class Prover:
    """Signs an outcome, which may block. A copy of the outcome in another process has none."""

    def __init__(self, sign: Callable[[Execution], dict[str, Any]]) -> None:
        self.sign = sign

    def __deepcopy__(self, memo: object) -> Prover:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class Result(Mapping[str, Any]):
    """One displayed object: a mapping of MIME type to data.

    Text types are ``str``, ``application/json`` is a Python value, binary types are base64 ``str``, as in Jupyter. The
    attributes have the usual types, or None. ``metadata``: by type, how Jupyter displays it (such as the size of a
    picture); only in sessions.
    """

    __slots__ = ("_bundle", "metadata")

    def __init__(self, bundle: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> None:
        self._bundle = dict(bundle)
        self.metadata = dict(metadata or {})

    def __getitem__(self, media_type: str) -> Any:
        return self._bundle[media_type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bundle)

    def __len__(self) -> int:
        return len(self._bundle)

    def __repr__(self) -> str:
        return f"Result({', '.join(self._bundle)})"

    def _text(self, media_type: str) -> str | None:
        value = self._bundle.get(media_type)
        return value if isinstance(value, str) else None

    @property
    def text(self) -> str | None:
        return self._text("text/plain")

    @property
    def html(self) -> str | None:
        return self._text("text/html")

    @property
    def markdown(self) -> str | None:
        return self._text("text/markdown")

    @property
    def svg(self) -> str | None:
        return self._text("image/svg+xml")

    @property
    def png(self) -> str | None:
        """Base64 of the picture."""
        return self._text("image/png")

    @property
    def jpeg(self) -> str | None:
        """Base64 of the picture."""
        return self._text("image/jpeg")

    @property
    def pdf(self) -> str | None:
        """Base64 of the document."""
        return self._text("application/pdf")

    @property
    def latex(self) -> str | None:
        return self._text("text/latex")

    @property
    def json(self) -> Any:
        return self._bundle.get("application/json")


@dataclass(frozen=True, slots=True)
class Image:
    """A displayed picture: ``data`` in bytes, ``media_type`` ``image/png`` or ``image/jpeg``."""

    data: bytes
    media_type: str

    def __repr__(self) -> str:
        return f"<Image {self.media_type}, {len(self.data)} bytes>"

    def save(self, path: str) -> None:
        """Write the picture to ``path``.

        Raises:
            OSError: The file cannot be written.
        """
        with open(path, "wb") as file:
            file.write(self.data)


@dataclass(frozen=True, slots=True)
class ProgramError:
    """The language's uncaught exception: ``name`` of its type, ``value`` its message, ``traceback`` as printed."""

    name: str
    value: str
    traceback: str


Status = Literal["ok", "failed", "timeout", "out_of_memory", "killed", "cancelled", "denied"]


@dataclass(frozen=True, slots=True)
class Cause:
    """The limit, rule or caller that ended an execution.

    Attributes:
        code: A stable word: ``timeout``, ``memory_limit``, ``cpu_limit``, ``process_limit``, ``output_limit``,
            ``disk_limit``, ``inode_limit``, ``open_files_limit``, ``cancelled``, ``killed``, ``interpreter_ended``,
            ``denied`` or ``service_stopped``.
        message: The limit, and what was used.
        remediation: What to do about it.
        retryable: Whether the same code may succeed if it runs again.
    """

    code: str
    message: str
    remediation: str = ""
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """What the whole cell used: seconds of cpu, peak bytes of memory, peak number of tasks (0 if not measured)."""

    cpu_seconds: float
    peak_memory: int
    processes: int


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file of a run that was not returned, or not written back, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, repr=False)
class Execution(Shown):
    """The outcome of running some code. A failure of the program is a value here, not an exception.

    Attributes:
        exit_code: The program's own; 128 + N if signal N ended it; None if casemate did.
        text: All text in order (stdout, stderr and the text of results), and the traceback of an error that it does
            not contain; stripped.
        duration: Seconds from the cell's start to its end.
        skipped: Files of the run that were not returned, or not written back.
        crossings: The hosts that it reached or tried to reach; beyond some hundred, they are combined.
        background: What threads, tasks and processes of earlier steps wrote since the last step ended, stripped
            and cut as ``stdout`` is. It is not in ``stdout``, ``stderr`` or ``text``.
    """

    id: str
    status: Status
    exit_code: int | None
    stdout: str
    stderr: str
    text: str
    results: tuple[Result, ...]
    error: ProgramError | None
    artifacts: tuple[Artifact, ...]
    full_output: Artifact | None
    truncated: bool
    usage: Usage
    duration: float
    cause: Cause | None
    isolation: IsolationReport
    skipped: tuple[SkippedFile, ...] = ()
    state: Literal["kept", "lost"] | None = None
    lost_names: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    crossings: tuple[Crossing, ...] = ()
    background: str = ""
    prover: Prover | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.status == "ok"

    @property
    def images(self) -> tuple[Image, ...]:
        """The pictures among ``results``, one for each; without those that are not valid base64."""
        images = []
        for result in self.results:
            for media_type in ("image/png", "image/jpeg"):
                encoded = result.get(media_type)
                if isinstance(encoded, str):
                    try:
                        images.append(Image(base64.b64decode(encoded, validate=True), media_type))
                    except ValueError:
                        continue
                    break
        return tuple(images)

    def raise_for_status(self) -> Self:
        """Return this execution if it is ``ok``.

        Raises:
            ExecutionFailed: It is not ``ok``; the error has it as ``execution``.
        """
        if not self.ok:
            raise ExecutionFailed(self)
        return self

    def statement(self) -> dict[str, Any]:
        """What ran and its outcome, signed: a DSSE envelope with an in-toto statement, as JSON values. Blocks.

        Raises:
            Unavailable: There is no key, or part of it is not on record.
            RecordUnavailable: The record cannot be read.
        """
        if self.prover is None:
            raise Unavailable("this outcome has no sandbox that can sign it")
        return self.prover.sign(self)

    def _line(self) -> str:
        text = self.text[:200]  # the longest line
        return f"Execution {self._describe_end()} {self.id}{f': {text!r}' if text else ''}"

    def _describe_end(self) -> str:
        """How it ended, and how many results and files it has."""
        code = f" with {self.exit_code}" if self.exit_code else ""
        counted = ((len(self.results), "result"), (len(self.artifacts), "file"))
        more = "".join(f", {number} {what}{'s' if number > 1 else ''}" for number, what in counted if number)
        return f"{self.status}{code} in {self.duration:.3g} s{more}"

    def _summary(self) -> Summary:
        from casemate.model.limits import format_size
        from casemate.model.showing import Part, Summary, list_first, part_of

        cause = self.cause
        facts = (
            ("files", list_first([f"{one.name} ({format_size(one.size)})" for one in self.artifacts])),
            ("left out", list_first([f"{one.name}: {one.reason}" for one in self.skipped])),
            ("hidden", " ".join(hidden_in_vain(self))),
            ("not reached", list_first([f"{where}: {why}" for where, why in not_reached(self.crossings)])),
            ("output", "cut; full_output has all of it" if self.truncated else ""),
            ("state", self.state or ""),
            ("lost", list_first(self.lost_names)),
            ("used", f"{self.usage.cpu_seconds:.3g} s of cpu, {format_size(self.usage.peak_memory)}"),
            ("id", self.id),
        )
        why = f"{cause.message} {cause.remediation}".strip() if cause else ""
        texts = {"why": why, "stdout": self.stdout, "stderr": self.stderr}
        if self.error is not None and self.error.traceback.strip() not in self.stderr:
            texts["error"] = self.error.traceback
        texts["background"] = self.background
        written = (Part(label, text) for label, text in texts.items() if text)
        parts = [*written, *map(part_of, self.results)]
        return Summary(f"Execution {self._describe_end()}", facts, parts, "good" if self.ok else "bad")
