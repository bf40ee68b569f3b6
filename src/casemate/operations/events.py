"""Events of a run from their documents, also the last one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from casemate.model import event_documents
from casemate.model.events import Done, Event
from casemate.operations.failures import error_from
from casemate.operations.wire import Fetch, execution_of


def event_of(document: Mapping[str, Any], fetch: Fetch) -> Event:
    """The event that a document is of. Raises what became of a run that has no execution."""
    if document["event"] != "done":
        return event_documents.event_of(document)
    if document["execution"] is None:
        raise error_from(document["error"])
    return Done(execution_of(document["execution"], fetch))
