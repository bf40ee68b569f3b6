"""The console: pages that a browser of the user's shows, and that ask the service as every other client does."""
