"""The egress proxy: what a cell reaches outside, by name, and nothing else."""
