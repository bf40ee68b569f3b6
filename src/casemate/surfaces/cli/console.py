"""``casemate console``: opens the console in a browser, signed in."""

from __future__ import annotations

import contextlib
import html
import os
import webbrowser
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter

from casemate.errors import Unavailable
from casemate.remote.places import open_private, places_of
from casemate.surfaces.cli.answers import print_answer
from casemate.surfaces.cli.connection import PLAIN, ServiceOptions, with_service
from casemate.surfaces.cli.failures import say

_FILE = "console.html"
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


def console(
    *,
    prints: Annotated[bool, Parameter(name=("--print", "--no-browser"), negative="")] = False,
    port: int = 0,
    service: ServiceOptions = PLAIN,
) -> int:
    """Open the console in your browser: approval requests, runs, sessions and the record.

    It is a page of your service, for this machine only. The link signs in one browser, once, within a minute. The
    session ends when you sign out, after twelve hours without use, or with the service.

    casemate console

    casemate console --print

    casemate console --port 8765 --print        # for a tunnel: ssh -L 8765:127.0.0.1:8765 HOST

    Args:
        prints: Print the link, and open nothing.
        port: The port for browsers on this machine; default any free one. If the service already listens for browsers,
            its port stays.
    """
    link = with_service(lambda remote: remote.console_link(port), service)
    where = urlsplit(link).netloc
    if port and where != f"127.0.0.1:{port}":
        say(f"--port {port} was ignored: the service already listens at {where}")
    if prints or service.is_json or not _opens(link):
        return print_answer({"url": link}, [link], is_json=service.is_json)
    return print_answer({}, [f"opened {link.partition('#')[0]} in your browser"], is_json=False)


def _opens(link: str) -> bool:
    """Open ``link`` in a browser. Returns whether that worked. The browser gets a private file with the link, because
    every user of the machine can read a program's arguments."""
    if not any(os.environ.get(name) for name in _SCREENS):
        return False
    places = places_of(os.environ)
    folder = open_private(places.sockets, make=True)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_FILE, dir_fd=folder)
        file = os.open(_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        with os.fdopen(file, "w") as page:
            page.write(
                f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(link)}"><title>.</title>'
            )
    except OSError as error:
        raise Unavailable(f"{places.sockets / _FILE} cannot be written: {error.strerror or error}") from None
    finally:
        os.close(folder)
    try:
        return webbrowser.open((places.sockets / _FILE).as_uri())
    except webbrowser.Error:
        return False
