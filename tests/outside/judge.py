"""Runs one of CPython's test modules, and writes what became of each test: a program that runs bare and in cells.

Each record in the file ``results`` is the name of a test, how it ended, and a message; a NUL ends it. A later record
about the same test replaces an earlier one, so a run that is cut off shows which test it was at.
"""

# ruff: noqa: N802 - the names are unittest's

from __future__ import annotations

import os
import sys
import traceback
import unittest
from typing import Any

from test import support  # type: ignore[import-not-found]

_write = os.write  # tests replace it


def note(name: str, outcome: str, message: str) -> None:
    """Write a record."""
    record = f"{name}\n{outcome}\n{message}".replace("\0", "\\0") + "\0"
    _write(results, record.encode("utf-8", "backslashreplace"))


class _Results(unittest.TestResult):
    """Writes each outcome at once."""

    def _note(self, test: unittest.TestCase, outcome: str, message: str = "") -> None:
        note(test.id(), outcome, message)

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._note(test, "did not end")

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._note(test, "ok")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._note(test, "skipped", reason)

    def addError(self, test: unittest.TestCase, error: Any) -> None:
        self._note(test, "failed", "".join(traceback.format_exception_only(*error[:2])))

    def addFailure(self, test: unittest.TestCase, error: Any) -> None:
        self.addError(test, error)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, error: Any) -> None:
        if error is not None:
            self.addError(test, error)

    def addExpectedFailure(self, test: unittest.TestCase, error: Any) -> None:
        self._note(test, "ok")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._note(test, "failed", "succeeded, and was not to")


if __name__ == "__main__":
    support.use_resources = []  # nothing that needs the network, or much of the machine
    results = os.open("results", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        unittest.defaultTestLoader.loadTestsFromName(sys.argv[1]).run(_Results())
    except unittest.SkipTest as reason:
        note(sys.argv[1], "skipped", str(reason))
