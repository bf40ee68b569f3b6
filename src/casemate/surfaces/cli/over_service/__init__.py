"""What commands over the user's service have in common: the connection, lists, limits, following a run."""
