"""Spans and metrics of executions. Their only source is the rows of the record."""

from typing import Any
from weakref import WeakSet

SANDBOXES: WeakSet[Any] = WeakSet()  # open sandboxes; any thread may count them
