"""Sessions: interpreters that live in a cell of their own and take one step after the other."""
