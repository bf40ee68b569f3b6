"""The record: what was requested and its outcome, append-only and hash-chained."""
