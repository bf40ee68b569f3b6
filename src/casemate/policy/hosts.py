"""Rules for the hosts that a cell may reach, and for the HTTP requests it may make. Pure.

Host rules have the form ``example.org``, ``*.example.org`` or ``example.org:5432``. A rule covers exactly that name, in
any case, with or without a final dot (RFC 1034, section 3.1). ``*.`` matches one or more whole labels. The default
ports are 80 and 443.

A rule may name a host's private networks; the host is then dialled only there. A run's own list of hosts can only
narrow the sandbox's. A host with rules for requests is reached in clear only, unless its TLS is intercepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from casemate.errors import InvalidArgument

if TYPE_CHECKING:
    from ipaddress import IPv4Network

    from publicsuffixlist import PublicSuffixList

HTTP, HTTPS = 80, 443
USUAL_PORTS = (HTTP, HTTPS)
LOCAL_NAME = "host.casemate.internal"  # the host's own loopback, at the ports of rules for this name
NO_RULE = "no rule allows it"  # the reason of a denial about which no approver was asked
_OWN_NAMES = "casemate.internal"  # only allow_local makes rules for names below it
EVERY_NAME = "*"  # only in rules that deny
_MOST_NAME = 253  # characters (RFC 1035, section 2.3.4, without the root label)
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)\Z")
_PORT = re.compile(r"[1-9][0-9]{0,4}\Z")
MOST_PORT = 65535
# Reserved for this machine and local networks, so never public (RFC 6761, 6762, 7686, 8375; ICANN reserved .internal).
_NOT_PUBLIC = ("localhost", "localdomain", "local", "internal", "home.arpa", "onion", "invalid")


class HostRule(NamedTuple):
    """A rule for a canonical name, or for ``*.`` and one. ``port`` None means the usual ports."""

    host: str
    port: int | None = None

    def covers(self, name: str, port: int) -> bool:
        """Whether the rule covers the canonical ``name`` at ``port``."""
        return self.names(name) and (port in USUAL_PORTS if self.port is None else port == self.port)

    def names(self, name: str) -> bool:
        """Whether the rule is for the canonical ``name``, at any port."""
        if self.host.startswith("*."):
            return name.endswith(self.host[1:]) and len(name) > len(self.host) - 1
        return self.host in (name, EVERY_NAME)

    def __str__(self) -> str:
        return self.host if self.port is None else f"{self.host}:{self.port}"


class HostRules(NamedTuple):
    allowed: tuple[HostRule, ...] = ()
    denied: tuple[HostRule, ...] = ()  # takes precedence over `allowed`
    everything: bool = False  # allows every public host at the usual ports
    private: tuple[tuple[HostRule, tuple[IPv4Network, ...]], ...] = ()  # private networks of hosts; allows none of them
    within: tuple[tuple[HostRule, ...], ...] = ()  # the lists that narrowed the rules
    is_bound: bool = False  # a policy lists the hosts, or that there are none

    def allows(self, name: str, port: int) -> bool:
        """Whether the canonical ``name`` may be reached at ``port`` without asking."""
        if self.denies(name, port):
            return False
        public = self.everything and port in USUAL_PORTS and may_be_public(name)
        return public or any(rule.covers(name, port) for rule in self.allowed)

    def denies(self, name: str, port: int) -> bool:
        """Whether a rule denies it. Here a rule without a port is for all ports."""
        return any(rule.names(name) and rule.port in (None, port) for rule in self.denied)

    def beyond(self, name: str, port: int) -> tuple[str, ...]:
        """Return, as written, the narrowing lists that do not name the canonical ``name`` at ``port``."""
        lists = (one for one in self.within if not any(rule.covers(name, port) for rule in one))
        return tuple(" ".join(map(str, one)) for one in lists)

    def networks(self, name: str, port: int) -> tuple[IPv4Network, ...]:
        """Return the only networks in which ``name`` is dialled at ``port``; empty for public addresses."""
        return tuple(network for rule, networks in self.private if rule.covers(name, port) for network in networks)

    @property
    def local_ports(self) -> tuple[int, ...]:
        """The allowed ports of the host's loopback, under `LOCAL_NAME`."""
        return tuple(
            rule.port
            for rule in self.allowed
            if rule.host == LOCAL_NAME and rule.port is not None and not self.denies(LOCAL_NAME, rule.port)
        )

    def ports(self, name: str) -> tuple[int, ...]:
        """Return the ports of the canonical ``name`` that are allowed without asking."""
        usual = USUAL_PORTS if self.everything else ()
        of_rules = [
            port
            for rule in self.allowed
            if rule.names(name)
            for port in (USUAL_PORTS if rule.port is None else (rule.port,))
        ]
        return tuple(sorted({port for port in (*usual, *of_rules) if self.allows(name, port)}))


