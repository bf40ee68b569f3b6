"""What may cross the wall: rules as data, and pure decisions about them."""
