"""Signing in to remote servers (OAuth 2.1): by a browser or by another device, and the tokens that come of it."""
