"""``!command`` and ``%%bash``: their output is the step's, in order and byte for byte, and an interrupt ends them.

The output of a command goes through pipes and is written here, not by the command into the step's own pipes: only so
the host knows what came before a picture and what after it. IPython itself gives the command a terminal, which colours
and folds its output for a person and needs a /dev/pts of the cell's own. Commands that are left behind (``cmd &``) go
on writing into the step that started them.

Where the host wants that, it is asked before a command runs, or before Python code starts a program in its own ways,
which an audit hook sees (PEP 578). This keeps nothing in: the walls do. The answer comes
through the pipe of requests, where nothing else comes while a step runs. Whoever waits reads it, for the others too.
When the step ends nobody waits any more, and an answer that is still on its way is passed over.
"""

import codecs
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
from _thread import allocate_lock
from select import POLLIN, poll

from _casemate.session_frames import pipes  # type: ignore[import-not-found]
from _casemate.session_interrupts import REQUESTS, interrupts  # type: ignore[import-not-found]
from _casemate.session_interrupts import own as __builtins__  # type: ignore[no-redef]
from _casemate.session_steps import ERR, OUT, steps  # type: ignore[import-not-found]
from _casemate.session_streams import file_of, streams  # type: ignore[import-not-found]
from IPython.core.magic import cell_magic, magics_class
from IPython.core.magic_arguments import magic_arguments
from IPython.core.magics.script import ScriptMagics, script_args
from IPython.utils.text import LSString, SList

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Writers = dict[int, Callable[[bytes], object]]

__all__ = ["SessionScripts", "__builtins__", "approvals", "output_of", "run_pip", "run_shell"]

_MOST = 1 << 20  # characters of a command: nobody looks through more
_MOST_PROMPT = 10_000  # characters
_LOOK_MS = 50  # how long a thread waits at most before it sees that its step is over
_PIECE = 1 << 16
_PIP = f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}/pip_command.py"
_LOOK_SECONDS = 0.05  # how long a command has ended at most before that is seen, when others hold its pipes
_END_SECONDS = 0.5  # how long an interrupted command has to end, and then once more
_Popen: "Any" = subprocess.Popen
_PIPE, _STDOUT = subprocess.PIPE, subprocess.STDOUT


class _CommandApprovals:
    """``asks``: the kinds of commands that the host wants to be asked about in the step that runs."""

    __slots__ = ("_answers", "_count", "_is_watching", "_lock", "asks")

    def __init__(self) -> None:
        self.asks: "tuple[str, ...]" = ()
        self._answers: "dict[int, dict[str, Any]]" = {}
        self._count = 0
        self._is_watching = False
        self._lock = allocate_lock()  # of who reads

    def begin(self, asks: "list[str]") -> None:
        """A step begins."""
        self._answers.clear()
        self.asks = tuple(asks)
        if "process" in self.asks and not self._is_watching:
            self._is_watching = True
            sys.addaudithook(_watch_starts)

    def end(self) -> None:
        """The step is over: wait until nobody reads any more."""
        self.asks = ()
        with self._lock:
            return

    def require(self, command: str, input_text: "str | None" = None, kind: str = "shell") -> None:
        """Wait until the host allows it. Raises ``PermissionError`` when it does not."""
        if kind not in self.asks:
            return
        if len(command) + len(input_text or "") > _MOST:
            raise PermissionError("a command has to be allowed, and this one is too long to be shown")
        arguments = {"command": command} if input_text is None else {"command": command, "input": input_text}
        answer = self._wait(self._send_request("ask", "a command has to be allowed", kind=kind, arguments=arguments))
        if answer is None:
            raise PermissionError("the command was not allowed: its step is over")
        if answer["allow"] is not True:
            raise PermissionError("the command was not allowed: " + (answer["reason"] or "it was denied"))

    def read_line(self, prompt: str, hidden: bool) -> "str | None":
        """A line that a person types in; None where there is none."""
        answer = self._wait(
            self._send_request("input", "a line is wanted", prompt=prompt[:_MOST_PROMPT], hidden=hidden)
        )
        return answer["reason"] if answer is not None and answer["allow"] is True else None

    def _send_request(self, frame: str, what: str, **fields: object) -> int:
        step = steps.current()
        if not pipes.are_mine():
            raise PermissionError(f"{what}, and a forked process cannot ask: use subprocess")
        if step is not steps.running:
            raise PermissionError(f"{what}, and nobody can be asked: its step is over")
        self._count += 1
        number = self._count
        step.send_fields(frame, id=number, **fields)
        return number

    def _wait(self, number: int) -> "dict[str, Any] | None":
        """The answer; None when the step is over."""
        while self.asks:
            with self._lock:
                answer = self._answers.pop(number, None)
                if answer is None and self.asks:
                    self._read()
            if answer is not None:
                return answer
        return None

    def _read(self) -> None:
        """One more answer, if it is there soon. Under the lock."""
        waiter = poll()
        waiter.register(REQUESTS, POLLIN)
        if not waiter.poll(_LOOK_MS):
            return
        interrupts.hold()
        try:
            answer = pipes.receive()
            if answer is None:
                self.asks = ()
            elif answer["op"] == "answer":
                self._answers[answer["id"]] = answer
        finally:
            interrupts.release()

    def renew_lock(self) -> None:
        """In a forked child."""
        self._lock = allocate_lock()


