"""Simulate a whole campaign in one process, with every client in it."""
