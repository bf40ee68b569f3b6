"""Which hosts a cell may reach, and which HTTP requests it may make of them. Pure.

Rules of hosts have the form ``example.org``, ``*.example.org`` and ``example.org:5432``. A rule covers a name when it
is exactly that name, whatever its case and with or without the one dot at its end that makes it absolute (RFC 1034,
section 3.1); ``*.`` stands for one or more whole labels, never for none. Without a port a rule is for 80 and 443.

A rule may name private networks for a host, which is then in those and nowhere else. A run's own list of hosts narrows
the sandbox's, and never widens it. What TLS covers cannot be seen, so a host that a rule for requests names is reached
in clear only, unless its TLS is intercepted.
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
LOCAL_NAME = "host.casemate.internal"  # the host's own loopback, at the ports that rules for this very name have
_OWN_NAMES = "casemate.internal"  # whatever is below it: only allow_local makes rules of such names
EVERY_NAME = "*"  # only of rules that deny
_MOST_NAME = 253  # characters (RFC 1035, section 2.3.4, without the root's)
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)\Z")
_PORT = re.compile(r"[1-9][0-9]{0,4}\Z")
MOST_PORT = 65535
# Names of this machine and of networks without a registry: no "public" host has one (RFC 6761, 6762, 7686, 8375; ICANN
# has reserved .internal).
_NOT_PUBLIC = ("localhost", "localdomain", "local", "internal", "home.arpa", "onion", "invalid")


class HostRule(NamedTuple):
    """``host`` is a canonical name, or ``*.`` and one; ``port`` is None for the usual ones."""

    host: str
    port: int | None = None

    def covers(self, name: str, port: int) -> bool:
        """Whether the canonical ``name`` may be reached at ``port``."""
        return self.names(name) and (port in USUAL_PORTS if self.port is None else port == self.port)

    def names(self, name: str) -> bool:
        """Whether the rule is for the canonical ``name``, at whatever port."""
        if self.host.startswith("*."):
            return name.endswith(self.host[1:]) and len(name) > len(self.host) - 1
        return self.host in (name, EVERY_NAME)

    def __str__(self) -> str:
        return self.host if self.port is None else f"{self.host}:{self.port}"


class HostRules(NamedTuple):
    """``denied`` wins over ``allowed``; ``everything`` is every public host at the usual ports.

    ``private``: where hosts are that are in private networks; it allows none of them. ``within``: the lists that have
    narrowed what rules allow. ``is_bound``: a policy says which hosts there are, if only that there are none.
    """

    allowed: tuple[HostRule, ...] = ()
    denied: tuple[HostRule, ...] = ()
    everything: bool = False
    private: tuple[tuple[HostRule, tuple[IPv4Network, ...]], ...] = ()
    within: tuple[tuple[HostRule, ...], ...] = ()
    is_bound: bool = False

    def allows(self, name: str, port: int) -> bool:
        """Whether the canonical ``name`` may be reached at ``port`` without asking."""
        if self.denies(name, port):
            return False
        public = self.everything and port in USUAL_PORTS and may_be_public(name)
        return public or any(rule.covers(name, port) for rule in self.allowed)

    def denies(self, name: str, port: int) -> bool:
        """Whether a rule says no; a rule without a port is for all of them here."""
        return any(rule.names(name) and rule.port in (None, port) for rule in self.denied)

    def beyond(self, name: str, port: int) -> tuple[str, ...]:
        """The lists that narrow what rules allow and do not name the canonical ``name`` at ``port``, as written."""
        lists = (one for one in self.within if not any(rule.covers(name, port) for rule in one))
        return tuple(" ".join(map(str, one)) for one in lists)

    def networks(self, name: str, port: int) -> tuple[IPv4Network, ...]:
        """The only networks in which the canonical ``name`` is dialled at ``port``; none: at public addresses."""
        return tuple(network for rule, networks in self.private if rule.covers(name, port) for network in networks)

    @property
    def local_ports(self) -> tuple[int, ...]:
        """The ports of services on the host's loopback that may be reached, under `LOCAL_NAME`."""
        return tuple(
            rule.port
            for rule in self.allowed
            if rule.host == LOCAL_NAME and rule.port is not None and not self.denies(LOCAL_NAME, rule.port)
        )

    def ports(self, name: str) -> tuple[int, ...]:
        """The ports at which the canonical ``name`` may be reached without asking."""
        usual = USUAL_PORTS if self.everything else ()
        of_rules = [
            port
            for rule in self.allowed
            if rule.names(name)
            for port in (USUAL_PORTS if rule.port is None else (rule.port,))
        ]
        return tuple(sorted({port for port in (*usual, *of_rules) if self.allows(name, port)}))


