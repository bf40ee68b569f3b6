"""Walls: what holds a cell. `wall` is the interface; each wall is a room of its own."""
