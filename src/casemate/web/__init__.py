"""The web for agents: pages and searches, each in a cell of its own."""
