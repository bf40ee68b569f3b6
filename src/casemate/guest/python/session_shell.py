"""A session's IPython shell: no terminal, no history file, no configuration, and frames instead of prints."""

import contextlib
import fnmatch
import functools
import sys

from _casemate import session_display  # type: ignore[import-not-found]
from _casemate import session_errors as errors
from _casemate.packages import use_installed  # type: ignore[import-not-found]
from _casemate.session_commands import SessionScripts, output_of, run_pip, run_shell  # type: ignore[import-not-found]
from _casemate.session_display import InlineBackend, Publisher, ResultHook  # type: ignore[import-not-found]
from _casemate.session_interrupts import own as __builtins__  # type: ignore[import-not-found,no-redef]
from _casemate.session_loop import loop  # type: ignore[import-not-found]
from _casemate.session_streams import stdin  # type: ignore[import-not-found]
from IPython.core import interactiveshell
from IPython.core.autocall import ExitAutocall
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from IPython.display import display
from traitlets import Any as AnyTrait
from traitlets import Type
from traitlets.config import Config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["Shell", "__builtins__", "make_shell"]

_RESULTS_KEPT = 50  # in Out; results may be large, and a session may be idle for long
_NEXT_INPUT = "application/vnd.casemate.next-input+json"
_INLINE = (None, "inline", "agg", "auto", "asyncio")  # asyncio tasks run between steps anyway
_MISSING = {
    "edit": "there is no editor: write files with %%writefile",
    **dict.fromkeys(("less", "more", "man"), "there is no pager: print the text, or show it with !cat"),
}
_IPYTHONS_OWN = ("_run_cell", "run_cell_async", "run_ast_nodes", "run_code")


class _Exit(ExitAutocall):  # type: ignore[misc]
    """``exit``, ``exit()``, ``exit(3)``: end the interpreter."""

    def __call__(self, code: object = None) -> None:
        self._ip.ask_exit(code)


class Shell(InteractiveShell):  # type: ignore[misc]
    """Runs steps. ``end`` ends the process and is set when the session begins."""

    __qualname__ = "ZMQInteractiveShell"  # pandas takes "zmq" for a notebook; rich checks `__name__`
    display_pub_class = Type(Publisher)
    displayhook_class = Type(ResultHook)
    end = AnyTrait()

    # --- no access to the user's machine -----------------------------------------------------------------------------

    def init_ipython_dir(self, ipython_dir: "Any") -> None:
        """Use no folder."""

    def init_profile_dir(self, profile_dir: "Any") -> None:  # noqa: ARG002 - IPython's
        """Use no folder; IPython needs the object."""
        self.profile_dir = ProfileDir()

    def init_virtualenv(self) -> None:
        """The cell has set up the environment."""

    def init_sys_modules(self) -> None:
        """Do nothing. The session sets its main module when it begins, because a zygote has another."""

    @property
    def db(self) -> "Any":
        """The storage of ``%store`` and ``%bookmark``, for the session's life."""
        return self.__dict__.setdefault("_kept_things", _StoredThings())

    @db.setter
    def db(self, value: "Any") -> None:
        """Ignore IPython's folder."""

    # --- running ----------------------------------------------------------------------------------------------------

    def run_cell(self, *arguments: "Any", **options: "Any") -> "Any":
        """Run a cell within a step, as ``%%capture`` does, and show its figures."""
        result = super().run_cell(*arguments, **options)
        session_display.show_open_figures()
        return result

    def set_next_input(self, s: str, replace: bool = False) -> None:
        """Offer text for the next cell (``%load``, ``%recall``). Without a notebook the text is shown."""
        display({"text/plain": s, _NEXT_INPUT: {"text": s, "replace": replace}}, raw=True)

    async def run_code(self, code_obj: "Any", result: "Any" = None, *, async_: bool = False) -> bool:
        """Run compiled code. Returns whether it failed. The session reports the error when the step ends."""
        __tracebackhide__ = "__ipython_bottom__"
        hook, sys.excepthook = sys.excepthook, self.excepthook
        self.sys_excepthook = hook
        try:
            try:
                if async_:
                    await eval(code_obj, self.user_global_ns, self.user_ns)
                else:
                    exec(code_obj, self.user_global_ns, self.user_ns)
            finally:
                sys.excepthook = hook
        except self.custom_exceptions:
            self.CustomTB(*sys.exc_info())
            return self._record_failure(sys.exc_info()[1], result)
        except BaseException as error:
            return self._record_failure(error, result)
        return False

    def _record_failure(self, error: "BaseException | None", result: "Any") -> bool:
        if result is not None:
            result.error_in_exec = error
        if error is not None:
            errors.remember(error)
        return True

    @contextlib.contextmanager
    def _tee(self, channel: str) -> "Iterator[None]":  # noqa: ARG002 - IPython's
        """Do nothing. IPython would keep what a step prints; here the host does."""
        yield

    def _format_exception_for_storage(self, *_: object, **__: object) -> "dict[str, Any]":
        """Keep nothing. IPython would keep tracebacks."""
        return {}

    def safe_execfile(self, fname: "Any", *where: "Any", **options: "Any") -> None:
        """Run a script for ``%run``. Its error becomes the step's; IPython would only print it."""
        quiet = options.pop("exit_ignore", False)
        options["raise_exceptions"] = True
        try:
            super().safe_execfile(fname, *where, **options)
        except SystemExit:
            if not quiet:
                raise

    def safe_execfile_ipy(self, fname: "Any", shell_futures: bool = False, raise_exceptions: bool = True) -> None:  # noqa: ARG002
        """The same for an IPython file."""
        super().safe_execfile_ipy(fname, shell_futures=shell_futures, raise_exceptions=True)

    # --- errors -----------------------------------------------------------------------------------------------------

    def showtraceback(self, exc_tuple: "Any" = None, *_: object, **__: object) -> None:
        """Print a traceback, unless the error fails the step, which reports it to the host."""
        caller = sys._getframe(1)
        formatter = caller.f_locals.get("self")
        if self.displayhook.is_at_work and formatter is self.display_formatter.formatters["text/plain"]:
            self.displayhook.failure = exc_tuple[1]
        elif caller.f_code.co_name not in _IPYTHONS_OWN:
            try:
                error = self._get_exc_info(exc_tuple)[1]
            except ValueError:
                print("No traceback available to show.", file=sys.stderr)
            else:
                print(errors.text_of(self, error), file=sys.stderr)
        elif exc_tuple is not None and exc_tuple[1] is not None:
            errors.remember(exc_tuple[1])

    def showsyntaxerror(self, *_: object, **__: object) -> None:
        """Like `showtraceback`."""
        error = sys.exc_info()[1]
        if error is not None:
            errors.remember(error)
            if sys._getframe(1).f_code.co_name not in (*_IPYTHONS_OWN, "showindentationerror"):
                print(errors.text_of(self, error), file=sys.stderr)

    def debugger(self, force: bool = False) -> None:
        """Start ``%debug``, which needs input."""
        if force or self.call_pdb:
            stdin.require("the debugger")
            super().debugger(force)

    # --- commands ---------------------------------------------------------------------------------------------------

    def system(self, cmd: str) -> None:
        """Run ``!command``."""
        self._record_exit_code(cmd, run_shell(self.var_expand(cmd, depth=1) if _holds_names(cmd) else cmd))
        use_installed()

    system_piped = system_raw = system

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> "Any":
        """Run ``x = !command``."""
        output, code = output_of(self.var_expand(cmd, depth=depth + 1) if _holds_names(cmd) else cmd, split)
        self._record_exit_code(cmd, code)
        use_installed()
        return output

    def pip(self, line: str) -> None:
        """Run ``%pip``; the host installs. A failure ends the step, because its later code would miss the package."""
        code = run_pip(line)
        self._record_exit_code(f"pip {line}", code)
        use_installed()
        if code:
            raise UsageError(f"%pip {line.partition(' ')[0]} failed")

    def _record_exit_code(self, command: str, code: int) -> None:
        self.user_ns["_exit_code"] = code
        if code and getattr(self, "system_raise_on_error", False):
            from subprocess import CalledProcessError

            raise CalledProcessError(code, command)

    def ask_exit(self, code: object = None) -> None:
        """End the process now, for ``exit``."""
        self.end(code if isinstance(code, int) else 0 if code is None else 1)

    # --- pictures ---------------------------------------------------------------------------------------------------

    def enable_gui(self, gui: "str | None" = None) -> None:
        """Refuse windows."""
        if gui not in _INLINE:
            raise UsageError(
                f"there are no windows here for {gui!r}: figures are shown in the step without being asked for"
            )

    def enable_matplotlib(self, gui: "str | None" = None) -> "tuple[str, str]":
        """Accept ``%matplotlib inline``, which is already the behaviour."""
        self.enable_gui(gui)
        return "inline", "inline"


