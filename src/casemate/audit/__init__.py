"""The record: what was asked to run and what came of it, append-only and hash-chained."""
