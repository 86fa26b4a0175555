"""Local variables of rows: encoders, gaps, moments, updates."""
