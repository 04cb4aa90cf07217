"""From an error, bytes and privacy to the size of a sketch: what is known of the frequencies, and what follows."""

from fedtally.planner.law import Fit, Law, Pilot
from fedtally.planner.sizes import Campaign, Size, calculus, linear, minimax, oracle, two_phase, within

__all__ = ["Campaign", "Fit", "Law", "Pilot", "Size", "calculus", "linear", "minimax", "oracle", "two_phase", "within"]
