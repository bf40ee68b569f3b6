"""The commands, one module for each group: what they take, and what they print."""
