"""Schemas of every kind, and what comes of each."""
