"""What is configured, as arguments of a ``Sandbox``. Nothing that reads files is loaded before it is asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from casemate.errors import InvalidArgument


def arguments_of_file(
    path: str | os.PathLike[str], environ: Mapping[str, str], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of a file, and in their place those that are ``given``. ``environ`` names the user's folders.

    Raises ``InvalidArgument`` that names file, line and key, and ``VaultUnavailable``.
    """
    from casemate.api.settings.settings import settings_in_file

    if given.get("policy") is not None:
        raise InvalidArgument(
            "policy",
            f"would take the place of what {os.fspath(path)!r} permits, and arguments only narrow that",
            remediation="Write one file that permits both, or give Sandbox(policy=...) alone.",
        )
    return {**settings_in_file(path).sandbox_arguments(environ), **given}


def arguments_of_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Those of ``CASEMATE_*`` variables, and of the file that ``CASEMATE_CONFIG`` names.

    Raises as :func:`arguments_of_file`, naming the variable.
    """
    from casemate.api.settings.settings import settings_of_variables

    return settings_of_variables(environ).sandbox_arguments(environ)
