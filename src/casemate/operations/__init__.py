"""Everything that can be asked of casemate, once: what surfaces loop over, and sessions and runs by handle."""
