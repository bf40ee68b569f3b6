"""Assembles the service: its folders, its namespaces' sandboxes, and HTTP."""

from __future__ import annotations

import asyncio
import gc
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from casemate.api.keys import ServiceSettings
from casemate.api.sandbox import Sandbox
from casemate.errors import InvalidArgument, Unavailable
from casemate.model.addresses import is_loopback
from casemate.model.limits import Limits
from casemate.operations.catalogue import catalogue
from casemate.remote.fingerprints import fingerprints
from casemate.remote.places import places_of
from casemate.surfaces.cli.failures import say
from casemate.surfaces.http.app import Application, HttpApplication
from casemate.surfaces.http.console import Console
from casemate.surfaces.http.daemon import Servers, ServiceLock, begin, live
from casemate.surfaces.http.identity import UNIX, Admitted, Listener, hosts_of
from casemate.surfaces.http.server import Server, listen, new_loop, take_descriptors
from casemate.surfaces.http.service import Service, Terms
from casemate.surfaces.http.sign_in import SignIns
from casemate.surfaces.http.tokens import Tokens


def run(
    options: ServiceSettings, environ: Mapping[str, str], mounts: Mapping[str, Application], *, on_demand: bool
) -> int:
    """Serve until stopped. Returns the exit code. ``mounts``: other applications, by the first part of their paths."""
    addresses = _check_addresses(options)
    os.umask(0o077)
    gc.enable()  # the command line disables it
    take_descriptors()
    places = places_of(environ)
    lock = ServiceLock(places)
    try:
        log = begin(places.state)
        terms = Terms(drain=options.drain, idle_stop=options.idle_stop)
        service = Service(places.state, partial(sandbox_of, environ), terms)
        sign_ins = SignIns(Tokens(places.state).principals_of)
        admitted = Admitted(sign_ins.principals_of)
        settings = fingerprints(environ, on_demand=on_demand)

        opened = [f"serving at {places.sockets}"]

        def open_servers(servers: Servers) -> None:  # opens the Unix socket last: its clients expect answers
            def application(listener: Listener) -> HttpApplication:
                return HttpApplication(service, listener, admitted, settings, mounts, console)

            console = Console(sign_ins, Loopback(options, application, servers.add).open)
            for host, port in addresses:
                servers.add(server := _tcp_server(options, application, host, port))
                opened.append(f"[{host}]:{server.port}" if ":" in host else f"{host}:{server.port}")
            servers.add(Server(application(UNIX), lock.bind_socket()))

        def ready() -> None:
            log.info("listening", extra={"event": "listening", "address": str(places.sockets)})
            if not on_demand:
                say("; ".join(opened))

        os.chdir("/")
        _load()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(live(service, open_servers, ready))
    finally:
        lock.close()
    return 0


def _load() -> None:
    """Load all modules for the first requests. Loading them later would delay all requests of that time."""
    import casemate.approvals.broker
    import casemate.execution.capture
    import casemate.execution.pipeline
    import casemate.sessions.session  # noqa: F401 - loaded for later

    catalogue()
    gc.freeze()  # collections skip all that from now on


_LONGEST_RUN = 3600.0  # seconds: the longest timeout that a run may have by default; the default timeout is 60


def sandbox_of(environ: Mapping[str, str], namespace: str, **arguments: Any) -> Sandbox:
    """The sandbox of a namespace as the user has configured it; ``arguments`` override the configuration."""
    from casemate.api.settings import settings_of
    from casemate.tools.files import begun_at_home, read_file, users_file
    from casemate.vault.vault import users_store

    settings = settings_of(environ, arguments=arguments)
    configured = settings.sandbox_arguments(environ)
    configured["limits"] = Limits(**{"wall": _LONGEST_RUN, **settings.policy.limits, **settings.limits})
    servers = {name: begun_at_home(one, environ) for name, one in read_file(users_file(environ)).items()}
    return Sandbox(**{"vault": users_store(environ), "tools": servers, **configured, "namespace": namespace})


MakeApplication = Callable[[Listener], HttpApplication]


class Loopback:
    """A loopback address that is opened when a browser first needs it. Browsers cannot use a Unix socket. Until one
    comes, the service needs no port."""

    def __init__(self, options: ServiceSettings, application: MakeApplication, add: Callable[[Server], None]) -> None:
        self._options = replace(options, tls_cert=None, tls_key=None)
        self._application = application
        self._add = add
        self._port = 0

    def open(self, port: int = 0) -> int:
        """Listen at ``port``, or any free one for 0, unless a port is open already. Returns the open port."""
        if not self._port:
            server = _tcp_server(self._options, self._application, "127.0.0.1", port)
            self._port = server.port
            self._add(server)
        return self._port


def _tcp_server(options: ServiceSettings, application: MakeApplication, host: str, port: int) -> Server:
    files = (options.tls_cert, options.tls_key) if options.tls_cert and options.tls_key else None
    origins = frozenset(origin.lower().rstrip("/") for origin in options.allow_origins)
    try:
        listening = listen(host, port)
        names = hosts_of([(host, listening.getsockname()[1])], options.host_names, tls=files is not None)
        listener = Listener("tcp", names, origins, "https" if files else "http")
        return Server(application(listener), listening, files)
    except OSError as error:
        raise Unavailable(f"cannot listen at {host}:{port}: {error.strerror or error}") from None


def _check_addresses(options: ServiceSettings) -> list[tuple[str, int]]:
    """The addresses to listen at. Raises ``InvalidArgument`` for those that would expose traffic."""
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
                f"{host}:{port} would send tokens, programs and results over the network unencrypted",
                remediation="Give --tls-cert and --tls-key; or --plain-http if that network is trusted.",
            )
    return addresses


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidArgument("listen", f"{text!r} is not HOST:PORT")
    return ("127.0.0.1" if host == "localhost" else host), int(port)
