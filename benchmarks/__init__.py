"""Measurements. See README.md; nothing here is imported by casemate or its tests but for a smoke test."""
