"""Real clients in cells reach real servers in a network of the tests' own, through the egress proxy."""
