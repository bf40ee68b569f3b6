"""What cells do to the world through the doors: real clients in cells, real servers in a network of the tests' own."""
