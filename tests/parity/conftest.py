"""An event loop and a sandbox for each file."""

from tests.oversight.conftest import pytest_pyfunc_call, runner, sandbox

__all__ = ["pytest_pyfunc_call", "runner", "sandbox"]
