"""Belief propagation between all items and all cells."""
