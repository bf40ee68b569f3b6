"""Commands that are wrapped: real ones, talked to through real pipes."""
