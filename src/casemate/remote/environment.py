"""Selects the variables that a service started on demand inherits from the process that starts it.

The service outlives that process's shell and serves other shells of the same user. So it inherits no secret, and
depends on as little as possible.
"""

from __future__ import annotations

from collections.abc import Mapping

_OWN = "CASEMATE_"
_SECRET = ("CASEMATE_SECRET_", "CASEMATE_INJECT_", "CASEMATE_TOKEN", "CASEMATE_TESTS_")
_OF_SERVE = "CASEMATE_SERVE_TOKEN"  # also a secret; CASEMATE_SERVE_TOKEN_FILE is a path
_NAMES = frozenset({
    "HOME", "USER", "LOGNAME", "PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR",
    "DBUS_SESSION_BUS_ADDRESS",  # for the keyring with the vault's key
    "SSL_CERT_FILE", "SSL_CERT_DIR", "PYTHONPATH", "VIRTUAL_ENV",
})  # fmt: skip
_BEGINNINGS = ("LC_", "XDG_")


def environment_of_service(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for a service: an allow-list, and casemate's own except secrets."""
    passed = {n: v for n, v in environ.items() if n in _NAMES or n.startswith(_BEGINNINGS)}
    return passed | own_variables(environ)


def own_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Casemate's own variables, which decide what may run. A caller's must be those of its service."""
    own = {n: v for n, v in environ.items() if n.startswith(_OWN) and not n.startswith(_SECRET)}
    return {n: v for n, v in own.items() if n != _OF_SERVE}
