"""What is said of a program that has ended: why casemate ended it, where its files are, what is missing."""

from __future__ import annotations

import base64
import os
import re
import secrets
from collections.abc import Iterator, Sequence

from casemate.files.beneath import write_file
from casemate.model.execution import Execution, Result, hidden_in_vain, not_reached
from casemate.policy.hosts import LOCAL_NAME
from casemate.surfaces.cli.failures import OPTION_OF_CAUSE, option_of
from casemate.surfaces.cli.inert import visible

MOST_NAMES = 8  # of files or hosts in one go
# What Python and curl say of an address at which nobody listens. Node says it of a cause, below the error.
_NOBODY_LISTENS = ("Connection refused", "ECONNREFUSED", "Couldn't connect to server", "Could not connect to server")
# What the resolvers of Python and Node say of a name that does not exist (EAI_NONAME, getaddrinfo(3)).
_NO_SUCH_NAME = ("Name or service not known", "getaddrinfo ENOTFOUND")

# What Node says where JavaScript has no types.
_TYPES_TO_NODE = ("Missing initializer in const declaration", "Unexpected token ':'", "Unexpected identifier")


def outcome(execution: Execution) -> Iterator[str]:
    """Why casemate ended it, what of a folder was not written, and what was not reached."""
    if execution.cause is not None:
        yield why(execution)
    yield from not_done(execution)


def not_done(execution: Execution) -> Iterator[str]:
    """What of a folder was not written, and what was not reached."""
    for skipped in execution.skipped:
        yield f"left out: {visible(skipped.name)}: {visible(skipped.reason)}"
    yield from hidden_in_vain(execution)
    if _asked_in_vain(execution):
        when = "" if execution.state is None else " when a session is opened"
        yield f"hosts are found and reached only where they are allowed: --allow HOST allows one{when}"
    in_vain = not_reached(execution.crossings)
    if _is_refused(execution) or any(where.partition(":")[0] == LOCAL_NAME for where, _ in in_vain):
        yield (
            f"127.0.0.1 is the program's own; it reaches a service of this machine as {LOCAL_NAME}:PORT, with "
            "--allow-local PORT"
        )
    if execution.error is not None and execution.error.name == "ModuleNotFoundError":
        yield (
            "a package is missing: casemate run --with NAME adds one, %pip install NAME does in a session, and "
            "--environment names an environment that has it"
        )
    if execution.error is not None and execution.error.value.startswith(_TYPES_TO_NODE):
        yield "Node takes types in TypeScript alone: casemate run --language ts, or a file whose name ends in .ts"
    for where, reason in in_vain[:MOST_NAMES]:
        yield f"not reached: {visible(where)}: {visible(reason)}"
    if len(in_vain) > MOST_NAMES:
        yield f"not reached: {len(in_vain) - MOST_NAMES} more"


def _asked_in_vain(execution: Execution) -> bool:
    """Whether a program that ended says that a name was not found, and the egress proxy has not told of it as a
    crossing. It is only what the program says: what is told for it holds in any case."""
    error = execution.error
    if error is None or execution.ok or execution.crossings:
        return False
    return any(said in error.value for said in _NO_SUCH_NAME)


def _is_refused(execution: Execution) -> bool:
    """Whether a failed program's error is a refused connection, or names this machine: then a hint is printed."""
    if execution.ok:
        return False
    error = execution.error
    said, below = (error.value, error.traceback) if error is not None else (execution.stderr, "")
    is_named = LOCAL_NAME in said + below or "connect ECONNREFUSED" in below
    return is_named or any(one in said for one in _NOBODY_LISTENS)


def why(execution: Execution) -> str:
    """Why casemate ended it, which has a cause, and what would help."""
    cause = execution.cause
    assert cause is not None
    option = OPTION_OF_CAUSE.get(cause.code)
    remedy = f"Raise it with {option}, or do less." if option else cause.remediation
    message = re.sub(r"limits\.\w+", lambda found: option_of(found[0]), cause.message)
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


def account(execution: Execution, *, output: str | None, has_workspace: bool, is_json: bool) -> Iterator[str]:
    """The lines that are worth saying; saves the pictures that were shown on the way."""
    if execution.cause is not None:
        yield why(execution)
    shown = [saved for result in execution.results if (saved := _savable(result))]
    if output is None:
        yield from _not_kept(execution, len(shown), has_workspace=has_workspace, is_json=is_json)
    else:
        yield from _save_results(execution, shown, output, is_json=is_json)
    yield from not_done(execution)


def _not_kept(execution: Execution, shown: int, *, has_workspace: bool, is_json: bool) -> Iterator[str]:
    """What --output would have kept. Files in a folder of the caller's are there anyhow."""
    if execution.artifacts and not has_workspace:
        names = list_names([artifact.name for artifact in execution.artifacts])
        yield f"not kept: {names}; --output DIR keeps what a program leaves"
    if shown and not is_json:
        yield f"shown and not saved: {count_of(shown, 'picture')}; --output DIR saves them"
    if execution.full_output is not None and is_json:
        yield "not kept: the whole output; --output DIR keeps it, --output-limit SIZE returns more of it"


def _save_results(execution: Execution, shown: list[tuple[str, bytes]], output: str, *, is_json: bool) -> Iterator[str]:
    refused = {skipped.name for skipped in execution.skipped}
    written = [exported_name(one.name) for one in execution.artifacts if one.name not in refused]
    taken = {exported_name(one.name) for one in execution.artifacts}
    extra = list(_number_displays(shown, taken))
    if execution.full_output is not None and is_json:  # as text all of it has been printed
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
    """A displayed object as a file: its suffix and content. None for what was printed, or cannot be read."""
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
    """Write ``files`` into ``folder``, following no link in it; why what failed did."""
    if not files:
        return {}
    try:
        os.makedirs(folder, exist_ok=True)
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return {name: str(error.strerror) for name, _ in files}
    failed: dict[str, str] = {}
    try:
        for name, data in files:
            try:
                write_file(root, name, (data,))
            except OSError as error:
                failed[name] = str(error.strerror)
    finally:
        os.close(root)
    return failed


def list_names(names: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    shown = [visible(name) for name in names[:MOST_NAMES]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def count_of(number: int, what: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
