"""Walls isolate cells. `wall` is the interface; each wall has its own folder."""
