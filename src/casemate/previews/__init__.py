"""Servers in cells, shown to people: each under a host name of its own, by a link that ends."""
