"""The facade: what an application holds, and where its parts are put together."""
