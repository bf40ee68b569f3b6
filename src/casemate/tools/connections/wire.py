"""Results as they came, for the MCP SDK's ``send_request``, which wants to be told of a model."""

from __future__ import annotations

from typing import Any

from pydantic import RootModel


class Raw(RootModel[dict[str, Any]]):
    """Any result."""
