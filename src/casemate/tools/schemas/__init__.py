"""Turns untrusted JSON Schemas into types and names, and validates values."""
