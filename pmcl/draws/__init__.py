"""Draws with their densities, and the DataTrees that users see."""
