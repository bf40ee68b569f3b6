"""What a service that is started on demand knows of whoever started it: names of variables that may be passed on. Pure.

It lives longer than the shell that started it, and serves others of the same user: no secret of that shell becomes its
own, and it depends on as little as can be.
"""

from __future__ import annotations

from collections.abc import Mapping

_OWN = "CASEMATE_"
_SECRET = ("CASEMATE_SECRET_", "CASEMATE_INJECT_", "CASEMATE_TOKEN", "CASEMATE_TESTS_")
_OF_SERVE = "CASEMATE_SERVE_TOKEN"  # a secret too; CASEMATE_SERVE_TOKEN_FILE is a path
_NAMES = frozenset({
    "HOME", "USER", "LOGNAME", "PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR",
    "DBUS_SESSION_BUS_ADDRESS",  # of the keyring that has the vault's key
    "SSL_CERT_FILE", "SSL_CERT_DIR", "PYTHONPATH", "VIRTUAL_ENV",
})  # fmt: skip
_BEGINNINGS = ("LC_", "XDG_")


def environment_of_service(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a service gets: an allow-list, and casemate's own but for secrets."""
    passed = {n: v for n, v in environ.items() if n in _NAMES or n.startswith(_BEGINNINGS)}
    return passed | own_variables(environ)


def own_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Casemate's own variables, which say what may be run: those of a caller must be those of its service."""
    own = {n: v for n, v in environ.items() if n.startswith(_OWN) and not n.startswith(_SECRET)}
    return {n: v for n, v in own.items() if n != _OF_SERVE}