def canonical(name: str) -> str | None:
    """Return ``name`` as rules have it: in lower case without the final dot. None if it is not a host name of ASCII
    labels, such as an address or an unencoded name in another script (RFC 5890)."""
    plain = name.removesuffix(".").lower() if name.isascii() else ""
    labels = plain.split(".")
    if not plain or len(plain) > _MOST_NAME or not all(_LABEL.match(label) for label in labels):
        return None
    return None if _is_number(labels[-1]) else plain


def may_be_public(name: str) -> bool:
    """Whether the canonical ``name`` can be in the public DNS: it has a dot, and its end is not reserved."""
    return "." in name and not any(name.endswith(f".{end}") or name == end for end in _NOT_PUBLIC)


def host_rule(text: object, argument: str = "allowed_domains") -> HostRule:
    """Parse a host rule. Raises ``InvalidArgument`` for ``argument`` if it is invalid or too wide: a name without a
    dot, ``localhost``, casemate's name for this machine, or ``*.`` before a suffix under which anyone can register
    (``*.com``, ``*.co.uk``: the ICANN part of the Public Suffix List)."""
    rule = _parse_rule(text, argument)
    host = rule.host.removeprefix("*.")
    if host == EVERY_NAME:
        raise InvalidArgument(
            argument, f"{text!r} would be every host", remediation="For every public host: public as network."
        )
    if host == _OWN_NAMES or host.endswith(f".{_OWN_NAMES}"):
        raise InvalidArgument(
            argument,
            f"{text!r} names services of this machine, which are allowed by port",
            remediation=f"For {LOCAL_NAME}:8000: 8000 as allow_local (--allow-local 8000).",
        )
    if "." not in host or host.endswith((".localhost", ".localdomain")):
        raise InvalidArgument(
            argument,
            f"{text!r} names this machine, a host of its own network, or a whole top-level domain",
            remediation=f"Write a full name, such as 'example.org'. {_OF_ADDRESSES}",
        )
    if rule.host != host and _is_public_suffix(host):
        raise InvalidArgument(
            argument,
            f"{text!r} is too wide: anyone can register a name under {host!r}",
            remediation=f"Name the hosts, such as '*.example.{host}', or give public as network.",
        )
    return rule


def narrowing_rule(text: object, argument: str = "allowed_domains") -> HostRule:
    """Like :func:`host_rule`, for a rule that only narrows: it may also be a port of `LOCAL_NAME`."""
    rule = _parse_rule(text, argument)
    return rule if rule.host == LOCAL_NAME and rule.port is not None else host_rule(text, argument)


def exact_rule(text: object, argument: str = "intercept") -> HostRule:
    """Like :func:`host_rule`, for a single name."""
    rule = host_rule(text, argument)
    if rule.host.startswith("*."):
        raise InvalidArgument(argument, f"{text!r} is more than one host", remediation="Name each host by itself.")
    return rule


def denied_rule(text: object, argument: str = "denied_domains") -> HostRule:
    """Like :func:`host_rule`, for a rule that denies: it may be of any width, including ``*``."""
    return _parse_rule(text, argument)