def _holds_names(command: str) -> bool:
    """Whether the command may contain names to expand. IPython's own search takes minutes for a very long line."""
    return "$" in command or "{" in command or "}" in command


def make_shell() -> Shell:
    """Make a shell that has run nothing. It starts no thread and opens no file."""
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    shell = _create_shell(config)
    shell.loop_runner = loop.run
    shell.Completer.use_jedi = False  # it takes seconds per library, and does not know the contents of objects
    shell.exiter = _Exit(shell)
    for name in ("exit", "quit"):
        shell.user_ns[name] = shell.user_ns_hidden[name] = shell.exiter
        shell.register_magic_function(lambda line, end=shell.ask_exit: end(int(line) if line else None), "line", name)
    shell.register_magics(SessionScripts)
    shell.register_magic_function(shell.pip, "line", "pip")
    for name, why in _MISSING.items():
        shell.register_magic_function(functools.partial(_refuse, f"%{name} is not there: {why}"), "line", name)
    shell.extension_manager.load_extension("IPython.extensions.storemagic")
    shell.history_manager.outputs = _EmptyHistory()
    shell.history_manager.exceptions = _EmptyHistory()
    shell.configurables.append(InlineBackend.instance(shell))
    return shell


def _create_shell(config: "Any") -> Shell:
    share_db = getattr(interactiveshell, "PickleShareDB", None)
    if share_db is not None:  # IPython 8 creates a folder when it starts
        interactiveshell.PickleShareDB = lambda _folder: None
    try:
        shell: Shell = Shell.instance(
            config=config, colors="nocolor", cache_size=_RESULTS_KEPT, display_page=True, profile_dir=None
        )
    finally:
        if share_db is not None:
            interactiveshell.PickleShareDB = share_db
    return shell


def _refuse(why: str, _line: str) -> None:
    raise UsageError(why)


class _StoredThings(dict):  # type: ignore[type-arg]
    """Holds what IPython would keep in files."""

    def keys(self, pattern: str = "*") -> "Any":
        """Return the names that match ``pattern``, such as ``autorestore/*``."""
        return fnmatch.filter(list(self), pattern)


class _EmptyHistory(dict):  # type: ignore[type-arg]
    """Replaces IPython's record of everything ever shown."""

    def __setitem__(self, key: object, value: object) -> None:
        """Keep nothing."""

    def __missing__(self, key: object) -> "list[object]":
        return []
