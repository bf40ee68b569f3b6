"""The egress proxy: the only way for a cell to reach the network, by name."""
