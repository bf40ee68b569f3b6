"""A caller's folder: writing back what a run changed."""
