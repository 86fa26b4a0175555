"""The amortized posterior, and what makes it."""
