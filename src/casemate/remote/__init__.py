"""The way to a running service: where it lies, how it is started, and what is said to it."""
