"""Shell: how its programs start, take steps and are checked."""
