"""Ways to use the facade from outside Python. Thin: they name arguments, print, and exit."""
