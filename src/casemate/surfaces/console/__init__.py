"""The console: pages for the user's browser, which call the service as any other client does."""
