"""Notes on a program that has ended: why casemate ended it, where its files are, what was not done."""

from __future__ import annotations

import base64
import os
import re
import secrets
import shlex
from collections.abc import Callable, Iterator, Sequence

from casemate.errors import InvalidArgument
from casemate.files.beneath import hold, write_file
from casemate.model.approval import BY_RULE
from casemate.model.execution import Execution, Result, hidden_in_vain, not_reached
from casemate.policy.hosts import LOCAL_NAME, NO_RULE, USUAL_PORTS, host_rule
from casemate.surfaces.cli.failures import LIMIT_OF_CAUSE, option_of
from casemate.surfaces.cli.inert import visible

MOST_NAMES = 8  # files or hosts in one line
_MOST_SAID = 10_000  # characters examined of a program's last words
_CAUSES = re.compile(r"(?:connect|getaddrinfo) E[A-Z]+[^\n]*")  # in Node, below the error
# What Python, Node and curl print for a refused connection.
_NOBODY_LISTENS = ("Connection refused", "ECONNREFUSED", "Couldn't connect to server", "Could not connect to server")
# The error for a name that does not exist (EAI_NONAME, getaddrinfo(3)), often with the name: of Python, Node, urllib3;
# of curl and git, ssh, wget; of Bash.
_NO_SUCH_NAME = re.compile(
    r"(?:getaddrinfo ENOTFOUND |Failed to resolve '|resolve host(?:: |name | address .))([\w.-]{1,253})"
    r"|: ([\w.-]{1,253}): Name or service not known|Name or service not known",
    re.ASCII,
)
_NOT_ALLOWED = re.compile(f"{NO_RULE}|{BY_RULE}")  # denied, but not by a rule or person
# What Python, Polars, Node and system programs print for a missing file.
_NO_SUCH_FILE = re.compile(
    r"no such file or directory(?: \(os error 2\))?(?:, \w+|:) '?([^'\n]{1,300})"
    r"|(?:^|: )'?([^:'\n]{1,300})'?: no such file or directory(?![,:])",
    re.IGNORECASE | re.MULTILINE,
)

# What Node prints for types in JavaScript.
_TYPES_TO_NODE = ("Missing initializer in const declaration", "Unexpected token ':'", "Unexpected identifier")


def outcome(execution: Execution, where_bound: Callable[[str], str] = lambda _: "") -> Iterator[str]:
    """Why casemate ended the program, what its session lost, and `not_done`. ``where_bound``: the place in a policy
    that sets a limit."""
    if execution.cause is not None:
        yield why(execution, where_bound)
    if execution.state == "lost":
        lost = ", ".join(map(visible, execution.lost_names[:MOST_NAMES]))
        yield f"the session lost its state{f': {lost}' if lost else ''}"
    yield from not_done(execution)


def not_done(execution: Execution) -> Iterator[str]:
    """Files of a folder that were not written, hosts that were not reached, and hints."""
    for skipped in execution.skipped:
        yield f"left out: {visible(skipped.name)}: {visible(skipped.reason)}"
    yield from hidden_in_vain(execution)
    if hosts := _find_refused(execution):
        when = "" if execution.state is None else " when a session is opened"
        options = " ".join(f"--allow {host}" for host in hosts[:MOST_NAMES])
        yield f"only allowed hosts are found and reached: {options}{when}"
    in_vain = not_reached(execution.crossings)
    local = {one.decision for one in execution.crossings if one.host == LOCAL_NAME}
    if "denied" in local or (not local and _is_refused(execution)):
        yield (
            f"127.0.0.1 is the program's own; it reaches a service on this machine as {LOCAL_NAME}:PORT, with "
            "--allow-local PORT; and a port other than 80 and 443 of another host with --allow HOST:PORT"
        )
    if execution.error is not None and execution.error.value.startswith("No module named"):
        yield (
            "a package is missing: casemate run --with NAME adds one, %pip install NAME does in a session, and "
            "--environment names an environment that has it"
        )
    if execution.error is not None and execution.error.value.startswith(_TYPES_TO_NODE):
        yield "Node takes types only in TypeScript: casemate run --language ts, or a file whose name ends in .ts"
    for where, reason in in_vain[:MOST_NAMES]:
        yield f"not reached: {visible(where)}: {visible(reason)}"
    if len(in_vain) > MOST_NAMES:
        yield f"not reached: {len(in_vain) - MOST_NAMES} more"