def canonical(name: str) -> str | None:
    """``name`` as rules have it: lower case, without the dot at its end; None for what is no host name of plain ASCII
    labels, such as an address, or a name in another script that has not been encoded (RFC 5890)."""
    plain = name.removesuffix(".").lower() if name.isascii() else ""
    labels = plain.split(".")
    if not plain or len(plain) > _MOST_NAME or not all(_LABEL.match(label) for label in labels):
        return None
    return None if _is_number(labels[-1]) else plain


def may_be_public(name: str) -> bool:
    """Whether the canonical ``name`` can be one of the public DNS: it has a dot, and its end is reserved for nothing
    else."""
    return "." in name and not any(name.endswith(f".{end}") or name == end for end in _NOT_PUBLIC)


def host_rule(text: object, argument: str = "allowed_domains") -> HostRule:
    """The rule that ``text`` says. Raises ``InvalidArgument``, which names ``argument``, where it is none, or too wide
    to be meant: a name without a dot, ``localhost``, casemate's own name for this machine, or ``*.`` before a suffix
    under which anybody may register (``*.com``, ``*.co.uk``: the ICANN part of the Public Suffix List)."""
    rule = _parse_rule(text, argument)
    host = rule.host.removeprefix("*.")
    if host == EVERY_NAME:
        raise InvalidArgument(
            argument, f"{text!r} would be every host", remediation="For every public host: public as network."
        )
    if host == _OWN_NAMES or host.endswith(f".{_OWN_NAMES}"):
        raise InvalidArgument(
            argument,
            f"{text!r} names services of this machine, which are given by their ports",
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
            f"{text!r} is too wide: anybody may register a name under {host!r}",
            remediation=f"Name the hosts, such as '*.example.{host}', or give public as network.",
        )
    return rule


def narrowing_rule(text: object, argument: str = "allowed_domains") -> HostRule:
    """As :func:`host_rule`, for a rule that only narrows others: it may be for a port of this machine's own services,
    under `LOCAL_NAME`."""
    rule = _parse_rule(text, argument)
    return rule if rule.host == LOCAL_NAME and rule.port is not None else host_rule(text, argument)


def exact_rule(text: object, argument: str = "intercept") -> HostRule:
    """As :func:`host_rule`, for one name alone."""
    rule = host_rule(text, argument)
    if rule.host.startswith("*."):
        raise InvalidArgument(argument, f"{text!r} is more than one host", remediation="Name each host by itself.")
    return rule


def denied_rule(text: object, argument: str = "denied_domains") -> HostRule:
    """As :func:`host_rule`, for a rule that says no: it may be as wide as one likes, ``*`` included."""
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
        raise InvalidArgument(argument, f"{cut!r} is no rule about a host: {why}", remediation=instead)
    return HostRule(f"*.{name}" if wild else name, int(port) if colon else None)


_LONGEST_TOLD = 300  # characters: more than a name and a port have
_FORMS = "Write 'example.org', '*.example.org' or 'example.org:5432'."


def _why_none(text: str, name: str | None) -> tuple[str, str]:
    """What is wrong with a text that is no rule, and what to write in its place. ``name``: of its host, if that is
    one."""
    host = text.partition(":")[0]
    if "/" in text or "@" in text:
        network = re.fullmatch(r"[0-9.]+/[0-9]+|[0-9a-fA-F:]*:[0-9a-fA-F:.]*/[0-9]+", text)
        if network is None:
            return "it is an address of a page, or has a path or credentials", "Write the name of the host alone."
    of_six = text.startswith("[") or (text.count(":") > 1 and "." not in host)
    if "/" in text or of_six or _is_number(host.rpartition(".")[2].lower()):
        return "it is an address, and hosts are reached by their names", f"{_FORMS} {_OF_ADDRESSES}"
    if not host.isascii():
        return "it is not in the form that names have in the DNS", _encode_idna(host)
    if name is not None:
        return f"its port is no number from 1 to {MOST_PORT}", _FORMS
    if "*" in host:
        return "* stands for whole labels, and only at its beginning, as in '*.example.org'", _FORMS
    return "its name is none", _FORMS


_OF_ADDRESSES = (
    f"For services of this machine: their ports, as allow_local (--allow-local PORT), and {LOCAL_NAME} as the host. "
    "For a host in a private network: a rule of the policy with its name and its addresses."
)


def _encode_idna(host: str) -> str:
    """How a name in another script is written (RFC 3490), where that can be told."""
    try:
        name = host.encode("idna").decode("ascii")
    except UnicodeError:
        return _FORMS
    return f"If that is what is meant, write {name!r}." if canonical(name.removeprefix("*.")) else _FORMS


def _is_public_suffix(name: str) -> bool:
    """Whether anybody may register below ``name``. Platforms that give names away (github.io) do not count: whoever
    writes ``*.github.io`` means it."""
    return bool(_public_suffixes().is_public(name))


