"""System calls: the number of each, and what a cell may do with it."""
