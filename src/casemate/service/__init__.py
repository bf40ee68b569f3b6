"""The daemon's own: what it keeps, who may speak to it, and when it ends."""
