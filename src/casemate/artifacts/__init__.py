"""Artifacts: collects a run's files from a hostile tree, keeps them on the host, and writes them out."""
