"""``!command`` and ``%%bash``: their output is the step's, in order and byte for byte, and an interrupt ends them.

The output of a command goes through pipes and is written here, not by the command into the step's own pipes: only so
the host knows what came before a picture and what after it. IPython itself gives the command a terminal, which colours
and folds its output for a person and needs a /dev/pts of the cell's own. Commands that are left behind (``cmd &``) go
on writing into the step that started them.
"""

import codecs
import os
import select
import shlex
import signal
import subprocess
import sys
import threading

from _casemate.session_asks import asks  # type: ignore[import-not-found]
from _casemate.session_input import file_of  # type: ignore[import-not-found]
from _casemate.session_own import own as __builtins__  # type: ignore[import-not-found,no-redef]
from _casemate.session_steps import ERR, OUT, steps  # type: ignore[import-not-found]
from _casemate.session_streams import streams  # type: ignore[import-not-found]
from IPython.core.magic import cell_magic, magics_class
from IPython.core.magic_arguments import magic_arguments
from IPython.core.magics.script import ScriptMagics, script_args
from IPython.utils.text import LSString, SList

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Outlets = dict[int, Callable[[bytes], object]]

__all__ = ["SessionScripts", "__builtins__", "output_of", "run_pip", "run_shell"]

_PIECE = 1 << 16
_PIP = f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}/pip_command.py"
_LOOK_SECONDS = 0.05  # how long a command has ended at most before that is seen, when others hold its pipes
_PATIENCE = 0.5  # how long an interrupted command has to end, and then once more
_popen: "Any" = subprocess.Popen
_PIPE, _STDOUT = subprocess.PIPE, subprocess.STDOUT


def run_shell(command: str) -> int:
    """Run a line of shell; its exit code, negative for the signal that ended it."""
    asks.permission(command)
    steps.current().flush()
    if command.rstrip().endswith("&"):
        return _left_behind(command)
    process = _popen(_shell(command), stdout=_PIPE, stderr=_PIPE, start_new_session=True)
    return _attend(process, {process.stdout.fileno(): _writer(OUT), process.stderr.fileno(): _writer(ERR)})


def run_pip(line: str) -> int:
    """Run casemate's pip, as `run_shell`; what it asks for is asked about on the host."""
    steps.current().flush()
    process = _popen(
        [sys.executable, "-I", _PIP, *shlex.split(line)], stdout=_PIPE, stderr=_PIPE, start_new_session=True
    )
    return _attend(process, {process.stdout.fileno(): _writer(OUT), process.stderr.fileno(): _writer(ERR)})


def output_of(command: str, split: bool) -> "tuple[object, int]":
    """What a line of shell writes (to both streams, as IPython does), and its exit code."""
    asks.permission(command)
    pieces: "list[bytes]" = []
    process = _popen(_shell(command), stdout=_PIPE, stderr=_STDOUT, start_new_session=True)
    code = _attend(process, {process.stdout.fileno(): pieces.append})
    text = b"".join(pieces).decode("utf-8", "replace")
    return (SList(text.splitlines()) if split else LSString(text)), code


def _shell(command: str) -> "list[str]":
    wanted = (os.environ.get("SHELL", ""), "/bin/bash", "/usr/bin/bash")
    return [next((path for path in wanted if path and os.access(path, os.X_OK)), "/bin/sh"), "-c", command]


def _left_behind(command: str) -> int:
    """Start it and look no further; it has the step's own pipes."""
    process = _popen(_shell(command), start_new_session=True)
    code: int = process.wait()
    return code


def _writer(which: int) -> "Callable[[bytes], object]":
    """Where output goes: into the step, or to what the program has put in the place of the stream (``%%capture``)."""
    stream: "Any" = sys.stdout if which == OUT else sys.stderr
    if stream is streams[which] or stream is None:
        step = steps.current()
        return lambda data: step.data(which, data)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return lambda data: stream.write(decoder.decode(data))


def _attend(process: "Any", outlets: "Outlets") -> int:
    """Hand on what the command writes, until it has ended. An interrupt ends it."""
    try:
        left = _hand_on(process, dict(outlets))
        if left:
            _hand_on_later(process, left)
        code: int = process.wait()
    except BaseException:
        _end(process, outlets)
        raise
    return code


def _hand_on(process: "Any", outlets: "Outlets") -> "Outlets":
    """Until the command has ended; the pipes that something it has left behind still holds."""
    waiter = select.poll()
    for descriptor in outlets:
        waiter.register(descriptor, select.POLLIN)
    ended = False
    while outlets:
        ready = waiter.poll(0 if ended else _LOOK_SECONDS * 1000)
        if not ready and ended:
            return outlets
        for descriptor, _ in ready:
            data = os.read(descriptor, _PIECE)
            if data:
                outlets[descriptor](data)
            else:
                waiter.unregister(descriptor)
                del outlets[descriptor]
        ended = ended or (not ready and process.poll() is not None)
    return outlets


def _hand_on_later(process: "Any", outlets: "Outlets") -> None:
    """What the command has left behind goes on writing: closing its pipes would end it."""

    def attend() -> None:
        _hand_on(_Endless(process), outlets)

    threading.Thread(target=attend, name="casemate-output", daemon=True).start()


class _Endless:
    """Stands for what a command has left behind, which ends when its pipes do. Holds them open."""

    def __init__(self, process: "Any") -> None:
        self._process = process

    def poll(self) -> None:
        """Never."""


def _end(process: "Any", outlets: "Outlets") -> None:
    """Ask it to end as Ctrl-C does, then make it; what it says meanwhile is still heard."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except OSError:
            break
        if _ends_in_time(process):
            break
    for descriptor, put in outlets.items():
        while select.select([descriptor], [], [], 0)[0]:
            data = os.read(descriptor, _PIECE)
            if not data:
                break
            put(data)


def _ends_in_time(process: "Any") -> bool:
    try:
        process.wait(_PATIENCE)
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
        arguments, command = self.shebang.parser.parse_known_args(_split(line))
        asks.permission(" ".join(command), cell)
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
        kept: "dict[str, list[bytes]]" = {name: [] for name in (arguments.out, arguments.err) if name}
        code = _attend(
            process,
            {
                process.stdout.fileno(): kept[arguments.out].append if arguments.out else _writer(OUT),
                process.stderr.fileno(): kept[arguments.err].append if arguments.err else _writer(ERR),
            },
        )
        for name, pieces in kept.items():
            self.shell.user_ns[name] = b"".join(pieces).decode("utf-8", "replace")
        if code and getattr(arguments, "raise_error", True):
            raise subprocess.CalledProcessError(code, cell)


def _split(line: str) -> "list[str]":
    import shlex

    return shlex.split(line)
