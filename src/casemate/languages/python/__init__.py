"""Python: how its programs start, take steps, are looked at, and get packages."""
