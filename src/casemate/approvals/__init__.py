"""Approvals: whatever wants to cross the wall is decided here, by rules or by an approver."""
