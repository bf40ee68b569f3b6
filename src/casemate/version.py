"""The version of casemate."""

__version__ = "0.1.0"
