"""Whoever sits at the terminal: what is shown there, and what is asked."""
