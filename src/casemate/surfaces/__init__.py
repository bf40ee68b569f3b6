"""Surfaces over the facade, for use from outside Python. They name arguments, print, and exit."""
