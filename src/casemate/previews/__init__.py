"""Previews show servers in cells to people: each under its own host name, by a link that expires."""
