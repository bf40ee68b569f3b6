"""The service over HTTP: a loop over the operations, and who may speak to it."""
