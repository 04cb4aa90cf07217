"""The frequencies that a plan is made for: known, assumed, read from a pilot, or the hardest."""
