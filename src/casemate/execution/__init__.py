"""One execution, step by step: admit → plan → run → collect → seal, all inside record.

`pipeline` is the list; each step takes the type that the step before makes.
"""