def _find_refused(execution: Execution) -> list[str]:
    """Hosts that an option would allow: those that the egress proxy refused without a rule or decision. If it saw none,
    those that a failed program reports as not found; "HOST" stands for an unnamed one."""
    if execution.crossings:
        refused = [one for one in execution.crossings if one.decision == "denied" and _NOT_ALLOWED.search(one.reason)]
        found = [one.host if one.port in (0, *USUAL_PORTS) else f"{one.host}:{one.port}" for one in refused]
    else:
        found = [one[1] or one[2] or "HOST" for one in _NO_SUCH_NAME.finditer(_last_words(execution))]
    named = [host for host in dict.fromkeys(found) if _can_be_allowed(host)]
    return named or ["HOST"] * ("HOST" in found)


def _can_be_allowed(host: str) -> bool:
    try:
        return bool(host_rule(host))
    except InvalidArgument:
        return False


def _is_refused(execution: Execution) -> bool:
    said, below = _last_words(execution), execution.error.traceback if execution.error else ""
    return LOCAL_NAME in said + below or any(one in said for one in _NOBODY_LISTENS)


def _last_words(execution: Execution) -> str:
    """A failed program's error output. The program may lie, so a hint must hold in any case."""
    error = execution.error
    if execution.ok:
        return ""
    said = execution.stderr if error is None else "\n".join([error.value, *_CAUSES.findall(error.traceback)])
    return said[-_MOST_SAID:]


def why(execution: Execution, where_bound: Callable[[str], str]) -> str:
    """Why casemate ended the program, and what would help."""
    cause = execution.cause
    assert cause is not None
    limit = LIMIT_OF_CAUSE.get(cause.code)
    message = re.sub(r"limits\.\w+", lambda found: option_of(found[0]), cause.message)
    remedy = cause.remediation
    if limit is not None and (where := where_bound(limit)):
        message, remedy = cause.message, f"Raise limits.{limit} in the policy ({where}), or do less."
    elif limit is not None:
        remedy = f"Raise it with {option_of(f'limits.{limit}')}, or do less."
    status = execution.status.replace("_", " ")
    return visible(f"{status}: {message} {remedy}".strip())


# What can be saved of a displayed object, best first. Text is printed instead.
_SUFFIX_OF = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/svg+xml": ".svg",
    "application/pdf": ".pdf",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/latex": ".tex",
}
_BINARY = {"image/png", "image/jpeg", "application/pdf"}
_OUTPUT_FOLDER = "output/"


def account(
    execution: Execution, where_bound: Callable[[str], str], *, output: str | None, has_workspace: bool, is_json: bool
) -> Iterator[str]:
    """The notes on a run. Also saves its displayed pictures."""
    if execution.cause is not None:
        yield why(execution, where_bound)
    shown = [saved for result in execution.results if (saved := _savable(result))]
    if output is None:
        yield from _not_kept(execution, len(shown), has_workspace=has_workspace, is_json=is_json)
    else:
        yield from _save_results(execution, shown, output, is_json=is_json)
    yield from not_done(execution)


