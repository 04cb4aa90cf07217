"""The frequencies that a plan is made for: known, assumed, estimated from a pilot, or the hardest.

The hardest frequencies for a plan are those for which its error is largest.
"""
