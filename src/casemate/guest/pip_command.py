"""``pip`` in a session: the host installs, with an approval, from the operator's index. The rest is the real pip's.

docs/packages.md says what of pip's command line there is.
"""

import json
import os
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HOST = ("packages.casemate.internal", 81)
_MOST = 1 << 20  # bytes of an answer
_IGNORED = {
    *("--user", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "--prefer-binary", "--no-color"),
    *("--no-warn-script-location", "--break-system-packages", "-y", "--yes", "-v", "--verbose"),
}
_IGNORED_WITH_VALUE = {"--progress-bar", "--timeout", "--retries", "--root-user-action", "--upgrade-strategy"}
_QUIET = {"-q", "--quiet", "-qq"}
_UPGRADE = {"-U", "--upgrade"}
_FILES = {"-r", "--requirement"}
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
    """What of the command line there is not here."""


def main(arguments: "list[str]") -> int:
    """Do what the command line says: the exit code."""
    if not arguments or arguments[0] in _REAL:
        variables = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}  # else it asks its index
        os.execve(sys.executable, [sys.executable, "-m", "pip", *arguments], variables)
    if arguments[0] not in ("install", "uninstall"):
        return _say(f"ERROR: 'pip {arguments[0]}' is not to be had here; install, uninstall, list, show and freeze are")
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
    """Requirements, and whether they are to be upgraded, and quietly."""
    names: "list[str]" = []
    upgrade = quiet = options_are_over = False
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        option, _, value = word.partition("=")
        if options_are_over or not word.startswith("-"):
            names.append(word)
        elif word == "--":
            options_are_over = True
        elif word in _QUIET:
            quiet = True
        elif word in _UPGRADE:
            upgrade = True
        elif option in _FILES:
            names += _requirements_in(value or (rest.pop(0) if rest else ""))
        elif option in _IGNORED_WITH_VALUE:
            value or (rest and rest.pop(0))
        elif option not in _IGNORED:
            raise Unknown(f"{option} is not to be had here: packages come from the operator's index, as wheels")
    return names, upgrade, quiet


def _requirements_in(path: str) -> "list[str]":
    """The plain requirements in a file."""
    with open(path, encoding="utf-8") as file:
        lines = [line.split(" #")[0].strip() for line in file]
    names = [line for line in lines if line and not line.startswith("#")]
    for name in names:
        if name.startswith("-"):
            raise Unknown(f"{path}: {name.split()[0]} is not to be had here; give names and versions")
    return names


def _ask(request: "dict[str, Any]") -> "dict[str, Any]":
    """What the host answers. Waits as long as the host does."""
    try:
        with socket.create_connection(_HOST) as host:
            host.sendall(json.dumps(request).encode() + b"\n")
            line = host.makefile("rb").readline(_MOST)
        answer: "dict[str, Any]" = json.loads(line)
    except (OSError, ValueError) as error:
        why = (
            "packages cannot be installed from here (no rule allows it and nobody can be asked, or this is no session)"
        )
        return {"ok": False, "message": f"{why}: {error}"}
    return answer


def _tell(answer: "dict[str, Any]", names: "list[str]", done: str, quiet: bool) -> int:
    if not answer.get("ok"):
        return _say(f"ERROR: not {done}: {answer.get('message')}")
    packages = " ".join(f"{one['name']}-{one['version']}" for one in answer["packages"])
    if not quiet:
        if packages:
            print(f"Successfully {done} {packages}")
        elif done == "installed":
            print("\n".join(f"Requirement already satisfied: {name}" for name in names))
        else:
            print("\n".join(f"WARNING: Skipping {name} as it was not installed here." for name in names))
    return 0


def _say(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
