"""Definitions of MCP servers, parsed strictly.

Definitions have the form of ``mcpServers`` in Claude Desktop and other programs, with some keys of casemate.

``${NAME}`` in a definition is filled in on the host when the server is connected: from the vault first, then from a
variable of the host that the definition allows by name, then from the default in ``${NAME:-default}``. A definition
reaches nothing else of the host's environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast, get_args
from urllib.parse import urlsplit

from casemate.errors import InvalidArgument
from casemate.model.addresses import place_of

if TYPE_CHECKING:
    from casemate.files.beneath import HeldFolder

_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]{0,199})(?::-([^{}$]*))?\}")
_SHOWN = 80  # characters of a bad text in an error

Look = Callable[[str], str | None]  # gets a value from the vault by its name


class Expansion:
    """Fills in the placeholders of one definition."""

    def __init__(self, secret: Look, variables: Mapping[str, str], allowed: Collection[str] = ()) -> None:
        """``secret`` reads the vault. Of ``variables``, the host's environment, only ``allowed`` names are used."""
        self._secret, self._variables, self._allowed = secret, variables, allowed
        self.secrets: dict[str, str] = {}  # the secrets that were used

    def public(self, text: str, argument: str) -> str:
        """Fill in ``text`` that other users can read: arguments of a process, a URL.

        Raises ``InvalidArgument`` for a name without a value, and for a secret of the vault, which would be visible.
        """
        return _PLACEHOLDER.sub(lambda found: self._value(found, argument, is_private=False), text)

    def private(self, text: str, argument: str) -> str:
        """Fill in a variable or a header. Raises ``InvalidArgument`` for a name without a value."""
        return _PLACEHOLDER.sub(lambda found: self._value(found, argument, is_private=True), text)

    def _value(self, found: re.Match[str], argument: str, *, is_private: bool) -> str:
        name, default = found[1], found[2]
        secret = self._secret(name)
        if secret is not None:
            if not is_private:
                raise InvalidArgument(
                    argument,
                    f"${{{name}}} is a secret, and other users of this machine or the network could read it there",
                    remediation="Give it to the server as a variable in 'env', or in 'headers'.",
                )
            self.secrets[name] = secret
            return secret
        if name in self._allowed and name in self._variables:
            return self._variables[name]
        if default is not None:
            return default
        advice = (
            f'Put it into the vault (casemate vault set {name}), or allow the variable with "variables": ["{name}"].'
        )
        raise InvalidArgument(argument, f"${{{name}}} has no value", remediation=advice)


def check_placeholders(text: str, argument: str) -> str:
    """Return ``text`` if every ``${`` in it begins a placeholder; otherwise raise ``InvalidArgument``."""
    if "${" in _PLACEHOLDER.sub("", text):
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise InvalidArgument(argument, f"{shown!r} holds a '${{' that is neither ${{NAME}} nor ${{NAME:-default}}")
    return text


def names_secret(variable: str, text: str) -> bool:
    """Whether the name of a variable, or of a placeholder in its text, looks like that of a secret."""
    return any(_SECRET.search(name) for name in (variable, *(found[1] for found in _PLACEHOLDER.finditer(text))))


def has_placeholder(text: str) -> bool:
    """Whether ``text`` has a placeholder."""
    return "${" in text


SERVER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}\Z")
_SECRET = re.compile(r"key|token|secret|passw|passphrase|credential|auth", re.IGNORECASE)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}\Z")  # RFC 9110, 5.6.2
_LOADERS = "LD_"  # variables of the dynamic loader (ld.so(8))
_MOST_TEXTS = 1000  # arguments, variables or headers of one server
_MOST_TEXT = 64 << 10  # characters of one of them
_LONGEST = 24 * 3600.0  # seconds
_CALL_SECONDS, _CONNECT_SECONDS = 120.0, 30.0
# Headers that the transport sets.
_OWN_HEADERS = """
    host content-length content-type transfer-encoding connection accept accept-encoding mcp-session-id
    mcp-protocol-version mcp-method mcp-name last-event-id
"""