def _parse_rule(text: object, argument: str) -> HostRule:
    if not isinstance(text, str):
        raise InvalidArgument(argument, f"{text!r} is not a str such as 'example.org'")
    host, colon, port = text.partition(":")
    wild = host.startswith("*.")
    name = EVERY_NAME if host == EVERY_NAME else canonical(host[2:] if wild else host)
    port_is_good = not colon or (_PORT.match(port) is not None and int(port) <= MOST_PORT)
    if name is None or not port_is_good:
        cut = text[:_LONGEST_TOLD]
        why, instead = _why_none(cut, name)
        raise InvalidArgument(argument, f"{cut!r} is not a rule about a host: {why}", remediation=instead)
    return HostRule(f"*.{name}" if wild else name, int(port) if colon else None)


_LONGEST_TOLD = 300  # characters; longer than a name with a port
_FORMS = "Write 'example.org', '*.example.org' or 'example.org:5432'."


def _why_none(text: str, name: str | None) -> tuple[str, str]:
    """Return what is wrong with an invalid rule, and what to write instead. ``name`` is its host, if valid."""
    host = text.partition(":")[0]
    if "/" in text or "@" in text:
        network = re.fullmatch(r"[0-9.]+/[0-9]+|[0-9a-fA-F:]*:[0-9a-fA-F:.]*/[0-9]+", text)
        if network is None:
            return "it is an address of a page, or has a path or credentials", "Write the name of the host alone."
    of_six = text.startswith("[") or (text.count(":") > 1 and "." not in host)
    if "/" in text or of_six or _is_number(host.rpartition(".")[2].lower()):
        return "it is an address, but hosts are reached by name", f"{_FORMS} {_OF_ADDRESSES}"
    if not host.isascii():
        return "it is not in the form of names in the DNS", _encode_idna(host)
    if name is not None:
        return f"its port is not a number from 1 to {MOST_PORT}", _FORMS
    if "*" in host:
        return "* stands for whole labels, and only at its beginning, as in '*.example.org'", _FORMS
    return "it is not a valid name", _FORMS


_OF_ADDRESSES = (
    f"For services of this machine: their ports, as allow_local (--allow-local PORT), and {LOCAL_NAME} as the host. "
    "For a host in a private network: a rule of the policy with its name and its addresses."
)


def _encode_idna(host: str) -> str:
    """Return the ASCII form of a name in another script (RFC 3490), if it has one."""
    try:
        name = host.encode("idna").decode("ascii")
    except UnicodeError:
        return _FORMS
    return f"If that is what is meant, write {name!r}." if canonical(name.removeprefix("*.")) else _FORMS


def _is_public_suffix(name: str) -> bool:
    """Whether anyone can register below ``name``. Platforms do not count: ``*.github.io`` is deliberate."""
    return bool(_public_suffixes().is_public(name))


@cache
def _public_suffixes() -> PublicSuffixList:
    """The list of the publicsuffixlist package. It has 15,000 lines, so it is read on first use."""
    from publicsuffixlist import PublicSuffixList

    return PublicSuffixList(only_icann=True)


def _is_number(label: str) -> bool:
    """Whether this last label makes the name an address, as browsers and inet_aton(3) read it."""
    return label.isdigit() or label.startswith("0x")


def narrow_hosts(hosts: HostRules, wanted: Sequence[str] | None, *, can_ask: bool) -> HostRules:
    """Narrow ``hosts`` to the domains ``wanted`` by a run; None keeps all. Raises ``InvalidArgument`` for a domain that
    they do not allow, unless it ``can_ask`` an approver. Services of this machine are never asked about."""
    if wanted is None:
        return hosts
    rules = [narrowing_rule(text) for text in wanted]
    found = [part for rule in rules for part in _parts(hosts, rule)]
    missing = [rule for rule in rules if not _parts(hosts, rule)]
    refused = [rule for rule in missing if rule.host == LOCAL_NAME or not can_ask]
    if refused:
        first = refused[0]
        wider = f"{first.port} as allow_local" if first.host == LOCAL_NAME else f"{str(first)!r} as allowed_domains"
        raise InvalidArgument(
            "allowed_domains",
            f"{str(first)!r} is not among the domains of the sandbox; a run's list can only narrow them",
            remediation=f"Allow it where the sandbox or its policy is made: {wider}.",
        )
    return hosts._replace(allowed=tuple(dict.fromkeys(found)), everything=False, within=(*hosts.within, tuple(rules)))


