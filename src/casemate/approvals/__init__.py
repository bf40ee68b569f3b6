"""The approval plane: whatever wants to cross the wall is decided here, by rules or by somebody who is asked."""
