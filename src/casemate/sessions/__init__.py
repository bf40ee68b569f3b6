"""Sessions: interpreters in their own cells that run one step after another."""
