"""Differential privacy: integer noise, and exact accounting of what is released. No engine uses it yet."""
