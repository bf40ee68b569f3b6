"""Node: how its programs start, take steps and are checked, and how packages are installed."""