_BOTH = ("type", "timeout", "connect_timeout", "variables")
_PROGRAM_KEYS = (*_BOTH, "command", "args", "env", "cwd", "wall", "policy", "settings", "read", "copy")
_OF_WALLS = {"policy", "settings", "read", "copy"}
_REMOTE_KEYS = (*_BOTH, "url", "headers", "auth", "addresses")
_REMOTE_TYPES = {"http": "http", "streamable-http": "http", "streamable_http": "http", "sse": "sse"}

Grant = Literal["authorization_code", "device", "client_credentials"]
_AUTH_KEYS = ("type", "client_id", "client_secret", "scope", "issuer", "redirect_port", "client_metadata_url")


@dataclass(frozen=True, slots=True)
class ServerWall:
    """The wall of a server's program. It has at most one of ``policy`` and ``settings``."""

    policy: str = ""  # a policy file
    settings: str = ""  # a file with srt's keys
    read: tuple[str, ...] = ()  # additional files and folders that it can read
    copy: tuple[str, ...] = ()  # folders that it gets as writable copies


@dataclass(frozen=True, slots=True)
class Program:
    """A server that is started here and speaks over its standard streams."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # in addition to `INHERITED`
    cwd: str = ""  # "" for the folder that casemate runs in
    wall: ServerWall | None = None
    folder: HeldFolder | None = None  # the folder that an approver saw as ``cwd``, even if it was renamed since


@dataclass(frozen=True, slots=True)
class SignIn:
    """How to get a token for a remote server (OAuth 2.1, as in MCP's authorization)."""

    grant: Grant  # the user's browser, a code entered on another device (RFC 8628), or the client's credentials
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    issuer: str = ""  # the authorization server of the credentials; "" for the one that the server names
    redirect_port: int = 0  # of the loopback listener for the browser's redirect; 0 for any
    client_metadata_url: str = ""


Addresses = tuple[str, ...] | Literal["public"] | None  # the only addresses of a server; None for any


@dataclass(frozen=True, slots=True)
class RemoteServer:
    url: str
    transport: Literal["http", "sse"] = "http"  # "http" is streamable HTTP, "sse" its predecessor
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    sign_in: SignIn | None = None
    addresses: Addresses = None


@dataclass(frozen=True, slots=True)
class OwnFunctions:
    """casemate's own functions, by their names as tools."""

    functions: Mapping[str, Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class ServerDefinition:
    name: str
    how: Program | RemoteServer | OwnFunctions
    variables: tuple[str, ...] = ()  # the host's variables that placeholders may name
    timeout: float = _CALL_SECONDS  # seconds, for a call
    connect_timeout: float = _CONNECT_SECONDS  # seconds, to connect and list the tools


def check_server_name(name: object) -> str:
    """Check a server's name: ``[A-Za-z0-9_-]{1,64}``, compared exactly everywhere. Raises ``InvalidArgument``."""
    if not isinstance(name, str) or not SERVER_NAME.match(name):
        shown = repr(name)[:100]
        raise InvalidArgument("server", f"{shown} is not a server name: give 1 to 64 letters, digits, '_' and '-'")
    return name


def read_servers(given: object) -> dict[str, ServerDefinition]:
    """Parse a configuration, ``{"mcpServers": {name: definition}}``. Raises ``InvalidArgument``."""
    keys = _check_keys(given, "servers", ("mcpServers",))
    servers = keys.get("mcpServers", {})
    if not isinstance(servers, Mapping):
        raise InvalidArgument("mcpServers", f"{type(servers).__name__} is not a mapping of names to definitions")
    return {check_server_name(name): read_definition(name, definition) for name, definition in servers.items()}


def read_definition(name: object, given: object) -> ServerDefinition:
    """Parse one server's definition. Raises ``InvalidArgument`` for a bad key or value, or credentials in a URL."""
    server = check_server_name(name)
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            server, f"{type(given).__name__} is not a definition; give {{'command': ...}} or {{'url': ...}}"
        )
    if ("command" in given) == ("url" in given):
        raise InvalidArgument(server, "give either 'command', to start a server here, or 'url', for one elsewhere")
    keys = _check_keys(given, server, _PROGRAM_KEYS if "command" in given else _REMOTE_KEYS)
    variables = _texts(keys.get("variables", ()), f"{server}.variables")
    for variable in variables:
        if not _VARIABLE.match(variable):
            raise InvalidArgument(f"{server}.variables", f"{variable[:100]!r} is not a variable's name")
    return ServerDefinition(
        name=server,
        how=_program(keys, server) if "command" in keys else _remote(keys, server),
        variables=variables,
        timeout=_seconds(keys.get("timeout", _CALL_SECONDS), f"{server}.timeout"),
        connect_timeout=_seconds(keys.get("connect_timeout", _CONNECT_SECONDS), f"{server}.connect_timeout"),
    )


def _program(keys: Mapping[str, Any], server: str) -> Program:
    if keys.get("type", "stdio") != "stdio":
        raise InvalidArgument(f"{server}.type", f"{keys['type']!r} does not go with a command; leave it out")
    command = _text(keys["command"], f"{server}.command")
    cwd = _text(keys.get("cwd", ""), f"{server}.cwd")
    for argument, text in (("command", command), ("cwd", cwd)):
        if has_placeholder(text):
            raise InvalidArgument(
                f"{server}.{argument}", "takes no ${NAME}: write out what is to be started, and where"
            )
    if not command:
        raise InvalidArgument(f"{server}.command", "is empty")
    args = tuple(check_placeholders(text, f"{server}.args") for text in _texts(keys.get("args", ()), f"{server}.args"))
    env = _read_mapping(keys.get("env", {}), f"{server}.env")
    for variable in env:
        if not _VARIABLE.match(variable):
            raise InvalidArgument(f"{server}.env", f"{variable[:100]!r} is not a variable's name")
    wall = _wall(keys, server)
    if wall is not None and any(variable.startswith(_LOADERS) for variable in env):
        raise InvalidArgument(f"{server}.env", "LD_* would affect the program that makes the wall, outside of it")
    return Program(command, args, env, cwd, wall)


def _wall(keys: Mapping[str, Any], server: str) -> ServerWall | None:
    wall = keys.get("wall", bool(_OF_WALLS & keys.keys()))
    if not isinstance(wall, bool):
        raise InvalidArgument(f"{server}.wall", f"{wall!r} is not true or false; name a file of rules in 'policy'")
    policy = _text(keys.get("policy", ""), f"{server}.policy")
    settings = _text(keys.get("settings", ""), f"{server}.settings")
    read, copy = _texts(keys.get("read", ()), f"{server}.read"), _texts(keys.get("copy", ()), f"{server}.copy")
    if not wall and (policy or settings or read or copy):
        raise InvalidArgument(f"{server}.wall", "is false, but there is a policy for one, or 'read' or 'copy'")
    if policy and settings:
        raise InvalidArgument(f"{server}.settings", "there is a 'policy' too; give one of the two")
    return ServerWall(policy, settings, read, copy) if wall else None


def _remote(keys: Mapping[str, Any], server: str) -> RemoteServer:
    kind = keys.get("type", "http")
    if not isinstance(kind, str) or kind not in _REMOTE_TYPES:
        known = ", ".join(_REMOTE_TYPES)
        raise InvalidArgument(f"{server}.type", f"{str(kind)[:_SHOWN]!r} is not known; choose one of {known}")
    url = check_placeholders(_text(keys["url"], f"{server}.url"), f"{server}.url")
    if not has_placeholder(url):
        check_url(url, f"{server}.url")
    headers = _read_mapping(keys.get("headers", {}), f"{server}.headers")
    for header in headers:
        if not _HEADER.match(header) or header.lower() in _OWN_HEADERS.split():
            raise InvalidArgument(f"{server}.headers", f"{header[:100]!r} is not a header that can be set")
    sign_in = None if keys.get("auth") is None else _sign_in(keys["auth"], f"{server}.auth")
    if sign_in and any(header.lower() == "authorization" for header in headers):
        raise InvalidArgument(f"{server}.headers", "has Authorization, which 'auth' sets; give one of the two")
    addresses = _addresses(keys.get("addresses"), f"{server}.addresses")
    return RemoteServer(url, cast(Literal["http", "sse"], _REMOTE_TYPES[kind]), headers, sign_in, addresses)


def _addresses(given: object, argument: str) -> Addresses:
    if given is None:
        return None
    if given == "public":
        return "public"
    texts = _texts(given, argument)
    for text in texts:
        try:
            place_of(text)
        except ValueError:
            raise InvalidArgument(argument, f"{text[:100]!r} is not an IP address; give those, or 'public'") from None
    if not texts:
        raise InvalidArgument(argument, "is empty, so the server could have no address")
    return texts


def _sign_in(given: object, argument: str) -> SignIn:
    keys = _check_keys({"type": "authorization_code"} if given == "oauth" else given, argument, _AUTH_KEYS)
    grant = keys.get("type")
    if grant not in get_args(Grant):
        raise InvalidArgument(f"{argument}.type", f"{grant!r} is not known; choose one of {', '.join(get_args(Grant))}")
    texts = {
        key: check_placeholders(_text(keys.get(key, ""), f"{argument}.{key}"), f"{argument}.{key}")
        for key in ("client_id", "client_secret", "scope", "issuer", "client_metadata_url")
    }
    for key in ("issuer", "client_metadata_url"):
        if texts[key]:
            check_url(texts[key], f"{argument}.{key}")
    if grant == "client_credentials":
        missing = [key for key in ("client_id", "client_secret", "issuer") if not texts[key]]
        if missing:
            raise InvalidArgument(argument, f"client_credentials needs {', '.join(missing)}")
    port = keys.get("redirect_port", 0)
    if type(port) is not int or not 0 <= port < 65536:
        raise InvalidArgument(f"{argument}.redirect_port", f"{port!r} is not a port")
    return SignIn(grant=cast(Grant, grant), redirect_port=port, **texts)


def check_url(url: str, argument: str) -> str:
    """Check an absolute http or https URL without credentials. Raises ``InvalidArgument``."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidArgument(argument, f"is not a URL: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument(
            argument,
            "holds credentials, which end up in logs and in lists of processes",
            remediation="Put them into the vault, and e.g. 'headers': {'Authorization': 'Bearer ${NAME}'}.",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidArgument(argument, "is not an absolute http or https URL")
    if any(ord(character) <= 32 or ord(character) == 127 for character in url):
        raise InvalidArgument(argument, "holds blanks or control characters")
    return url


def _check_keys(given: object, argument: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidArgument(argument, f"{type(given).__name__} is not a mapping")
    unknown = [str(key)[:100] for key in given if key not in known]
    if unknown:
        raise InvalidArgument(
            argument, f"unknown key {', '.join(map(repr, unknown[:5]))}; known are {', '.join(known)}"
        )
    return given


def _text(given: object, argument: str) -> str:
    if (
        not isinstance(given, str)
        or len(given) > _MOST_TEXT
        or "\0" in given
        or any("\ud800" <= character <= "\udfff" for character in given)
    ):
        raise InvalidArgument(
            argument, f"{type(given).__name__} is not a text without NUL of at most {_MOST_TEXT} characters"
        )
    return given


def _texts(given: object, argument: str) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or len(given) > _MOST_TEXTS:
        raise InvalidArgument(argument, f"{type(given).__name__} is not a list of at most {_MOST_TEXTS} texts")
    return tuple(_text(text, argument) for text in given)


def _read_mapping(given: object, argument: str) -> Mapping[str, str]:
    if not isinstance(given, Mapping) or len(given) > _MOST_TEXTS:
        raise InvalidArgument(
            argument, f"{type(given).__name__} is not a mapping of at most {_MOST_TEXTS} names to texts"
        )
    for name, text in given.items():
        check_placeholders(_text(text, f"{argument}.{str(name)[:100]}"), f"{argument}.{str(name)[:100]}")
    return MappingProxyType({_text(name, argument): text for name, text in given.items()})


def _seconds(given: object, argument: str) -> float:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not 0 < cast(float, given) <= _LONGEST:  # an int may be too large for a float
        raise InvalidArgument(argument, f"{given!r} is not a number of seconds, more than 0 and at most a day")
    return float(cast(float, given))
