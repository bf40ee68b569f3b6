"""Benchmarks. See README.md. Only a smoke test imports from here."""
