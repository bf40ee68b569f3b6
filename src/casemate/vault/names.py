"""Which names and values secrets may have. Pure."""

from __future__ import annotations

import re
import unicodedata

from casemate.errors import InvalidArgument
from casemate.policy.inject import Inject, Injected
from casemate.redaction.forms import SHORTEST

_NAME = re.compile(r"[A-Z_][A-Z0-9_]*\Z")
_MOST_NAME = 200  # characters
_MOST_VALUE = 16 << 10  # bytes: enough for keys and certificates; larger data is a file
_IN_HEADER = re.compile(r"[ -~]+\Z")  # the part of RFC 9110, section 5.5 that all programs read in the same way
_MOST_INJECTED = 4096  # characters: servers take headers of 8 KiB and more, but not much more
_MOST_SECRETS = 64  # of one run
# Read by loaders, interpreters and shells before a program's first line, or needed by every program as they are.
_NAMES = """
    PATH HOME USER LOGNAME SHELL PWD OLDPWD TMPDIR LANG LANGUAGE TZ TERM ENV IFS CDPATH GLOBIGNORE SHELLOPTS
    BASHOPTS PROMPT_COMMAND PS0 PS1 PS2 PS3 PS4 FPATH ZDOTDIR LOCPATH NLSPATH HOSTALIASES RES_OPTIONS LOCALDOMAIN
    SSLKEYLOGFILE JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS _JAVA_OPTIONS CLASSPATH RUBYLIB RUBYOPT MPLBACKEND EDITOR
    VISUAL PAGER BROWSER GIT_SSH GIT_SSH_COMMAND GIT_EXEC_PATH GIT_PROXY_COMMAND GIT_EXTERNAL_DIFF GIT_ASKPASS
    GIT_EDITOR GIT_PAGER GIT_DIR GIT_TEMPLATE_DIR SSH_ASKPASS
"""
_PREFIXES = """
    LD_ DYLD_ PYTHON NODE_ BASH_ LC_ MALLOC_ GLIBC_ GCONV_ OPENSSL_ SSL_ ICU_ PERL5 CASEMATE_ GIT_CONFIG IPYTHON
    JUPYTER_ OMP_ OPENBLAS_ MKL_ NUMEXPR_
"""
_REFUSED, _REFUSED_PREFIXES = frozenset(_NAMES.split()), tuple(_PREFIXES.split())
_OF_SERVERS = "OAUTH_"  # tools/connections/oauth.py
_HARMLESS = frozenset({"NODE_AUTH_TOKEN"})  # npm itself uses it


def check_name(name: object) -> str:
    """Return ``name`` if a variable can have it and no loader reads it. Raises ``InvalidArgument``."""
    if not isinstance(name, str) or len(name) > _MOST_NAME or not _NAME.match(name):
        shown = repr(name)[:_MOST_NAME]
        raise InvalidArgument("name", f"{shown} is not a secret name: use capitals, digits and _, e.g. API_TOKEN")
    if name not in _HARMLESS and (name in _REFUSED or name.startswith(_REFUSED_PREFIXES)):
        raise InvalidArgument(
            "name", f"{name} is read by interpreters, loaders or shells themselves; give the secret another name"
        )
    return name


def check_value(name: str, value: object) -> str:
    """Return ``value`` if a variable can hold it and it differs from innocent text. Raises ``InvalidArgument``."""
    if not isinstance(value, str):
        raise InvalidArgument("value", f"must be a str, not {type(value).__name__} ({name})")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidArgument("value", f"cannot be encoded as UTF-8 ({name})") from None
    if "\0" in value:
        raise InvalidArgument("value", f"holds a NUL character, which no variable can ({name})")
    if len(unicodedata.normalize("NFC", value.strip()).encode()) < SHORTEST:
        raise InvalidArgument(
            "value",
            f"is too short for {name}: it could not be told from innocent text in what a program prints; "
            f"give one of at least {SHORTEST} bytes",
        )
    if size > _MOST_VALUE:
        raise InvalidArgument("value", f"is longer than {_MOST_VALUE} bytes ({name}); give it to a run as a file")
    return value


def check_injected(name: str, value: object, inject: object) -> Injected:
    """Return a value that the egress proxy can put where ``inject`` says. Raises ``InvalidArgument``."""
    if not isinstance(inject, Inject):
        raise InvalidArgument("inject", f"of {name} must be a casemate.Inject, not {type(inject).__name__}")
    checked = check_value(name, value)
    if not _IN_HEADER.match(checked) or checked != checked.strip() or len(checked) > _MOST_INJECTED:
        raise InvalidArgument(
            "value",
            f"of {name} cannot be part of a header: that takes printable ASCII without space at its ends, and at most "
            f"{_MOST_INJECTED} characters",
        )
    return Injected(checked, inject)


def check_asked(names: object) -> tuple[str, ...]:
    """Return the names of secrets that a run asks for, each once. Raises ``InvalidArgument``."""
    if isinstance(names, str | bytes) or not isinstance(names, tuple | list | set | frozenset):
        raise InvalidArgument("secrets", f"{type(names).__name__} is not a list of names; give e.g. ['API_TOKEN']")
    if len(names) > _MOST_SECRETS:
        raise InvalidArgument("secrets", f"{len(names)} are too many for one run; the most is {_MOST_SECRETS}")
    if taken := [name for name in names if isinstance(name, str) and name.startswith(_OF_SERVERS)]:
        raise InvalidArgument(
            "secrets", f"{taken[0]} is casemate's own sign-in to an MCP server; no program gets {_OF_SERVERS}*"
        )
    try:
        return tuple(dict.fromkeys(check_name(name) for name in names))
    except InvalidArgument as error:
        raise InvalidArgument("secrets", error.problem) from None
