"""What a run may never change in a caller's folder (the rule itself is shared with the export of artifacts)."""

from __future__ import annotations

from casemate.files.protected import PROTECTED, Protection

__all__ = ["PROTECTED", "Protection"]