@cache
def _public_suffixes() -> PublicSuffixList:
    """The list that comes with a package: 15,000 lines, so it is read when the first wide rule is."""
    from publicsuffixlist import PublicSuffixList

    return PublicSuffixList(only_icann=True)


def _is_number(label: str) -> bool:
    """Whether a last label makes an address of a name, as browsers and inet_aton(3) read it."""
    return label.isdigit() or label.startswith("0x")


def narrow_hosts(hosts: HostRules, wanted: Sequence[str] | None, *, can_ask: bool) -> HostRules:
    """What a run that names the domains ``wanted`` may reach of ``hosts``; None is all of it.

    Raises ``InvalidArgument`` for a domain that ``hosts`` do not allow, unless somebody ``can_ask`` for it. About
    services of this machine nobody is asked.
    """
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
            f"{str(first)!r} is not among the domains of the sandbox; a run's own list only narrows that",
            remediation=f"Allow it where the sandbox or its policy is made: {wider}.",
        )
    return hosts._replace(allowed=tuple(dict.fromkeys(found)), everything=False, within=(*hosts.within, tuple(rules)))


def _parts(hosts: HostRules, wanted: HostRule) -> list[HostRule]:
    """The rules that are in both: the narrower host, the narrower port."""
    public = hosts.everything and may_be_public(wanted.host.removeprefix("*."))
    allowed = (*hosts.allowed, *((HostRule(wanted.host),) if public else ()))
    both = ((_narrower_host(rule.host, wanted.host), _narrower_port(rule.port, wanted.port)) for rule in allowed)
    return [HostRule(host, port or None) for host, port in both if host and port is not None]


def _narrower_host(one: str, other: str) -> str:
    """Empty where they have no name in common."""
    for narrow, wide in ((one, other), (other, one)):
        if narrow == wide or (
            wide.startswith("*.") and narrow.removeprefix("*").endswith(wide[1:]) and narrow != wide[2:]
        ):
            return narrow
    return ""


def _narrower_port(one: int | None, other: int | None) -> int | None:
    """0 for the usual ports, None where they have none in common."""
    if one == other:
        return one or 0
    given = one if other is None else other
    return given if None in (one, other) and given in USUAL_PORTS else None


# What servers read as another path than the one that is written: dot segments, plain, encoded or with parameters (RFC
# 3986, section 3.3; servers of servlets drop these first), encoded slashes, and what is encoded twice.
_AMBIGUOUS = re.compile(
    r"(?:/|\\|%2f|%5c)(?:\.|%2e){0,2}(?:;|%3b)|(?:/|\\|%2f|%5c)(?:\.|%2e){1,2}(?=/|\\|%2f|%5c|\Z)|\\|%2f|%5c|%00|%25|//",
    re.IGNORECASE,
)

# Fields by which servers and what stands before them take a request for another: Rails, Express and Symfony for its
# method; IIS, Nginx' auth_request and Symfony for its path.
_OVERRIDING = frozenset(
    {
        *(b"x-http-method-override", b"x-http-method", b"x-method-override"),
        *(b"x-original-url", b"x-original-uri", b"x-rewrite-url", b"x-forwarded-uri", b"x-original-method"),
    }
)


class RequestRule(NamedTuple):
    """``methods`` may be used at ``host`` for ``path`` and everything below it; an empty ``methods`` is all of them."""

    host: HostRule
    methods: tuple[str, ...] = ("GET", "HEAD")
    path: str = "/"

    def covers(self, name: str, port: int, method: str, path: str, *, is_overridden: bool = False) -> bool:
        """Whether the request is one of these. ``path`` is as written, without its query; ``is_overridden``: its fields
        say another method or path."""
        if not self.host.covers(name, port) or (self.methods and method not in self.methods):
            return False
        if is_overridden and (self.methods or self.path != "/"):
            return False
        if self.path == "/":
            return True
        below = self.path.removesuffix("/")
        return (path == below or path.startswith(f"{below}/")) and not _AMBIGUOUS.search(path)


class RequestRules(NamedTuple):
    """A host that no rule names may be asked anything; another only what a rule covers."""

    rules: tuple[RequestRule, ...] = ()

    def names(self, name: str, port: int) -> bool:
        """Whether requests to the canonical ``name`` at ``port`` have to be seen."""
        return any(rule.host.covers(name, port) for rule in self.rules)

    def allows(
        self, name: str, port: int, method: str, target: str, fields: Iterable[tuple[bytes, bytes]] = ()
    ) -> bool:
        """Whether the request may be made; ``target`` is the path, perhaps with a query (RFC 9112, section 3.2.1)."""
        path = target.partition("?")[0]
        is_overridden = any(field.lower() in _OVERRIDING for field, _ in fields)
        return not self.names(name, port) or any(
            rule.covers(name, port, method, path, is_overridden=is_overridden) for rule in self.rules
        )
