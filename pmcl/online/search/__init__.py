"""Searches for the normal, or the point, nearest to a posterior."""
