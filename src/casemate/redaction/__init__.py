"""What a secret looks like in what comes out, and its replacement. Pure."""
