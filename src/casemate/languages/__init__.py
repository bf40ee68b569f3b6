"""Languages: how each one's interpreter is found and how it starts a program. One file a language."""
