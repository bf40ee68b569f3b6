"""The client side of a running service: where it is, how it starts, and its protocol."""
