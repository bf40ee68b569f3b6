"""The service put together: its places, its namespaces' sandboxes, and HTTP."""

from __future__ import annotations

import asyncio
import gc
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from casemate.api.keys import ServiceSettings
from casemate.api.sandbox import Sandbox
from casemate.errors import InvalidArgument, Unavailable
from casemate.model.limits import Limits
from casemate.operations.catalogue import catalogue
from casemate.remote.address import is_loopback
from casemate.remote.fingerprints import fingerprints
from casemate.remote.places import places_of
from casemate.surfaces.cli.failures import say
from casemate.surfaces.http.app import Application, HttpApplication
from casemate.surfaces.http.daemon import ServiceLock, begin, live
from casemate.surfaces.http.identity import UNIX, Admitted, Listener, hosts_of
from casemate.surfaces.http.server import Server, listen, new_loop, take_descriptors
from casemate.surfaces.http.service import Service, Terms
from casemate.surfaces.http.tokens import Tokens


def run(
    options: ServiceSettings, environ: Mapping[str, str], mounts: Mapping[str, Application], *, on_demand: bool
) -> int:
    """Serve until told to end; the exit code. ``mounts``: other applications by the first part of their paths.

    Raises ``InvalidArgument`` and ``Unavailable``."""
    addresses = _check_addresses(options)
    os.umask(0o077)
    gc.enable()  # the command line, which ends soon, goes without
    places = places_of(environ)
    lock = ServiceLock(places)
    try:
        log = begin(places.state)
        terms = Terms(drain=options.drain, idle_stop=options.idle_stop)
        service = Service(places.state, partial(sandbox_of, environ), terms)
        admitted = Admitted(Tokens(places.state).principals_of)
        settings = fingerprints(environ)

        def application(listener: Listener) -> HttpApplication:
            return HttpApplication(service, listener, admitted, settings, mounts)

        def open_servers() -> list[Server]:  # the Unix socket is the last, so that whoever finds it is served
            return [*_tcp_servers(options, addresses, application), Server(application(UNIX), lock.bind_socket())]

        def ready() -> None:
            log.info("listening", extra={"event": "listening", "address": str(places.sockets)})
            if not on_demand:
                say("; ".join(["serving at " + str(places.sockets), *options.listen]))

        os.chdir("/")
        take_descriptors()
        _load()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(live(service, open_servers, ready))
    finally:
        lock.close()
    return 0


def _load() -> None:
    """Everything that the first requests need: loading it later would hold up all that are there by then."""
    import casemate.approvals.broker
    import casemate.execution.capture
    import casemate.execution.pipeline
    import casemate.sessions.session  # noqa: F401 - loaded, not used

    catalogue()
    gc.freeze()  # no collection looks at all that again


_LONGEST_RUN = 3600.0  # seconds that a run may ask for where nobody has said; 60 where it does not ask


def sandbox_of(environ: Mapping[str, str], namespace: str, **arguments: Any) -> Sandbox:
    """The sandbox of a namespace, as the user has configured it, with the user's secrets and MCP servers; ``arguments``
    come before what is configured. Raises as the class."""
    from casemate.api.settings import settings_of
    from casemate.tools.files import begun_at_home, read_file, users_file
    from casemate.vault.vault import users_store

    settings = settings_of(environ)
    configured = settings.sandbox_arguments(environ)
    if "wall" not in {**settings.policy.limits, **settings.limits}:
        limits = configured.get("limits") or Limits(**settings.policy.limits)
        configured["limits"] = replace(limits, wall=_LONGEST_RUN)
    servers = {name: begun_at_home(one, environ) for name, one in read_file(users_file(environ)).items()}
    return Sandbox(
        **{"vault": users_store(environ), "tools": servers, **configured, **arguments, "namespace": namespace}
    )


def _tcp_servers(
    options: ServiceSettings, addresses: Sequence[tuple[str, int]], application: Callable[[Listener], HttpApplication]
) -> Iterator[Server]:
    """One for each address, each listening already. Raises ``Unavailable``."""
    files = (options.tls_cert, options.tls_key) if options.tls_cert and options.tls_key else None
    origins = frozenset(origin.lower().rstrip("/") for origin in options.allow_origins)
    for host, port in addresses:
        try:
            listening = listen(host, port)
            names = hosts_of([(host, listening.getsockname()[1])], options.host_names, tls=files is not None)
            yield Server(application(Listener("tcp", names, origins)), listening, files)
        except OSError as error:
            raise Unavailable(f"{host}:{port} cannot be listened at: {error.strerror or error}") from None


def _check_addresses(options: ServiceSettings) -> list[tuple[str, int]]:
    """The addresses to listen at. Raises ``InvalidArgument`` for those that would lay open what is said."""
    for name, seconds in (("idle_stop", options.idle_stop), ("drain", options.drain)):
        if seconds is not None and not (0 <= seconds < math.inf):
            raise InvalidArgument(name, f"{seconds!r} is not a number of seconds")
    if bool(options.tls_cert) != bool(options.tls_key):
        raise InvalidArgument("tls_cert", "--tls-cert and --tls-key belong together; give both")
    addresses = [_address(text) for text in options.listen]
    for host, port in addresses:
        if not is_loopback(host) and not options.tls_cert and not options.plain_http:
            raise InvalidArgument(
                "listen",
                f"{host}:{port} would send tokens, programs and results over the network for everybody to read",
                remediation="Give --tls-cert and --tls-key; or --plain-http where that network is trusted.",
            )
    return addresses


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidArgument("listen", f"{text!r} is not HOST:PORT")
    return ("127.0.0.1" if host == "localhost" else host), int(port)
