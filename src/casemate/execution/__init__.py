"""The steps of one execution: admit → plan, then run → collect → seal inside record. `pipeline` lists them."""