def _parts(hosts: HostRules, wanted: HostRule) -> list[HostRule]:
    """Return the intersection of ``wanted`` and each rule: the narrower host and the narrower port."""
    public = hosts.everything and may_be_public(wanted.host.removeprefix("*."))
    allowed = (*hosts.allowed, *((HostRule(wanted.host),) if public else ()))
    both = ((_narrower_host(rule.host, wanted.host), _narrower_port(rule.port, wanted.port)) for rule in allowed)
    return [HostRule(host, port or None) for host, port in both if host and port is not None]


def _narrower_host(one: str, other: str) -> str:
    """Return the narrower host, or ""."""
    for narrow, wide in ((one, other), (other, one)):
        if narrow == wide or (
            wide.startswith("*.") and narrow.removeprefix("*").endswith(wide[1:]) and narrow != wide[2:]
        ):
            return narrow
    return ""


def _narrower_port(one: int | None, other: int | None) -> int | None:
    """Return the narrower port, 0 for the usual ports, or None if they share none."""
    if one == other:
        return one or 0
    given = one if other is None else other
    return given if None in (one, other) and given in USUAL_PORTS else None


# Text that servers may read as another path: dot segments, plain, encoded or with parameters (RFC 3986, section 3.3;
# servlet containers drop these first), encoded slashes, and double encoding.
_AMBIGUOUS = re.compile(
    r"(?:/|\\|%2f|%5c)(?:\.|%2e){0,2}(?:;|%3b)|(?:/|\\|%2f|%5c)(?:\.|%2e){1,2}(?=/|\\|%2f|%5c|\Z)|\\|%2f|%5c|%00|%25|//",
    re.IGNORECASE,
)

# Fields that override a request's method (Rails, Express, Symfony) or path (IIS, Nginx' auth_request, Symfony).
_OVERRIDING = frozenset(
    {
        *(b"x-http-method-override", b"x-http-method", b"x-method-override"),
        *(b"x-original-url", b"x-original-uri", b"x-rewrite-url", b"x-forwarded-uri", b"x-original-method"),
    }
)


class RequestRule(NamedTuple):
    """Allows ``methods``, or all if empty, at ``host`` for ``path`` and everything below it."""

    host: HostRule
    methods: tuple[str, ...] = ("GET", "HEAD")
    path: str = "/"

    def covers(self, name: str, port: int, method: str, path: str, *, is_overridden: bool = False) -> bool:
        """Whether the rule covers the request. ``path`` has no query; with ``is_overridden`` a field overrides method
        or path."""
        if not self.host.covers(name, port) or (self.methods and method not in self.methods):
            return False
        if is_overridden and (self.methods or self.path != "/"):
            return False
        if self.path == "/":
            return True
        below = self.path.removesuffix("/")
        return (path == below or path.startswith(f"{below}/")) and not _AMBIGUOUS.search(path)


class RequestRules(NamedTuple):
    """Rules for requests. A host that no rule names takes any request."""

    rules: tuple[RequestRule, ...] = ()

    def names(self, name: str, port: int) -> bool:
        """Whether requests to the canonical ``name`` at ``port`` must be read."""
        return any(rule.host.covers(name, port) for rule in self.rules)

    def allows(
        self, name: str, port: int, method: str, target: str, fields: Iterable[tuple[bytes, bytes]] = ()
    ) -> bool:
        """Whether the request is allowed. ``target`` is the path with any query (RFC 9112, section 3.2.1)."""
        path = target.partition("?")[0]
        is_overridden = any(field.lower() in _OVERRIDING for field, _ in fields)
        return not self.names(name, port) or any(
            rule.covers(name, port, method, path, is_overridden=is_overridden) for rule in self.rules
        )
