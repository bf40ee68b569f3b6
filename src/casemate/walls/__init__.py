"""Walls: what holds a cell. `wall` is the interface; each wall is a folder of its own."""