def find_beside(execution: Execution, folder: str) -> Iterator[str]:
    """A hint for a file that a failed program did not find, and that lies in its own ``folder`` on this machine.

    The program may name anything, so only the first part of a name is used, and only to see if the folder has it. The
    folder itself is not proposed if it holds the user's home."""
    for found in _NO_SUCH_FILE.finditer(_last_words(execution)):
        name, slash, _ = (found[1] or found[2]).removeprefix("./").partition("/")
        path = os.path.join(folder, name)
        if not name or name.startswith(".") or not os.path.lexists(path):  # never hint at giving .env and the like
            continue
        options = []
        if not (slash or "=" in path or os.path.isdir(path)):
            options.append(f"--file {shlex.quote(path)} gives it this file")
        if not _holds_home(folder):
            options.append(f"--workspace {shlex.quote(folder or os.curdir)} the whole folder")
        if options:
            said = f"{name} is in the program's folder, but a program sees only what it is given: {', '.join(options)}"
            yield visible(said)
        return


def _holds_home(folder: str) -> bool:
    home, real = os.path.realpath(os.path.expanduser("~")), os.path.realpath(folder)
    return os.path.commonpath((home, real)) == real


def _not_kept(execution: Execution, shown: int, *, has_workspace: bool, is_json: bool) -> Iterator[str]:
    if execution.artifacts and not has_workspace:
        names = list_names([artifact.name for artifact in execution.artifacts])
        yield f"not kept: {names}; --output DIR keeps what a program leaves"
    if shown and not is_json:
        yield f"displayed but not saved: {count_of(shown, 'picture')}; --output DIR saves them"
    if execution.full_output is not None and is_json:
        yield "not kept: the whole output; --output DIR keeps it, --output-limit SIZE returns more of it"


def _save_results(execution: Execution, shown: list[tuple[str, bytes]], output: str, *, is_json: bool) -> Iterator[str]:
    refused = {skipped.name for skipped in execution.skipped}
    written = [exported_name(one.name) for one in execution.artifacts if one.name not in refused]
    taken = {exported_name(one.name) for one in execution.artifacts}
    extra = list(_number_displays(shown, taken))
    if execution.full_output is not None and is_json:  # the text format has printed all of it
        name = "full-output.txt" if "full-output.txt" not in taken else f"full-output-{secrets.token_hex(4)}.txt"
        extra.append((name, execution.full_output.read_bytes()))
    failed = _save(extra, output)
    written += [name for name, _ in extra if name not in failed]
    if written:
        yield f"saved in {visible(output)}: {list_names(written)}"
    for name, reason in failed.items():
        yield f"could not be saved in {visible(output)}: {name}: {reason}"


def _number_displays(shown: list[tuple[str, bytes]], taken: set[str]) -> Iterator[tuple[str, bytes]]:
    number = 0
    for suffix, data in shown:
        number += 1
        while (name := f"display-{number}{suffix}") in taken:
            number += 1
        yield name, data


def exported_name(name: str) -> str:
    """An artifact's name in the folder that --output names."""
    return name.removeprefix(_OUTPUT_FOLDER)


def _savable(result: Result) -> tuple[str, bytes] | None:
    """A displayed object as a file: its suffix and content. None if it was printed, or cannot be decoded."""
    for media_type, suffix in _SUFFIX_OF.items():
        data = result.get(media_type)
        if not isinstance(data, str):
            continue
        if media_type.startswith("text/") and result.text is not None:
            return None
        try:
            return suffix, base64.b64decode(data) if media_type in _BINARY else data.encode("utf-8", "replace")
        except ValueError:
            continue
    return None


def _save(files: list[tuple[str, bytes]], folder: str) -> dict[str, str]:
    """Write ``files`` into ``folder`` without following links in it. Returns the errors by name."""
    if not files:
        return {}
    try:
        os.makedirs(folder, exist_ok=True)
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return {name: str(error.strerror) for name, _ in files}
    failed: dict[str, str] = {}
    with hold(root):
        for name, data in files:
            try:
                write_file(root, name, (data,))
            except OSError as error:
                failed[name] = str(error.strerror)
    return failed


def list_names(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    shown = [visible(name) for name in names[:MOST_NAMES]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def count_of(number: int, what: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