approvals = _CommandApprovals()


class _Starts(threading.local):
    """Of each thread: ``is_ours``: what it starts now is a command's; ``allowed``: the last one that may start."""

    is_ours = False
    allowed = ""


_starts = _Starts()
# Where the command is among an event's arguments: https://docs.python.org/3/library/audit_events.html
_COMMAND_OF = {"subprocess.Popen": 1, "os.system": 0, "pty.spawn": 0, "os.posix_spawn": 1, "os.exec": 1}
_WITHIN_ANOTHER = ("os.posix_spawn", "os.exec")


def _watch_starts(event: str, arguments: "tuple[Any, ...]") -> None:
    """Ask before a program starts."""
    place = _COMMAND_OF.get(event)
    if place is None or "process" not in approvals.asks or _starts.is_ours:
        return
    command = _text_of(arguments[place])
    if event in _WITHIN_ANOTHER and command == _starts.allowed:
        return
    approvals.require(command, kind="process")
    _starts.allowed = command


def _text_of(command: "Any") -> str:
    if isinstance(command, (str, bytes, os.PathLike)):
        return os.fsdecode(command)
    return shlex.join(os.fsdecode(word) for word in command)


def _popen(command: "list[str]", **options: "Any") -> "Any":
    """Start what was asked about as a command, or need not be."""
    _starts.is_ours = True
    try:
        return _Popen(command, **options)
    finally:
        _starts.is_ours = False


def run_shell(command: str) -> int:
    """Run a line of shell; its exit code, negative for the signal that ended it."""
    approvals.require(command)
    steps.current().flush()
    if command.rstrip().endswith("&"):
        return _start_in_background(command)
    process = _popen(_shell(command), stdout=_PIPE, stderr=_PIPE, start_new_session=True)
    return _wait_for(process, {process.stdout.fileno(): _writer(OUT), process.stderr.fileno(): _writer(ERR)})


def run_pip(line: str) -> int:
    """Run casemate's pip, as `run_shell`; what it asks for is asked about on the host."""
    steps.current().flush()
    process = _popen(
        [sys.executable, "-I", _PIP, *shlex.split(line)], stdout=_PIPE, stderr=_PIPE, start_new_session=True
    )
    return _wait_for(process, {process.stdout.fileno(): _writer(OUT), process.stderr.fileno(): _writer(ERR)})


def output_of(command: str, split: bool) -> "tuple[object, int]":
    """What a line of shell writes (to both streams, as IPython does), and its exit code."""
    approvals.require(command)
    pieces: "list[bytes]" = []
    process = _popen(_shell(command), stdout=_PIPE, stderr=_STDOUT, start_new_session=True)
    code = _wait_for(process, {process.stdout.fileno(): pieces.append})
    text = b"".join(pieces).decode("utf-8", "replace")
    return (SList(text.splitlines()) if split else LSString(text)), code


def _shell(command: str) -> "list[str]":
    wanted = (os.environ.get("SHELL", ""), "/bin/bash", "/usr/bin/bash")
    return [next((path for path in wanted if path and os.access(path, os.X_OK)), "/bin/sh"), "-c", command]


