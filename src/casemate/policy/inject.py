"""Where a secret may be injected into requests. The rule is stored with the secret. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from casemate.errors import InvalidArgument
from casemate.policy.hosts import HTTPS, host_rule
from casemate.visible import brief

_MOST_HOSTS = 64
_MOST_HEADER = 100  # characters
_MOST_FORMAT = 200
_FIELD_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")  # RFC 9110, section 5.1
_PRINTABLE = re.compile(r"[ -~]+\Z")
_GAP = "{}"
# Fields that cannot hold a secret, by reason.
_REFUSED = {
    "says where a request goes": "host forwarded via x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip",
    "says where a message ends": "content-length transfer-encoding trailer expect",
    "says what a body is": "content-type content-encoding content-range accept-encoding range",
    "is for one connection, or its proxies": (
        "connection keep-alive te upgrade http2-settings max-forwards proxy-connection proxy-authorization "
        "proxy-authenticate proxy-authentication-info"
    ),
    "is split and joined on its way (RFC 9113, section 8.2.3)": "cookie cookie2 set-cookie set-cookie2",
    "is sent to other hosts": "referer origin user-agent from",
}
_WHY_REFUSED = {name: why for why, names in _REFUSED.items() for name in names.split()}
_REFUSED_PREFIXES = {"sec-": "is a browser's own", "proxy-": "is for one connection, or its proxies"}


@dataclass(frozen=True, slots=True)
class Inject:
    """Keeps a secret from programs: the egress proxy injects it into their requests.

    Attributes:
        hosts: Exact names, ``"api.example.org"`` or ``"api.example.org:8443"``; the default port is 443. They are
            stored as canonical names.
        header: The field that holds the secret.
        format: The whole value of that field, with ``{}`` for the secret. With ``"Basic {}"`` in ``Authorization``,
            the secret may also be only the user or only the password inside the base64 (RFC 7617).

    Raises:
        InvalidArgument: An attribute is wrong; the error names it.
    """

    hosts: Sequence[str]
    header: str = "Authorization"
    format: str = "Bearer {}"

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", _hosts(self.hosts))
        _check_header(self.header)
        _check_format(self.format)

    @property
    def places(self) -> frozenset[tuple[str, int]]:
        rules = (host_rule(host, "hosts") for host in self.hosts)
        return frozenset((rule.host, rule.port or HTTPS) for rule in rules)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON data for storage."""
        return {"hosts": list(self.hosts), "header": self.header, "format": self.format}

    @classmethod
    def read(cls, data: object) -> Inject:
        """Read it from JSON data. ``header`` and ``format`` have defaults.

        Raises:
            InvalidArgument: An argument cannot be used.
        """
        if not isinstance(data, Mapping) or not {"hosts"} <= set(data) <= {"hosts", "header", "format"}:
            raise InvalidArgument("inject", "it has hosts and may have header and format, and nothing else")
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Injected:
    """A secret ``value`` with its rule. Its repr hides the value."""

    value: str
    inject: Inject

    def __repr__(self) -> str:
        return f"Injected({self.inject!r})"


def _hosts(hosts: object) -> tuple[str, ...]:
    if isinstance(hosts, str | bytes) or not isinstance(hosts, Sequence | set | frozenset):
        raise InvalidArgument("hosts", f"{brief(hosts)} is not a list; give e.g. ['api.example.org']")
    if not 0 < len(hosts) <= _MOST_HOSTS:
        raise InvalidArgument("hosts", f"are {len(hosts)}; give 1 to {_MOST_HOSTS}")
    return tuple(dict.fromkeys(_host(host) for host in hosts))


def _host(text: object) -> str:
    if isinstance(text, str) and "*" in text:
        raise InvalidArgument("hosts", f"{brief(text)} is a pattern; name the secret's hosts in full")
    return str(host_rule(text, "hosts"))


def _check_header(header: object) -> None:
    if not isinstance(header, str) or len(header) > _MOST_HEADER or not _FIELD_NAME.match(header):
        raise InvalidArgument("header", f"{brief(header)} is not the name of a header field such as 'X-Api-Key'")
    name = header.lower()
    why = _WHY_REFUSED.get(name) or next((why for by, why in _REFUSED_PREFIXES.items() if name.startswith(by)), "")
    if why:
        raise InvalidArgument("header", f"{header!r} cannot hold a secret: it {why}")


def _check_format(text: object) -> None:
    if not isinstance(text, str) or not 0 < len(text) <= _MOST_FORMAT:
        raise InvalidArgument("format", f"{brief(text)} is not a str of at most {_MOST_FORMAT} characters")
    if not _PRINTABLE.match(text) or text != text.strip():
        raise InvalidArgument("format", f"{brief(text)} is not plain printable ASCII without space at its ends")
    if text.count(_GAP) != 1:
        raise InvalidArgument("format", f"{brief(text)} has {text.count(_GAP)} places for the secret; write one {{}}")
