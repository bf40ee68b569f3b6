"""Sends each anchor, a signed line, to places outside. A user who changes the record cannot change it there.

A place is a path, such as on another file system; a command after "|", which gets the line on standard input; or the
address of a time stamp server (RFC 3161, http or https), whose answers are stored beside the record.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit, urlunsplit

from casemate.audit.journal import append_whole
from casemate.errors import InvalidArgument
from casemate.files.beneath import hold

_WITHIN = 10.0  # seconds for a command or a server
_MOST = 64 * 1024  # bytes of a time stamp; its certificates are some KiB
_TOLD = 300  # characters of a command's output


class Outside:
    """The ``places`` for anchors of the record at ``path``. Raises :class:`casemate.InvalidArgument`."""

    def __init__(self, places: Sequence[str], path: str) -> None:
        self._places = {place: _sender(place, f"{path}.stamps") for place in places}
        self._failing: set[str] = set()

    def send(self, line: str, note: Callable[[Mapping[str, object]], None]) -> None:
        """Send a line to all places. When a place starts to fail, ``note`` is called once."""
        for place, send in self._places.items():
            try:
                send(line)
            except (OSError, ValueError, ImportError, subprocess.SubprocessError) as error:
                if place not in self._failing:
                    self._failing.add(place)
                    note({"place": public_name(place), "problem": str(error)})
            else:
                self._failing.discard(place)


def _sender(place: str, stamps: str) -> Callable[[str], None]:
    if place.startswith("|"):
        try:
            argv = shlex.split(place[1:])
        except ValueError as error:
            raise InvalidArgument("audit_anchors", f"the command after | cannot be read: {error}") from None
        if argv:
            return lambda line: _run(argv, line)
    elif place.startswith(("https://", "http://")):
        return lambda line: _append(stamps, _stamp(place, line))
    elif os.path.isabs(place):
        return lambda line: _append(place, line)
    raise InvalidArgument(
        "audit_anchors", f"{public_name(place)!r} is not an absolute path, a command after | or an http address"
    )


def public_name(place: str) -> str:
    """``place`` without what may be secret: a command's arguments; an address's user, password, query and fragment.
    "***" stands for the user and password, for the query, or for a whole place that cannot be parsed."""
    if os.path.isabs(place):
        return place
    try:
        if place.startswith("|"):
            return f"| {shlex.split(place[1:])[0]}"
        parts = urlsplit(place)
    except (ValueError, IndexError):
        return "***"
    if "@" in place and not parts.netloc:  # an address without its scheme
        return "***"
    user = "***@" if "@" in parts.netloc else ""
    host = f"{user}{parts.netloc.rpartition('@')[2]}"
    return urlunsplit((parts.scheme, host, parts.path, "***" if parts.query else "", ""))


def _append(path: str, line: str) -> None:
    with hold(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)) as fd:
        append_whole(fd, f"{line}\n".encode())
        os.fsync(fd)


def _run(argv: list[str], line: str) -> None:
    try:
        subprocess.run(argv, input=f"{line}\n".encode(), capture_output=True, check=True, timeout=_WITHIN)
    except subprocess.TimeoutExpired:
        raise OSError(f"{argv[0]} took longer than {_WITHIN:g} s") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip()[:_TOLD]
        raise OSError(f"{argv[0]} ended with {error.returncode}: {said}") from None


def _stamp(server: str, line: str) -> str:
    """The time stamp of ``line`` by ``server``, readable with ``openssl ts -reply -in``."""
    import httpx2
    from rfc3161_client import PKIStatus, TimestampRequestBuilder, decode_timestamp_response

    request = TimestampRequestBuilder().data(line.encode()).build()
    kind = {"content-type": "application/timestamp-query"}
    try:
        with (
            httpx2.Client(timeout=_WITHIN) as client,
            client.stream("POST", server, content=request.as_bytes(), headers=kind) as answer,
        ):
            answer.raise_for_status()
            data = b""
            for part in answer.iter_bytes():
                data += part
                if len(data) > _MOST:
                    raise ValueError("its answer is too large")
    except httpx2.HTTPStatusError as error:  # its message contains the whole address
        raise OSError(f"it answered {error.response.status_code}") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise OSError(f"it did not answer: {error}") from None
    answered = decode_timestamp_response(data)
    if PKIStatus(answered.status) not in (PKIStatus.GRANTED, PKIStatus.GRANTED_WITH_MODS):
        raise ValueError("it refused to stamp the line")
    stamp = answered.tst_info
    if (stamp.nonce, stamp.message_imprint.message) != (request.nonce, request.message_imprint.message):
        raise ValueError("its time stamp is for something else")
    kept = {"server": public_name(server), "time": stamp.gen_time.isoformat(), "line": line}
    return json.dumps({**kept, "stamp": base64.b64encode(data).decode()})
