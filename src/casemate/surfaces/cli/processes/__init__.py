"""The processes that ``casemate service`` and ``casemate serve`` are."""
