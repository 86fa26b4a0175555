"""What protects the past: replay, consolidation, variational weights, and their states."""