def _start_in_background(command: str) -> int:
    """Start it and look no further; it has the step's own pipes."""
    process = _popen(_shell(command), start_new_session=True)
    code: int = process.wait()
    return code


def _writer(which: int) -> "Callable[[bytes], object]":
    """Where output goes: into the step, or to what the program has put in the place of the stream (``%%capture``)."""
    stream: "Any" = sys.stdout if which == OUT else sys.stderr
    if stream is streams[which] or stream is None:
        step = steps.current()
        return lambda data: step.write_bytes(which, data)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return lambda data: stream.write(decoder.decode(data))


def _wait_for(process: "Any", writers: "Writers") -> int:
    """Hand on what the command writes, until it has ended. An interrupt ends it."""
    try:
        remaining = _copy_output(process, dict(writers))
        if remaining:
            _copy_output_later(process, remaining)
        code: int = process.wait()
    except BaseException:
        _end(process, writers)
        raise
    return code


def _copy_output(process: "Any", writers: "Writers") -> "Writers":
    """Until the command has ended; the pipes that something it has left behind still holds."""
    waiter = select.poll()
    for descriptor in writers:
        waiter.register(descriptor, select.POLLIN)
    has_ended = False
    while writers:
        ready = waiter.poll(0 if has_ended else _LOOK_SECONDS * 1000)
        if not ready and has_ended:
            return writers
        for descriptor, _ in ready:
            data = os.read(descriptor, _PIECE)
            if data:
                writers[descriptor](data)
            else:
                waiter.unregister(descriptor)
                del writers[descriptor]
        has_ended = has_ended or (not ready and process.poll() is not None)
    return writers


def _copy_output_later(process: "Any", writers: "Writers") -> None:
    """What the command has left behind goes on writing: closing its pipes would end it."""

    def copy() -> None:
        _copy_output(_BackgroundProcess(process), writers)

    threading.Thread(target=copy, name="casemate-output", daemon=True).start()


class _BackgroundProcess:
    """Stands for what a command has left behind, which ends when its pipes do. Holds them open."""

    def __init__(self, process: "Any") -> None:
        self._process = process

    def poll(self) -> None:
        """Never."""


def _end(process: "Any", writers: "Writers") -> None:
    """Ask it to end as Ctrl-C does, then make it; what it says meanwhile is still read."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except OSError:
            break
        if _ends_in_time(process):
            break
    for descriptor, put in writers.items():
        while select.select([descriptor], [], [], 0)[0]:
            data = os.read(descriptor, _PIECE)
            if not data:
                break
            put(data)


def _ends_in_time(process: "Any") -> bool:
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


@magics_class
class SessionScripts(ScriptMagics):  # type: ignore[misc]
    """``%%bash``, ``%%sh``, ``%%script`` and the like without the thread and the event loop of IPython's own."""

    @magic_arguments()  # type: ignore[untyped-decorator]
    @script_args  # type: ignore[untyped-decorator]
    @cell_magic("script")  # type: ignore[untyped-decorator]
    def shebang(self, line: str, cell: str) -> None:
        """Run the cell by the program that the line names; options as in IPython."""
        arguments, command = self.shebang.parser.parse_known_args(shlex.split(line))
        approvals.require(" ".join(command), cell)
        if arguments.bg:
            ScriptMagics.shebang(self, line, cell)
            return
        steps.current().flush()
        source = file_of((cell if cell.endswith("\n") else cell + "\n").encode("utf-8", "replace"))
        try:
            process = _popen(command, stdin=source, stdout=_PIPE, stderr=_PIPE, start_new_session=True)
        except FileNotFoundError:
            raise FileNotFoundError(2, "there is no such program", command[0]) from None
        finally:
            os.close(source)
        captured: "dict[str, list[bytes]]" = {name: [] for name in (arguments.out, arguments.err) if name}
        code = _wait_for(
            process,
            {
                process.stdout.fileno(): captured[arguments.out].append if arguments.out else _writer(OUT),
                process.stderr.fileno(): captured[arguments.err].append if arguments.err else _writer(ERR),
            },
        )
        for name, pieces in captured.items():
            self.shell.user_ns[name] = b"".join(pieces).decode("utf-8", "replace")
        if code and getattr(arguments, "raise_error", True):
            raise subprocess.CalledProcessError(code, cell)
