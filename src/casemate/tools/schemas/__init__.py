"""From a stranger's JSON Schema to types and names, and whether a value is right."""
