"""The files that a run leaves: collected from a hostile tree, kept on the host, handed out."""
