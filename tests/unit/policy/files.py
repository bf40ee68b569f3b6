"""Policy files as text, read as from the folder /here of somebody whose home is /home/me."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from casemate.errors import InvalidArgument
from casemate.policy.document import read_document
from casemate.policy.keys import POLICY_KINDS
from casemate.policy.policy import Policy
from casemate.policy.reading import policy_of


def read(text: str, form: Any = "yaml", folder: str = "/here", kinds: Mapping[str, Any] = POLICY_KINDS) -> Policy:
    """The policy that ``text`` says."""
    document = read_document(text.encode("utf-8", "surrogatepass"), f"p.{form}", form)
    return policy_of(document, folder, "/home/me", kinds)


def read_json(values: Any) -> Policy:
    """The policy of a JSON file with these values, a line for each."""
    return read(json.dumps(values, indent=1), "json")


def refusal(text: str, form: Any = "yaml") -> str:
    """What is said of ``text``, which is refused."""
    with pytest.raises(InvalidArgument) as raised:
        read(text, form)
    return raised.value.message.removeprefix("policy: ")


def refusal_of_json(values: Any) -> str:
    """The same of a JSON file."""
    return refusal(json.dumps(values, indent=1), "json")
