"""One execution, step by step: admit → plan, then run → collect → seal inside record.

`pipeline` is the list; each step takes the type that the step before makes.
"""
