"""A kernel of Jupyter: notebooks run in sessions."""
