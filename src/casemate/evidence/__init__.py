"""What proves afterwards what ran and what came out: keys, signed statements, packs."""
