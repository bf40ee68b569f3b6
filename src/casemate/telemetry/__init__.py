"""Spans and metrics of executions, made of the rows of the record and of nothing else, for whoever wants them."""

from typing import Any
from weakref import WeakSet

SANDBOXES: WeakSet[Any] = WeakSet()  # open ones; any thread may have them counted
