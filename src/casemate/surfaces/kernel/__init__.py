"""A Jupyter kernel: notebooks run in sessions."""
