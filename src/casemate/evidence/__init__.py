"""Proof of what ran and what it produced: signing keys, signed statements, evidence packs."""
