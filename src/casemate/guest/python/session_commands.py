"""``!command`` and ``%%bash``: the step outputs what they output, in order and byte for byte. An interrupt ends them.

Their output goes through pipes and is written here, not by the command into the step's own pipes. Only then does the
host know what came before a picture and what after it. IPython itself gives the command a terminal, which adds colours
and line breaks and needs a private /dev/pts. Background commands (``cmd &``) keep writing to the step that started
them.

If the host wants approvals, it is asked before a command runs, or before Python code starts a program by other means,
which an audit hook sees (PEP 578). This is no protection: the walls are. The answer comes through the pipe of requests,
which carries nothing else during a step. Any waiting thread reads it, also for the others. When the step ends all
waiting ends, and a late answer is ignored.
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

_MOST = 1 << 20  # characters of a command; a person cannot review more
_MOST_PROMPT = 10_000  # characters
_LOOK_MS = 50  # the longest time until a waiting thread sees that its step is over
_PIECE = 1 << 16
_PIP = f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}/pip_command.py"
_LOOK_SECONDS = 0.05  # the longest time until a command's end is seen if other processes hold its pipes
_END_SECONDS = 0.5  # time for an interrupted command to end after each signal
_Popen: "Any" = subprocess.Popen
_PIPE, _STDOUT = subprocess.PIPE, subprocess.STDOUT


class _CommandApprovals:
    """Asks the host before commands. ``asks``: the kinds that need approval in the current step."""

    __slots__ = ("_answers", "_count", "_is_watching", "_lock", "asks")

    def __init__(self) -> None:
        self.asks: "tuple[str, ...]" = ()
        self._answers: "dict[int, dict[str, Any]]" = {}
        self._count = 0
        self._is_watching = False
        self._lock = allocate_lock()  # held by the thread that reads

    def begin(self, asks: "list[str]") -> None:
        self._answers.clear()
        self.asks = tuple(asks)
        if "process" in self.asks and not self._is_watching:
            self._is_watching = True
            sys.addaudithook(_watch_starts)

    def end(self) -> None:
        """End the step, and wait until no thread reads."""
        self.asks = ()
        with self._lock:
            return

    def require(self, command: str, input_text: "str | None" = None, kind: str = "shell") -> None:
        """Wait until the host allows it. Raises ``PermissionError`` if it does not."""
        if kind not in self.asks:
            return
        if len(command) + len(input_text or "") > _MOST:
            raise PermissionError("a command has to be allowed, and this one is too long to be shown")
        arguments = {"command": command} if input_text is None else {"command": command, "input": input_text}
        fields = {"kind": kind, "arguments": arguments, "line": _line_of_step()}
        answer = self._wait(self._send_request("ask", "a command has to be allowed", **fields))
        if answer is None:
            raise PermissionError("the command was not allowed: its step is over")
        if answer["allow"] is not True:
            raise PermissionError("the command was not allowed: " + (answer["reason"] or "it was denied"))

    def read_line(self, prompt: str, hidden: bool) -> "str | None":
        """Return a line that a person types, or None."""
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
        """Return the answer, or None if the step is over."""
        while self.asks:
            with self._lock:
                answer = self._answers.pop(number, None)
                if answer is None and self.asks:
                    self._read()
            if answer is not None:
                return answer
        return None

    def _read(self) -> None:
        """Read one more answer if it comes soon. Call under the lock."""
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
        """Replace the lock in a forked child."""
        self._lock = allocate_lock()


approvals = _CommandApprovals()


def _line_of_step() -> "int | None":
    """Return the innermost line of the step's code that runs in this thread, if there is one."""
    lines: "dict[str, int]" = {}
    frame: "Any" = sys._getframe()
    while frame is not None:
        code = frame.f_code
        lines.setdefault(code.co_filename, frame.f_lineno)
        if code.co_name == "<module>" and code.co_filename.startswith("<ipython-input"):
            return lines[code.co_filename]
        frame = frame.f_back
    return None


class _Starts(threading.local):
    is_ours = False  # whether this thread is starting a command
    allowed = ""  # the last program that this thread may start


_starts = _Starts()
# The index of the command among an event's arguments: https://docs.python.org/3/library/audit_events.html
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
    """Start a command that was approved or needs no approval."""
    _starts.is_ours = True
    try:
        return _Popen(command, **options)
    finally:
        _starts.is_ours = False


def run_shell(command: str) -> int:
    """Run a line of shell. Returns its exit code, negative for the signal that ended it."""
    approvals.require(command)
    steps.current().flush()
    if command.rstrip().endswith("&"):
        return _start_in_background(command)
    return _run(_shell(command))


def run_pip(line: str) -> int:
    """Run casemate's pip, like `run_shell`. The host asks for approval."""
    steps.current().flush()
    return _run([sys.executable, "-I", _PIP, *shlex.split(line)])


def _run(words: "list[str]") -> int:
    process = _popen(words, stdout=_PIPE, stderr=_PIPE, start_new_session=True)
    return _wait_for(process, {process.stdout.fileno(): _writer(OUT), process.stderr.fileno(): _writer(ERR)})


def output_of(command: str, split: bool) -> "tuple[object, int]":
    """Return the output of a line of shell (both streams, as in IPython) and its exit code."""
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
    """Start it with the step's own pipes."""
    process = _popen(_shell(command), start_new_session=True)
    code: int = process.wait()
    return code


def _writer(which: int) -> "Callable[[bytes], object]":
    """Return where output goes: to the step, or to the program's replacement for the stream (``%%capture``)."""
    stream: "Any" = sys.stdout if which == OUT else sys.stderr
    if stream is streams[which] or stream is None:
        step = steps.current()
        return lambda data: step.write_bytes(which, data)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return lambda data: stream.write(decoder.decode(data))


def _wait_for(process: "Any", writers: "Writers") -> int:
    """Copy the command's output until it has ended. An interrupt ends it."""
    try:
        remaining = _copy_output(process, dict(writers))
        if remaining:  # background processes still write, and closing their pipes would end them
            copying = (process, remaining, True)
            threading.Thread(target=_copy_output, args=copying, name="casemate-output", daemon=True).start()
        code: int = process.wait()
    except BaseException:
        _end(process, writers)
        raise
    return code


def _copy_output(process: "Any", writers: "Writers", to_their_end: bool = False) -> "Writers":
    """Copy until the command, or with ``to_their_end`` each pipe, has ended. Returns pipes that others still hold."""
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
        has_ended = has_ended or not (ready or to_their_end or process.poll() is None)
    return writers


def _end(process: "Any", writers: "Writers") -> None:
    """End it with SIGINT, then stronger signals. Its output until then is still read."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        except OSError:
            pass
        break
    for descriptor, put in writers.items():
        while select.select([descriptor], [], [], 0)[0]:
            data = os.read(descriptor, _PIECE)
            if not data:
                break
            put(data)


@magics_class
class SessionScripts(ScriptMagics):  # type: ignore[misc]
    """``%%bash``, ``%%sh``, ``%%script`` and the like, without IPython's thread and event loop."""

    @magic_arguments()  # type: ignore[untyped-decorator]
    @script_args  # type: ignore[untyped-decorator]
    @cell_magic("script")  # type: ignore[untyped-decorator]
    def shebang(self, line: str, cell: str) -> None:
        """Run the cell with the program that the line names; options as in IPython."""
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
