"""Rules for what may cross the wall, as data, and pure decisions about them."""
