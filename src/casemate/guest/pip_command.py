"""``pip`` in a session. The host installs from the operator's index, after approval. Other commands run the real pip.

docs/how-to/packages.md lists the supported part of pip's command line.
"""

import importlib
import json
import os
import re
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HOST = ("packages.casemate.internal", 81)
_MOST = 1 << 20  # bytes of an answer
_MOST_ASKED = 1 << 17  # bytes of a request; the host reads no more
_MOST_NESTED = 8  # levels of requirements files
_IGNORED = {
    *("--user", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "--prefer-binary", "--no-color"),
    *("--no-warn-script-location", "--break-system-packages", "-y", "--yes", "-v", "--verbose"),
}
_IGNORED_WITH_VALUE = {
    "--progress-bar",
    "--timeout",
    "--retries",
    "--root-user-action",
    "--upgrade-strategy",
    "--only-binary",
}
_QUIET = {"-q", "--quiet"}
_SHORT = re.compile("-[Uqvy]{2,}")  # combined short options
_UPGRADE = {"-U", "--upgrade"}
_FILES = {"-r", "--requirement"}
_HASHES = "--require-hashes"
_COMMENT = re.compile(r"(^|\s+)#.*$")
_CONTINUED = re.compile(r"^(?!\s*#)(.*)\\\n", re.MULTILINE)  # a line that continues on the next; comments do not
_HASH = re.compile(r"\s--hash(?:=|\s+)(\S+)")
_REAL = {
    "list",
    "show",
    "freeze",
    "check",
    "inspect",
    "debug",
    "config",
    "cache",
    "help",
    "--version",
    "-V",
    "--help",
    "-h",
}


class Unknown(Exception):
    """An unsupported part of the command line."""


def main(arguments: "list[str]") -> int:
    """Carry out the command line. Returns the exit code."""
    begin = next((place for place, word in enumerate(arguments) if word not in _IGNORED | _QUIET), 0)
    arguments = arguments[begin:] + arguments[:begin]  # pip also accepts these options before its command
    if not arguments or arguments[0] in _REAL:
        variables = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}  # or it queries its index
        os.execve(sys.executable, [sys.executable, "-m", "pip", *arguments], variables)
    if arguments[0] not in ("install", "uninstall"):
        return _say(f"ERROR: 'pip {arguments[0]}' is not supported here; use install, uninstall, list, show or freeze")
    try:
        names, upgrade, quiet = _read(arguments[1:])
    except (Unknown, OSError, UnicodeError) as error:
        return _say(f"ERROR: {error}")
    if not names:
        return _say("ERROR: You must give at least one requirement")
    if arguments[0] == "uninstall":
        return _tell(_ask({"do": "remove", "packages": names}), names, "uninstalled", quiet)
    return _tell(_ask({"do": "install", "packages": names, "upgrade": upgrade}), names, "installed", quiet)


def _read(arguments: "list[str]") -> "tuple[list[str], bool, bool]":
    """Return the requirements, whether to upgrade them, and whether to be quiet."""
    names: "list[str]" = []
    upgrade = quiet = options_are_over = need_hashes = False
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        option, _, value = word.partition("=")
        if options_are_over or not word.startswith("-"):
            names.append(word)
        elif word == "--":
            options_are_over = True
        elif _SHORT.fullmatch(word):
            rest[:0] = ["-" + letter for letter in word[1:]]
        elif word in _QUIET:
            quiet = True
        elif word in _UPGRADE:
            upgrade = True
        elif word == _HASHES:
            need_hashes = True
        elif option in _FILES:
            names += _requirements_in(value or (rest.pop(0) if rest else ""))
        elif option in _IGNORED_WITH_VALUE:
            value or (rest and rest.pop(0))
        elif option not in _IGNORED:
            raise Unknown(f"{option} is not supported here: packages come from the operator's index, as wheels")
    without = [name for name in names if " --hash=" not in name] if need_hashes else []
    if without:
        raise Unknown(f"{without[0]} has no hash, and {_HASHES} needs one for each requirement")
    return names, upgrade, quiet


def _requirements_in(path: str, depth: int = 0) -> "list[str]":
    """Return the requirements in a file and in those it includes, with their hashes. Requirements whose marker does not
    apply here are left out."""
    if depth > _MOST_NESTED:
        raise Unknown(f"{path}: requirements files include each other")
    with open(path, encoding="utf-8-sig") as file:
        whole = _CONTINUED.sub(r"\1 ", file.read())
    names: "list[str]" = []
    for line in (_COMMENT.sub("", line).strip() for line in whole.splitlines()):
        option, _, value = line.replace("=", " ", 1).partition(" ")
        if option in _FILES:
            names += _requirements_in(os.path.join(os.path.dirname(path), value.strip()), depth + 1)
        elif line.startswith("-"):
            raise Unknown(f"{path}: {option} is not supported here; give names and versions")
        elif line:
            names += _requirement(line, path)
    return names


def _requirement(line: str, path: str) -> "list[str]":
    """Return a line's requirement in the host's form; nothing if its marker does not apply here."""
    hashes = "".join(f" --hash={one}" for one in _HASH.findall(line))
    plain, _, marker = _HASH.sub("", line).partition(";")
    if marker and not _is_here(marker.strip(), path):
        print(f"Ignoring {plain.strip()}: its marker {marker.strip()!r} is for another place")
        return []
    return [plain.strip() + hashes]


def _is_here(marker: str, path: str) -> bool:
    """Evaluate a marker for this interpreter with the environment's pip."""
    try:
        markers: "Any" = importlib.import_module("pip._vendor.packaging.markers")
    except ImportError:
        raise Unknown(
            f"{path}: only pip can evaluate the marker after the ;, and this environment has no pip"
        ) from None
    try:
        return bool(markers.Marker(marker).evaluate({"extra": ""}))
    except (markers.InvalidMarker, markers.UndefinedComparison, markers.UndefinedEnvironmentName) as error:
        raise Unknown(f"{path}: {marker!r} is not a valid marker: {error}") from None


def _ask(request: "dict[str, Any]") -> "dict[str, Any]":
    """Ask the host, and wait for its answer."""
    asked = json.dumps(request).encode() + b"\n"
    if len(asked) > _MOST_ASKED:
        return {"ok": False, "message": f"the request takes {len(asked):,} bytes; the limit is {_MOST_ASKED:,}"}
    try:
        with socket.create_connection(_HOST) as host:
            host.sendall(asked)
            line = host.makefile("rb").readline(_MOST)
        answer: "dict[str, Any]" = json.loads(line)
    except (OSError, ValueError):  # its message about an unknown name would point to network options
        why = f"no rule allows {', '.join(request['packages'])} and nobody can be asked, or this is no session"
        return {"ok": False, "message": f"packages cannot be installed from here: {why}"}
    return answer


def _tell(answer: "dict[str, Any]", names: "list[str]", done: str, quiet: bool) -> int:
    if not answer.get("ok"):
        return _say(f"ERROR: not {done}: {answer.get('message')}")
    packages = " ".join(f"{one['name']}-{one['version']}" for one in answer["packages"])
    if not quiet:
        if packages:
            print(f"Successfully {done} {packages}")
        elif done == "installed":
            print("\n".join(f"Requirement already satisfied: {name.partition(' --hash=')[0]}" for name in names))
        else:
            print("\n".join(f"WARNING: Skipping {name} as it was not installed here." for name in names))
    return 0


def _say(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
