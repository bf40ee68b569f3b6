"""The service over HTTP: every operation of the catalogue, and authentication."""
