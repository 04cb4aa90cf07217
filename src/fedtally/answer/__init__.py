"""The answer of a campaign: estimates of landed sums, told on a screen, as JSON and as a page."""
