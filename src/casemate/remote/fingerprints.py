"""Hashes of a service's configuration by name, to tell whether a caller has the same configuration."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from casemate.api.config_files import users_file
from casemate.errors import InvalidArgument
from casemate.remote.environment import own_variables
from casemate.remote.places import places_of

_FILE, _STATE = "the configuration file", "the state folder"
_BY = "its start by a command"  # its variables then come from that command, and were not chosen for a service
_MOST = 1 << 20  # bytes of the configuration file


def fingerprints(environ: Mapping[str, str], *, on_demand: bool = False) -> dict[str, str]:
    """Hashes of casemate's own variables, the path of the state folder, and the user's configuration file if it exists.

    Raises ``InvalidArgument`` if the file cannot be found or read, and ``Unavailable`` without a state folder.
    """
    values = {name: value.encode("utf-8", "surrogateescape") for name, value in own_variables(environ).items()}
    values[_STATE] = os.fsencode(places_of(environ).state)
    if on_demand:
        values[_BY] = b""
    place = users_file(environ)
    if place is not None:
        try:
            with place.open("rb") as file:
                values[_FILE] = file.read(_MOST)
        except OSError as error:
            raise InvalidArgument("config", f"{place} cannot be read: {error.strerror}") from None
    return {name: hashlib.sha256(value).hexdigest() for name, value in values.items()}


def different(ours: Mapping[str, str], theirs: Mapping[str, str], *, runs: bool) -> list[str]:
    """The names that differ: our variables, and the file if either side has one. ``runs``: the caller runs programs, so
    it must also match all variables of a service that another command started."""
    names = {*ours, *(theirs if runs and _BY in theirs else {_FILE} & theirs.keys())} - {_BY}
    return sorted(name for name in names if ours.get(name) != theirs.get(name))
