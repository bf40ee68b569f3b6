"""Secrets at rest: where they are kept, and who may have which."""
