"""Secrets at rest: where they are stored, and who may get which."""
