"""What casemate is configured with: defaults, a file, variables, arguments; and where each value came from."""
