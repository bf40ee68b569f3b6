"""The network door: what a cell reaches outside, by name, and nothing else."""
