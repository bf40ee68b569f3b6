"""Web access for agents: pages and searches are handled in cells."""
